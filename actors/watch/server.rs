//! The server's main loop: receives events and serves pages.

use super::clients::Clients;
use super::door::{Door, Stream, is_same};
use super::http::{Answer, Asked};
use super::memory::resident_bytes;
use super::page;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use loongforge_core::observe::{Board, News};
use loongforge_core::simulate::gantt_svg;
use std::convert::Infallible;
use std::future::ready;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::timeout;

/// The time that a client may take to send its request, and again to read the response.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a request's head at most, the least that hyper takes, and header lines in it.
const MAX_HEAD: usize = 8 << 10;
const MAX_HEADERS: usize = 64;
/// Number of steps in the chart.
const CHART_STEPS: u64 = 5;

/// One thing that happened, when, in nanoseconds of the watch's clock, and how many were dropped before it.
pub(super) type Item = (News, u64, u64);

/// Serves until every sender of news is gone.
pub(super) async fn serve(door: Door, token: Arc<str>, news: flume::Receiver<Item>, board: Arc<Mutex<Board>>) {
    let admit = async {
        let mut clients = Clients::default();
        loop {
            match door.accept().await {
                Ok(stream) => {
                    let (token, board, has_asked) = (token.clone(), board.clone(), Arc::new(AtomicBool::new(false)));
                    clients.admit(has_asked.clone(), answer(stream, token, board, has_asked));
                }
                // Out of file descriptors, most likely: that passes.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    };
    let listen = async {
        while let Ok((news, now, lost)) = news.recv_async().await {
            lock(&board).take(news, now, lost);
        }
    };
    tokio::select! {
        () = listen => {}
        () = admit => {}
    }
}

/// Locks the board. The lock is never held across an await, and only by this thread until it ends.
pub(super) fn lock(board: &Mutex<Board>) -> std::sync::MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers one request of a connection and closes it. `has_asked` is set when the request's head is whole.
async fn answer(stream: Box<dyn Stream>, token: Arc<str>, board: Arc<Mutex<Board>>, has_asked: Arc<AtomicBool>) {
    let service = service_fn(|request: Request<Incoming>| {
        has_asked.store(true, Ordering::Relaxed);
        ready(Ok::<_, Infallible>(answered(&request, &token, &board)))
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
    let connection = http.keep_alive(false).serve_connection(TokioIo::new(stream), service);
    // A client that has gone, or does not read, wants no answer.
    let _ = timeout(2 * PATIENCE, connection).await;
}

fn answered<B>(request: &Request<B>, token: &str, board: &Mutex<Board>) -> Response<Full<Bytes>> {
    let answer = match Asked::read(request) {
        Ok(asked) if asked.token.as_deref().is_some_and(|theirs| is_same(theirs, token)) => find(&asked.path, board),
        Ok(_) => Answer::error(StatusCode::UNAUTHORIZED),
        Err(status) => Answer::error(status),
    };
    answer.response()
}

fn find(path: &str, board: &Mutex<Board>) -> Answer {
    let json = |value: serde_json::Value| Answer::new("application/json", value.to_string());
    match path {
        "/" => {
            let (page, nonce) = page::page();
            Answer { nonce: Some(nonce), ..Answer::new("text/html; charset=utf-8", page) }
        }
        "/status.json" => {
            let mut status = lock(board).status();
            status["memory_bytes"] = resident_bytes().into();
            json(status)
        }
        "/history.json" => json(lock(board).history()),
        "/trace.json" => json(lock(board).chrome_trace()),
        "/timeline.svg" => {
            let gantt = lock(board).gantt(CHART_STEPS);
            Answer::new("image/svg+xml", gantt_svg(&gantt, "The last steps"))
        }
        "/samples.png" => match lock(board).samples() {
            Some(png) => Answer::new("image/png", png),
            None => Answer::error(StatusCode::NOT_FOUND),
        },
        "/metrics" => Answer::new("text/plain; version=0.0.4; charset=utf-8", lock(board).prometheus(resident_bytes())),
        _ => Answer::error(StatusCode::NOT_FOUND),
    }
}
