//! An observer for tests.
#![allow(dead_code, reason = "each test takes what it needs")]

use loongforge_actors::{Observer, Publisher};
use loongforge_core::message::*;
use loongforge_core::schedule::*;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Default)]
pub struct Seen {
    pub losses: Vec<f64>,
    pub num_bad: usize,
    pub published: Vec<u64>,
    pub changes: Vec<PoolChange>,
    /// The actors that were slow after the last step.
    pub slow: Vec<ActorId>,
}

/// Notes what it sees; asks for a stop after some step; may be unable to publish.
pub struct RecordingObserver {
    pub seen: Arc<Mutex<Seen>>,
    pub stop_after: Option<(u64, flume::Sender<()>)>,
    pub can_publish: bool,
}

/// Returns an observer of a run to its end, and what it has seen.
pub fn recording_observer() -> (Arc<Mutex<Seen>>, Box<RecordingObserver>) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    (seen.clone(), Box::new(RecordingObserver { seen, stop_after: None, can_publish: true }))
}

impl Observer for RecordingObserver {
    fn step(&mut self, summary: &StepSummary) {
        let mut seen = self.seen.lock().unwrap();
        seen.losses.push(summary.loss);
        seen.slow = summary.stragglers.iter().map(|straggler| straggler.actor).collect();
        drop(seen);
        if let Some((step, stop)) = &self.stop_after
            && summary.step.0 == *step
        {
            stop.send(()).unwrap();
        }
    }

    fn pool(&mut self, change: &PoolChange) {
        self.seen.lock().unwrap().changes.push(change.clone());
    }

    fn bad(&mut self, samples: &[SkippedSample]) {
        self.seen.lock().unwrap().num_bad += samples.len();
    }

    fn publisher(&mut self) -> Publisher {
        let can_publish = self.can_publish;
        Box::new(move |draft| {
            assert!(draft.dir.is_dir(), "the folder is made");
            if can_publish { Ok(draft.dir.clone()) } else { Err("disk full".into()) }
        })
    }

    fn published(&mut self, draft: &CheckpointDraft, _: &Path, _: Duration) {
        self.seen.lock().unwrap().published.push(draft.step.0);
    }
}
