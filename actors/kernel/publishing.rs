//! The thread that publishes checkpoints, one after the other: disks may be slow, and the scheduler does not wait.

use crate::scheduler::Publisher;
use loongforge_core::engine::error_chain;
use loongforge_core::schedule::CheckpointDraft;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The result of publishing a draft.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub(super) struct Published {
    pub draft: CheckpointDraft,
    /// The path of the checkpoint, and the time that publishing took.
    pub result: Result<(PathBuf, Duration), String>,
}

pub(super) struct Publishing {
    drafts: Drafts,
    thread: JoinHandle<()>,
}

/// The drafts that wait for the thread: few, since the coordinator lets steps wait for them. Its clones share them.
#[derive(Clone, Default)]
pub(super) struct Drafts(Arc<Shared>);

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    drafts: VecDeque<CheckpointDraft>,
    /// No more drafts follow.
    is_over: bool,
}

impl Drafts {
    /// Has a draft published after those that wait already. The caller does not wait: the thread may be waiting for the caller, to
    /// take a result.
    pub fn add(&self, draft: CheckpointDraft) {
        self.lock().drafts.push_back(draft);
        self.0.changed.notify_one();
    }

    fn end(&self) {
        self.lock().is_over = true;
        self.0.changed.notify_one();
    }

    /// Waits for the next draft; `None`: no more follow.
    fn take_next(&self) -> Option<CheckpointDraft> {
        let mut waiting = self.lock();
        loop {
            let next = waiting.drafts.pop_front();
            if next.is_some() || waiting.is_over {
                return next;
            }
            waiting = self.0.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Publishing {
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start(publish: Publisher, done: impl Fn(Published) + Send + 'static) -> std::io::Result<Self> {
        let drafts = Drafts::default();
        let to_publish = drafts.clone();
        let thread = std::thread::Builder::new().name("publish".into()).spawn(move || {
            while let Some(draft) = to_publish.take_next() {
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

    /// Returns where drafts are added.
    pub fn drafts(&self) -> Drafts {
        self.drafts.clone()
    }

    /// Waits until all drafts are published.
    pub fn finish(self) {
        self.drafts.end();
        // A thread that is gone publishes nothing more.
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::message::{SaveTo, StepId};
    use loongforge_core::schedule::SchedulerState;

    const NUM: u64 = 200;

    #[test]
    fn whoever_adds_drafts_does_not_wait_for_the_disk_or_for_the_results_before() {
        let (answer, answers) = flume::bounded::<Published>(1);
        let publish: Publisher = Box::new(|draft| Ok(draft.dir.clone()));
        let publishing = Publishing::start(publish, move |published| drop(answer.send(published))).unwrap();
        let (drafts, (added, all_added)) = (publishing.drafts(), flume::bounded(1));
        // The scheduler takes no result while it handles what engines say.
        std::thread::spawn(move || {
            for step in (0..NUM).map(StepId) {
                let (state, dir) = (SchedulerState::default(), PathBuf::from(step.to_string()));
                drafts.add(CheckpointDraft { step, to: SaveTo::Disk, dir, state, files: Vec::new() });
            }
            let _ = added.send(());
        });
        all_added.recv_timeout(Duration::from_secs(20)).unwrap();
        let steps = answers.iter().take(NUM as usize).map(|published| published.draft.step.0);
        assert!(steps.eq(0..NUM));
        publishing.finish();
    }
}
