//! The thread that publishes checkpoints, one after the other: disks may be slow, and the scheduler does not wait.

use crate::scheduler::Publisher;
use loongforge_core::engine::error_chain;
use loongforge_core::schedule::CheckpointDraft;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum number of waiting drafts. More would mean that engines write faster than manifests are written.
const QUEUE: usize = 64;

/// The result of publishing a draft.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub(super) struct Published {
    pub draft: CheckpointDraft,
    /// Where the checkpoint is, and how long publishing took.
    pub result: Result<(PathBuf, Duration), String>,
}

pub(super) struct Publishing {
    /// `None`: no more drafts follow.
    drafts: flume::Sender<Option<CheckpointDraft>>,
    thread: JoinHandle<()>,
}

impl Publishing {
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start(publish: Publisher, done: impl Fn(Published) + Send + 'static) -> std::io::Result<Self> {
        let (drafts, to_publish) = flume::bounded(QUEUE);
        let thread = std::thread::Builder::new().name("publish".into()).spawn(move || {
            while let Ok(Some(draft)) = to_publish.recv() {
                let begin = Instant::now();
                // One that panicked has failed like any other: who waits must hear of it.
                let result = match catch_unwind(AssertUnwindSafe(|| publish(&draft))) {
                    Ok(Ok(path)) => Ok((path, begin.elapsed())),
                    Ok(Err(error)) => Err(error_chain(&*error)),
                    Err(_) => Err("publishing panicked, which is a bug of loongforge".to_owned()),
                };
                done(Published { draft, result });
            }
        })?;
        Ok(Self { drafts, thread })
    }

    /// Returns the channel for drafts; `None` ends the thread.
    pub fn drafts(&self) -> flume::Sender<Option<CheckpointDraft>> {
        self.drafts.clone()
    }

    /// Waits until all drafts are published.
    pub fn finish(self) {
        // A thread that is gone publishes nothing more.
        let _ = self.drafts.send(None);
        let _ = self.thread.join();
    }
}
