//! The listening socket.

use super::engine::Engine;
use super::exchange::Shared;
use super::http::{answer, answer_where_full, now};
use super::reading::Limits;
use crate::serve::patient::Patient;
use crate::serve::server::keep_alive;
use crate::serve::{Door, ServeError};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The time that a client may take to send a request's head.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time that answers may take to be sent after the model's thread has ended.
const DRAIN: Duration = Duration::from_secs(1);
/// Bytes of a request's head at most, and header lines in it.
const MAX_HEAD: usize = 16 << 10;
const MAX_HEADERS: usize = 64;
/// Connections at a time; and those that are only told that there are too many.
const MAX_CONNECTIONS: usize = 128;
const MAX_REFUSED: usize = 32;

/// A server that listens, and does not answer yet.
pub struct Server {
    listener: TcpListener,
    key: Option<String>,
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// The address is taken, or not this machine's alone and nobody has allowed that.
    pub async fn open(door: Door) -> Result<Self, ServeError> {
        let key = door.key.clone();
        Ok(Self { listener: door.listen().await?, key })
    }

    /// # Errors
    /// The system does not say where it listens.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is done; the model is called `name`.
    ///
    /// # Errors
    /// The model's thread has ended: one of its ranks has failed, or it has panicked.
    pub async fn run(
        self,
        engine: Engine,
        limits: Limits,
        name: String,
        stop: impl Future<Output = ()>,
    ) -> Result<(), ServeError> {
        let shared = Arc::new(Shared { engine, limits, name, key: self.key, since: now() });
        let (places, refused) = (Arc::new(Semaphore::new(MAX_CONNECTIONS)), Arc::new(Semaphore::new(MAX_REFUSED)));
        let serve = async {
            loop {
                match self.listener.accept().await {
                    Ok((stream, _)) => {
                        let shared = shared.clone();
                        if let Ok(place) = places.clone().try_acquire_owned() {
                            tokio::spawn(async move {
                                welcome(stream, &shared).await;
                                drop(place);
                            });
                        } else if let Ok(place) = refused.clone().try_acquire_owned() {
                            tokio::spawn(async move {
                                turn_away(stream).await;
                                drop(place);
                            });
                        }
                    }
                    // Out of file descriptors, most likely: that passes.
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        };
        tokio::select! {
            () = stop => Ok(()),
            () = serve => Ok(()),
            () = shared.engine.ended() => {
                // Who was refused hears of it before the connections end.
                tokio::time::sleep(DRAIN).await;
                Err(ServeError::Ended)
            }
        }
    }
}

/// Answers the requests of a connection, one after another. A client that goes ends all of it: hyper drops what it asked.
async fn welcome(stream: TcpStream, shared: &Shared) {
    // Pieces of an answer are small, and somebody reads along.
    let _ = stream.set_nodelay(true);
    // The machine of one that has lost its power says nothing more, and what it asked would keep its place.
    let _ = keep_alive(&stream);
    let service =
        service_fn(|request: Request<Incoming>| async move { Ok::<_, Infallible>(answer(request, shared).await) });
    let _ = http().serve_connection(TokioIo::new(Patient::new(stream)), service).await;
}

/// Says that there are too many connections.
async fn turn_away(stream: TcpStream) {
    let service = service_fn(|request: Request<Incoming>| {
        std::future::ready(Ok::<_, Infallible>(answer_where_full(&request, MAX_CONNECTIONS)))
    });
    let _ = timeout(PATIENCE, http().keep_alive(false).serve_connection(TokioIo::new(stream), service)).await;
}

fn http() -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
    http
}
