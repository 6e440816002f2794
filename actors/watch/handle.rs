//! The run's handle on the watch page.

use super::door::Door;
use super::export::Export;
use super::server::{Item, lock, serve};
use super::word::{WATCH_FILE, Word};
use crate::random;
use loongforge_core::config::{Address, Otlp};
use loongforge_core::observe::{Board, News};
use std::cell::Cell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

/// File in the run's folder with the timeline of the last steps, once the run has ended.
pub const TRACE_FILE: &str = "trace.json";

/// Maximum number of events that wait for the watch page.
const QUEUE: usize = 1024;

/// A page could not be served.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    #[error("`watch.listen`: cannot listen at {address}: {source}")]
    Listen { address: Address, source: io::Error },
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
}

/// Serves the page until it is dropped.
pub struct Watch {
    news: Option<flume::Sender<Item>>,
    begun: Instant,
    num_lost: Cell<u64>,
    address: Address,
    word: Word,
    dir: PathBuf,
    thread: Option<JoinHandle<()>>,
    export: Option<Export>,
}

impl Watch {
    /// Listens, and writes the address into the run's folder. An earlier run in this folder keeps its token, and its port if any
    /// port is allowed.
    ///
    /// # Errors
    /// Fails if another process listens there, or the folder cannot be written.
    pub fn start(at: &Address, dir: &Path, board: Board) -> Result<Self, WatchError> {
        Self::start_with(at, None, dir, board)
    }

    /// Works like [`Watch::start`], and also sends data to a collector.
    ///
    /// # Errors
    /// Fails like [`Watch::start`].
    pub fn start_with(at: &Address, otlp: Option<&Otlp>, dir: &Path, board: Board) -> Result<Self, WatchError> {
        let listen = |source| WatchError::Listen { address: at.clone(), source };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(listen)?;
        let kept = Word::kept(dir);
        let door = runtime.block_on(open(at, kept.as_ref())).map_err(listen)?;
        let address = door.address().map_err(listen)?;
        let token: Arc<str> = kept.map_or_else(random::token, |word| word.token).into();
        let word =
            Word { address: address.to_string(), token: token.to_string(), pid: std::process::id(), ended: false };
        word.leave(dir).map_err(|source| WatchError::Write { path: dir.join(WATCH_FILE), source })?;
        let (news, items) = flume::bounded(QUEUE);
        let (opens, trace) = (token.clone(), dir.join(TRACE_FILE));
        let board = Arc::new(Mutex::new(board));
        let export = otlp.map(|otlp| Export::start(otlp, board.clone())).transpose().map_err(listen)?;
        let thread = std::thread::Builder::new().name("watch".into()).spawn(move || {
            runtime.block_on(serve(door, opens, items, board.clone()));
            // The run has ended, and this is for whoever asks why: nobody waits for it but the process's end.
            let _ = fs::write(trace, lock(&board).chrome_trace().to_string());
        });
        let thread = Some(thread.map_err(listen)?);
        let (begun, num_lost) = (Instant::now(), Cell::new(0));
        Ok(Self { news: Some(news), begun, num_lost, address, word, dir: dir.to_owned(), thread, export })
    }

    /// Reports an event without waiting.
    pub fn tell(&self, news: News) {
        let now = self.begun.elapsed().as_nanos() as u64;
        let lost = self.num_lost.get();
        if self.news.as_ref().is_none_or(|queue| queue.try_send((news, now, lost)).is_err()) {
            self.num_lost.set(lost + 1);
        }
    }

    /// Returns the address to open in a browser; for a Unix socket, the argument for `loongforge top`.
    pub fn url(&self) -> String {
        match &self.address {
            Address::Tcp { .. } => format!("http://{}/?token={}", self.address, self.word.token),
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
        // The board has all news now.
        self.export = None;
        self.word.ended = true;
        let _ = self.word.leave(&self.dir);
    }
}

/// Opens the address. Where any port will do it takes the one that was served before, so that a tab that is open finds it again.
async fn open(at: &Address, kept: Option<&Word>) -> io::Result<Door> {
    if let Address::Tcp { host, port: 0 } = at
        && let Some(port) = kept.and_then(Word::port)
        && let Ok(door) = Door::open(&Address::Tcp { host: host.clone(), port }).await
    {
        return Ok(door);
    }
    Door::open(at).await
}
