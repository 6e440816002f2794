//! Checkpoints being written: which engines have, and what they wrote.

use super::{CheckpointDraft, PoolSizes, SchedulerState};
use crate::message::{ActorId, SavedFile, StepId};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Checkpoints that are not published yet, by their step.
#[derive(Default)]
pub(super) struct Saves(BTreeMap<StepId, Save>);

struct Save {
    dir: PathBuf,
    state: SchedulerState,
    files: BTreeMap<ActorId, Vec<SavedFile>>,
}

impl Saves {
    /// Begins one; returns the folder to write into.
    pub fn begin(&mut self, step: StepId, state: SchedulerState, parent: &Path) -> PathBuf {
        // Hidden and marked, so that nobody takes an unfinished checkpoint for one.
        let dir = parent.join(format!(".step-{:08}.tmp", step.0 + 1));
        let before = self.0.insert(step, Save { dir: dir.clone(), state, files: BTreeMap::new() });
        assert!(before.is_none(), "step {step} is saved once");
        dir
    }

    /// Takes an engine's files; the draft once all have written.
    ///
    /// # Errors
    /// Nobody asked for it.
    pub fn saved(
        &mut self,
        step: StepId,
        actor: ActorId,
        files: Vec<SavedFile>,
        pools: PoolSizes,
    ) -> Result<Option<CheckpointDraft>, String> {
        let save = self.0.get_mut(&step).filter(|save| !save.files.contains_key(&actor));
        let save = save.ok_or_else(|| format!("saved step {step}, which nobody asked for"))?;
        save.files.insert(actor, files);
        let done = save.files.len() == pools.num_compute();
        Ok(done.then(|| CheckpointDraft {
            step,
            dir: save.dir.clone(),
            state: std::mem::take(&mut save.state),
            files: std::mem::take(&mut save.files).into_values().flatten().collect(),
        }))
    }

    pub fn published(&mut self, step: StepId) {
        self.0.remove(&step);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
