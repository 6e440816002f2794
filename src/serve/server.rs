//! The listening socket, and who is let in.

use super::actor::{Actor, MAX_CONNECTIONS};
use super::connection::talk;
use super::http::{Answer, answer, too_many};
use super::patient::Patient;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use loongforge_core::robot::wire::{Offer, Protocol};
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};
use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The time that a client may take to ask for a page or a WebSocket.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time that answers may take to be sent after the policy's thread has ended.
const DRAIN: Duration = Duration::from_secs(1);
/// How long a client may say nothing before its machine is asked whether it is there, how often it is asked again, and how many times
/// in vain: one that has lost its power says nothing more, and would keep its place.
pub(super) const SILENCE: Duration = Duration::from_secs(30);
const ASKED_EVERY: Duration = Duration::from_secs(10);
const NUM_ASKED: u32 = 6;
/// Bytes of a request's head at most, the least that hyper takes, and header lines in it.
const MAX_HEAD: usize = 8 << 10;
const MAX_HEADERS: usize = 64;
/// Connections that the system holds until they are accepted.
const BACKLOG: u32 = 1024;
/// Connections at a time beyond [`MAX_CONNECTIONS`], which get pages, such as that of its health, and no WebSocket.
const MAX_REFUSED: usize = 32;

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen at {host}:{port}: {source}")]
    Listen { host: String, port: u16, source: std::io::Error },
    #[error(
        "cannot listen at {host}:{port}: another program listens there; end it, or choose another port with --port (0: \
         any that is free)"
    )]
    Taken { host: String, port: u16 },
    #[error(
        "{host} can be reached from other machines: anyone who reaches the port could read and send requests, in \
         plain text. Use 127.0.0.1 and an ssh tunnel, or --insecure-allow-plaintext if the network is isolated"
    )]
    Open { host: String },
    #[error(
        "the model no longer answers because one of its ranks, its GPU or its thread has failed: restart the server"
    )]
    Ended,
}

/// The address at which a server listens, and its conditions for clients.
pub struct Door {
    pub host: String,
    /// 0: any that is free.
    pub port: u16,
    /// The key that clients must send (`Authorization: Api-Key …` to a policy, `Bearer …` to a language model); `None`: they need none.
    pub key: Option<String>,
    /// Addresses beyond this machine may be listened at, in plain text.
    pub is_open: bool,
}

/// A door whose address is taken, at which nobody listens yet: the system refuses connections, after which clients that wait for a server
/// try again.
pub struct ReservedDoor {
    socket: TcpSocket,
    door: Door,
}

impl Door {
    /// Takes the address.
    ///
    /// # Errors
    /// Another program has it, or it is not this machine's alone and nobody has allowed that.
    pub async fn reserve(self) -> Result<ReservedDoor, ServeError> {
        let found = tokio::net::lookup_host((&*self.host, self.port)).await;
        let addresses: Vec<SocketAddr> = found.map_err(|source| self.refused(source))?.collect();
        if !self.is_open && addresses.iter().any(|address| !address.ip().is_loopback()) {
            return Err(ServeError::Open { host: self.host });
        }
        let mut last = std::io::Error::from(ErrorKind::AddrNotAvailable);
        for address in addresses {
            match bind(address) {
                Ok(socket) => return Ok(ReservedDoor { socket, door: self }),
                Err(error) => last = error,
            }
        }
        Err(self.refused(last))
    }

    /// # Errors
    /// Fails as [`Door::reserve`] does.
    pub(super) async fn listen(self) -> Result<TcpListener, ServeError> {
        self.reserve().await?.listen().map(|(listener, _)| listener)
    }

    fn refused(&self, source: std::io::Error) -> ServeError {
        let (host, port) = (self.host.clone(), self.port);
        match source.kind() {
            ErrorKind::AddrInUse => ServeError::Taken { host, port },
            _ => ServeError::Listen { host, port, source },
        }
    }
}

impl ReservedDoor {
    /// # Errors
    /// The system does not say which address it is.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// # Errors
    /// Another program listens there meanwhile.
    fn listen(self) -> Result<(TcpListener, Door), ServeError> {
        let Self { socket, door } = self;
        match socket.listen(BACKLOG) {
            Ok(listener) => Ok((listener, door)),
            Err(source) => Err(door.refused(source)),
        }
    }
}

fn bind(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Connections of a server that has ended do not keep the port.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    shared: Arc<Shared>,
}

struct Shared {
    protocol: Protocol,
    offer: Arc<Offer>,
    actor: Actor,
    key: Option<String>,
    /// Is told why connections ended.
    tell: Box<dyn Fn(&str) + Send + Sync>,
}

impl Server {
    /// Listens, in the runtime that it is called in. `tell` is given a line for every connection that ends with an error.
    ///
    /// # Errors
    /// Another program has begun to listen there.
    pub fn open(
        door: ReservedDoor,
        protocol: Protocol,
        offer: Offer,
        actor: Actor,
        tell: Box<dyn Fn(&str) + Send + Sync>,
    ) -> Result<Self, ServeError> {
        let (listener, Door { key, .. }) = door.listen()?;
        Ok(Self { listener, shared: Arc::new(Shared { protocol, offer: Arc::new(offer), actor, key, tell }) })
    }

    /// # Errors
    /// The system does not say where it listens.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is done.
    ///
    /// # Errors
    /// The policy acts no more: its GPU or its thread has failed.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        let (places, refused) = (Arc::new(Semaphore::new(MAX_CONNECTIONS)), Arc::new(Semaphore::new(MAX_REFUSED)));
        let serve = async {
            loop {
                match self.listener.accept().await {
                    Ok((stream, _)) => {
                        let shared = self.shared.clone();
                        if let Ok(place) = places.clone().try_acquire_owned() {
                            tokio::spawn(async move { welcome(stream, &shared, place).await });
                        } else if let Ok(place) = refused.clone().try_acquire_owned() {
                            tokio::spawn(async move {
                                turn_away(stream, &shared).await;
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
            () = self.shared.actor.ended() => {
                // Who was refused hears of it before the connections end.
                tokio::time::sleep(DRAIN).await;
                Err(ServeError::Ended)
            }
        }
    }
}

/// Answers the requests of a connection; the last of them may begin a WebSocket.
async fn welcome(stream: TcpStream, shared: &Arc<Shared>, place: OwnedSemaphorePermit) {
    // Answers are small, and the robot waits for them.
    let _ = stream.set_nodelay(true);
    let _ = keep_alive(&stream);
    let place = Arc::new(place);
    let service = service_fn(|mut request: Request<Incoming>| {
        let response = match answer(&request, shared.protocol, shared.key.as_deref()) {
            Answer::Page(page) => page,
            Answer::WebSocket(response) => {
                let (shared, place) = (shared.clone(), place.clone());
                let upgrade = hyper::upgrade::on(&mut request);
                tokio::spawn(async move {
                    let Ok(stream) = upgrade.await else { return };
                    let dialogue = shared.protocol.begin(shared.offer.clone());
                    if let Err(reason) = talk(TokioIo::new(stream), dialogue, shared.actor.clone()).await {
                        (shared.tell)(&reason);
                    }
                    drop(place);
                });
                response
            }
        };
        std::future::ready(Ok::<Response<Full<Bytes>>, Infallible>(response))
    });
    // A client that has gone wants no answer.
    let _ = http().serve_connection(TokioIo::new(Patient::new(stream)), service).with_upgrades().await;
}

/// Answers with pages where all places are taken: what looks after the server must not take a full one for one that has failed.
async fn turn_away(stream: TcpStream, shared: &Shared) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = match answer(&request, shared.protocol, shared.key.as_deref()) {
            Answer::Page(page) => page,
            Answer::WebSocket(_) => too_many(MAX_CONNECTIONS),
        };
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let _ = timeout(PATIENCE, http().keep_alive(false).serve_connection(TokioIo::new(stream), service)).await;
}

fn http() -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
    http
}

/// Has the system ask the machine of a silent client whether it is there.
///
/// # Errors
/// The system refuses.
pub(super) fn keep_alive(stream: &TcpStream) -> rustix::io::Result<()> {
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, SILENCE)?;
    set_tcp_keepintvl(stream, ASKED_EVERY)?;
    set_tcp_keepcnt(stream, NUM_ASKED)
}
