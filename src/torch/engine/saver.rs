//! Writing checkpoints beside the steps: a thread for each, at most one at a time for each place.
//!
//! Saving is taking a snapshot ([`Snapshot`]); the thread first copies what was left for later, for which the next optimizer
//! step waits, and then writes. A save that comes while the one before it is written waits for that: a disk that is slower
//! than steps slows them down rather than filling the memory.

use crate::train::hf::{SameFiles, Snapshot};
use loongforge_core::engine::{EngineError, error_chain};
use loongforge_core::message::{ActorId, Event, SaveTo, StepId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

/// The saver of one rank.
#[derive(Default)]
pub(super) struct Saver {
    thread: Option<Writing>,
    /// Memory of the last snapshot.
    spare: Vec<Vec<u8>>,
    /// Files that all checkpoints have alike.
    pub same: Arc<SameFiles>,
}

struct Writing {
    handle: JoinHandle<Vec<Vec<u8>>>,
    /// Ends when everything is copied.
    copied: flume::Receiver<()>,
    stop: Arc<AtomicBool>,
}

/// The save that a thread writes, and the channel on which it reports.
pub(super) struct Task {
    pub me: ActorId,
    pub step: StepId,
    pub to: SaveTo,
    pub dir: PathBuf,
    pub events: flume::Sender<Event>,
}

impl Saver {
    /// Returns the memory of the snapshot before, once that is written.
    pub fn take_buffers(&mut self) -> Vec<Vec<u8>> {
        if let Some(Writing { handle, .. }) = self.thread.take() {
            // One that panicked has said so, and its memory is gone.
            self.spare = handle.join().unwrap_or_default();
        }
        std::mem::take(&mut self.spare)
    }

    /// Writes a snapshot; `task.events` are told of its end.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn begin(&mut self, mut snapshot: Snapshot, task: Task) -> Result<(), EngineError> {
        let (done, copied) = flume::bounded::<()>(1);
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name(format!("{} saves", task.me));
        let handle = thread.spawn({
            let stop = stop.clone();
            move || {
                let Task { me, step, to, dir, events } = task;
                let write = || {
                    snapshot.copy();
                    drop(done);
                    snapshot.write(&dir, me, &stop)
                };
                // One that panicked has failed like any other: the run waits for its word.
                let event = match catch_unwind(AssertUnwindSafe(write)) {
                    Ok(Ok(files)) => Event::Saved { step, to, files },
                    Ok(Err(error)) => Event::SaveFailed { step, to, error: error_chain(&error) },
                    Err(_) => {
                        let error = "saving panicked, which is a bug of loongforge".to_owned();
                        Event::SaveFailed { step, to, error }
                    }
                };
                // A scheduler that is gone wants no checkpoint.
                let _ = events.send(event);
                snapshot.into_buffers()
            }
        })?;
        self.thread = Some(Writing { handle, copied, stop });
        Ok(())
    }

    /// Waits until parameters and state may change.
    pub fn wait_copied(&self) {
        if let Some(writing) = &self.thread {
            // The end is what is waited for.
            let _ = writing.copied.recv();
        }
    }
}

/// An engine that stops wants no checkpoint that is not whole by now.
impl Drop for Saver {
    fn drop(&mut self) {
        if let Some(Writing { handle, stop, .. }) = self.thread.take() {
            stop.store(true, Relaxed);
            let _ = handle.join();
        }
    }
}
