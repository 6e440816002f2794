//! Checkpoints being written: which engines have, and what they wrote.

use super::{CheckpointDraft, SchedulerState};
use crate::message::{ActorId, SavedFile, StepId};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Checkpoints that are not published yet, by their step.
#[derive(Default)]
pub(super) struct Saves(BTreeMap<StepId, Save>);

struct Save {
    dir: PathBuf,
    state: SchedulerState,
    /// Who is to answer yet, once for each time that it was told to write.
    awaited: Vec<ActorId>,
    /// The encoder that writes what the pool has.
    writer: Option<ActorId>,
    files: BTreeMap<ActorId, Vec<SavedFile>>,
}

impl Saves {
    /// Begins one; returns the folder to write into.
    pub fn begin(
        &mut self,
        step: StepId,
        state: SchedulerState,
        parent: &Path,
        awaited: Vec<ActorId>,
        writer: Option<ActorId>,
    ) -> PathBuf {
        // Hidden and marked, so that nobody takes an unfinished checkpoint for one.
        let dir = parent.join(format!(".step-{:08}.tmp", step.0 + 1));
        let save = Save { dir: dir.clone(), state, awaited, writer, files: BTreeMap::new() };
        let before = self.0.insert(step, save);
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
    ) -> Result<Option<CheckpointDraft>, String> {
        let unasked = || format!("saved step {step}, which nobody asked for");
        let save = self.0.get_mut(&step).ok_or_else(unasked)?;
        let answer = save.awaited.iter().position(|&awaited| awaited == actor).ok_or_else(unasked)?;
        save.awaited.remove(answer);
        save.files.entry(actor).or_default().extend(files);
        Ok(save.draft(step))
    }

    /// Goes on without an encoder that is gone. The pool's writer is replaced by `writer`, who has the same parameters:
    /// the steps and folders that it must write are returned; and what is complete now.
    pub fn lose(&mut self, actor: ActorId, writer: Option<ActorId>) -> (Vec<(StepId, PathBuf)>, Vec<CheckpointDraft>) {
        let (mut again, mut drafts) = (Vec::new(), Vec::new());
        for (&step, save) in &mut self.0 {
            if !save.awaited.contains(&actor) {
                continue;
            }
            save.awaited.retain(|&awaited| awaited != actor);
            if let Some(next) = writer.filter(|_| save.writer == Some(actor)) {
                save.writer = Some(next);
                save.awaited.push(next);
                again.push((step, save.dir.clone()));
            }
            drafts.extend(save.draft(step));
        }
        (again, drafts)
    }

    pub fn published(&mut self, step: StepId) {
        self.0.remove(&step);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Save {
    /// The draft once all have written.
    fn draft(&mut self, step: StepId) -> Option<CheckpointDraft> {
        self.awaited.is_empty().then(|| CheckpointDraft {
            step,
            dir: self.dir.clone(),
            state: std::mem::take(&mut self.state),
            files: std::mem::take(&mut self.files).into_values().flatten().collect(),
        })
    }
}
