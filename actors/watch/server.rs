//! The server's loop: news in, pages out.

use super::door::{Door, Stream, draw, same};
use super::http::{Answer, MAX_HEAD, Request, Status, parse};
use loongforge_core::observe::{Board, News};
use loongforge_core::schedule::simulate::gantt_svg;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How long a client may take to ask, and to take its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Clients at a time; others wait before the door.
const MAX_CLIENTS: usize = 32;
/// Steps that the chart shows.
const CHART_STEPS: u64 = 5;

const PAGE: &str = include_str!("page.html");

/// One thing that happened, when, in nanoseconds of the watch's clock, and how many were dropped before it.
pub(super) type Item = (News, u64, u64);

/// Serves until every sender of news is gone.
pub(super) async fn serve(door: Door, token: Arc<str>, news: flume::Receiver<Item>, board: Arc<Mutex<Board>>) {
    let places = Arc::new(Semaphore::new(MAX_CLIENTS));
    let admit = async {
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            match door.accept().await {
                Ok(stream) => {
                    let (token, board) = (token.clone(), board.clone());
                    tokio::spawn(async move {
                        answer(stream, &token, &board).await;
                        drop(place);
                    });
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

/// Never held across an await, and by this thread alone until it ends.
pub(super) fn lock(board: &Mutex<Board>) -> std::sync::MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn answer(mut stream: Box<dyn Stream>, token: &str, board: &Mutex<Board>) {
    let Ok(asked) = timeout(PATIENCE, read(&mut stream)).await else { return };
    let (answer, head_only) = match asked {
        None => return,
        Some(Err(status)) => (Answer::error(status), false),
        Some(Ok(request)) => (page(&request, token, board), request.head_only),
    };
    // A client that has gone, or does not read, wants no answer.
    let _ = timeout(PATIENCE, async {
        stream.write_all(&answer.bytes(head_only)).await?;
        stream.shutdown().await
    })
    .await;
}

/// `None` where the client has gone before it said anything whole.
async fn read(stream: &mut Box<dyn Stream>) -> Option<Result<Request, Status>> {
    let mut bytes = Vec::new();
    loop {
        match parse(&bytes) {
            Ok(Some(request)) => return Some(Ok(request)),
            Ok(None) => {}
            Err(status) => return Some(Err(status)),
        }
        let mut piece = [0; 1024];
        let room = (MAX_HEAD + 4).saturating_sub(bytes.len()).clamp(1, piece.len());
        match stream.read(&mut piece[..room]).await {
            Ok(0) | Err(_) => return None,
            Ok(len) => bytes.extend_from_slice(&piece[..len]),
        }
    }
}

fn page(request: &Request, token: &str, board: &Mutex<Board>) -> Answer {
    if !request.token.as_deref().is_some_and(|theirs| same(theirs, token)) {
        return Answer::error(Status::Unauthorized);
    }
    let json = |value: serde_json::Value| Answer::new("application/json", value.to_string());
    match request.path.as_str() {
        "/" => {
            let Ok(nonce) = draw() else { return Answer::error(Status::NotFound) };
            let page = PAGE.replace("NONCE", &nonce);
            Answer { nonce: Some(nonce), ..Answer::new("text/html; charset=utf-8", page) }
        }
        "/status.json" => json(lock(board).status()),
        "/history.json" => json(lock(board).history()),
        "/trace.json" => json(lock(board).chrome_trace()),
        "/timeline.svg" => {
            let gantt = lock(board).gantt(CHART_STEPS);
            Answer::new("image/svg+xml", gantt_svg(&gantt, "The last steps"))
        }
        "/metrics" => Answer::new("text/plain; version=0.0.4; charset=utf-8", lock(board).prometheus()),
        _ => Answer::error(Status::NotFound),
    }
}
