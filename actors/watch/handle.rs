//! The run's end of the watch.

use super::door::{Door, draw};
use super::server::{Item, lock, serve};
use loongforge_core::config::Address;
use loongforge_core::observe::{Board, News};
use serde_json::json;
use std::cell::Cell;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

/// In the run's folder, for this user only: where the page is, and its token.
pub const WATCH_FILE: &str = "watch.json";
/// In the run's folder: the timeline of a run's last steps, once it has ended.
pub const TRACE_FILE: &str = "trace.json";

/// News that may wait for the watch.
const QUEUE: usize = 1024;

/// A page could not be served.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    #[error("`watch.listen`: cannot listen at {address}: {source}")]
    Listen { address: Address, source: io::Error },
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
}

/// Serves a board until it is dropped.
pub struct Watch {
    news: Option<flume::Sender<Item>>,
    begun: Instant,
    num_lost: Cell<u64>,
    address: Address,
    token: Arc<str>,
    dir: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Listens, and leaves word in the run's folder.
    ///
    /// # Errors
    /// Somebody else listens there, or the folder cannot be written.
    pub fn start(at: &Address, dir: &Path, board: Board) -> Result<Self, WatchError> {
        let listen = |source| WatchError::Listen { address: at.clone(), source };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(listen)?;
        let door = runtime.block_on(Door::open(at)).map_err(listen)?;
        let address = door.address().map_err(listen)?;
        let token: Arc<str> = draw().map_err(listen)?.into();
        let path = dir.join(WATCH_FILE);
        leave_word(&path, &address, &token).map_err(|source| WatchError::Write { path, source })?;
        let (news, items) = flume::bounded(QUEUE);
        let (opens, trace) = (token.clone(), dir.join(TRACE_FILE));
        let board = Arc::new(Mutex::new(board));
        let thread = std::thread::Builder::new().name("watch".into()).spawn(move || {
            runtime.block_on(serve(door, opens, items, board.clone()));
            // The run has ended, and this is for whoever asks why: nobody waits for it but the process's end.
            let _ = fs::write(trace, lock(&board).chrome_trace().to_string());
        });
        let thread = Some(thread.map_err(listen)?);
        let (begun, num_lost) = (Instant::now(), Cell::new(0));
        Ok(Self { news: Some(news), begun, num_lost, address, token, dir: dir.to_owned(), thread })
    }

    /// Tells what has happened. Never waits.
    pub fn tell(&self, news: News) {
        let now = self.begun.elapsed().as_nanos() as u64;
        let lost = self.num_lost.get();
        if self.news.as_ref().is_none_or(|queue| queue.try_send((news, now, lost)).is_err()) {
            self.num_lost.set(lost + 1);
        }
    }

    /// What to open in a browser; for a Unix socket, what to give to `loongforge top`.
    pub fn url(&self) -> String {
        match &self.address {
            Address::Tcp { .. } => format!("http://{}/?token={}", self.address, self.token),
            Address::Unix(path) => path.display().to_string(),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.news = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = fs::remove_file(self.dir.join(WATCH_FILE));
    }
}

fn leave_word(path: &Path, address: &Address, token: &str) -> io::Result<()> {
    // What a killed run has left may be open to others.
    let _ = fs::remove_file(path);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let word = json!({ "address": address.to_string(), "token": token, "pid": std::process::id() });
    writeln!(file, "{word}")
}
