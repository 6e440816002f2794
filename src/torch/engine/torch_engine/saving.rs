//! Checkpoints: what a step leaves behind, copied between steps and written beside them.

use super::TorchEngine;
use crate::engine::encoder::EncoderWorker;
use crate::engine::saver::{Saver, Task};
use crate::train::hf::{SameFiles, Shards, Snapshot, Target, WeightsError};
use crate::train::{StateError, save_state};
use loongforge_core::engine::{EngineError, Ports, error_chain};
use loongforge_core::message::{Event, SaveTo, SavedFile, StepId, StepPlan};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Writes files that are not in memory into a folder, unless they are the same as before.
type WriteOthers = Box<dyn Fn(&Path, &SameFiles, &AtomicBool) -> Result<Vec<SavedFile>, WeightsError> + Send>;

impl TorchEngine {
    /// Puts averages in place of the weights where an evaluation is next, and the weights back where none is.
    pub(super) fn settle_weights(&mut self) -> Result<(), EngineError> {
        let own = self.options.samples_own_weights;
        let wants = |plan: &Arc<StepPlan>| plan.purpose.is_evaluation() && !(own && plan.purpose.is_sample());
        let averages = self.planned.front().is_some_and(wants);
        if self.states().all(|state| state.uses_ema() == (averages && state.has_ema())) {
            return Ok(());
        }
        self.wait_copied();
        self.states().try_for_each(|state| if averages { state.use_ema() } else { state.use_own() })?;
        Ok(())
    }

    /// Saves what is to be saved after the last step that is applied; not while averages are in place of the weights.
    pub(super) fn save_due(&mut self, ports: &mut Ports) -> Result<(), EngineError> {
        if self.states().any(|state| state.uses_ema()) {
            return Ok(());
        }
        let version = self.version;
        let due = self.due.extract_if(.., |(step, ..)| step.0 < version.0).collect::<Vec<_>>();
        due.into_iter().try_for_each(|(step, to, dir)| self.save(step, to, dir, ports))
    }

    /// Takes a snapshot, which is written meanwhile; or writes.
    fn save(&mut self, step: StepId, to: SaveTo, dir: PathBuf, ports: &mut Ports) -> Result<(), EngineError> {
        if !self.options.saves_in_background {
            let event = match self.files(Target::Folder(&dir)) {
                Ok(files) => Event::Saved { step, to, files },
                Err(error) if error.is_of_disk() => Event::SaveFailed { step, to, error: error_chain(&error) },
                Err(error) => return Err(error.into()),
            };
            ports.emit(event);
            return Ok(());
        }
        let mut saver = self.savers.remove(&to).unwrap_or_default();
        let lasting: Vec<_> = self.states().flat_map(|state| state.lasting()).collect();
        let snapshot = RefCell::new(Snapshot::new(saver.take_buffers(), &lasting).with_same(saver.same.clone()));
        let files = self.files(Target::Memory(&snapshot))?;
        let is_empty = snapshot.borrow().is_empty();
        match is_empty {
            true => ports.emit(Event::Saved { step, to, files }),
            false => {
                let task = Task { me: ports.me(), step, to, dir, events: ports.events() };
                let mut snapshot = snapshot.into_inner();
                snapshot.describe(&files);
                saver.begin(snapshot, task)?;
            }
        }
        self.savers.insert(to, saver);
        Ok(())
    }

    /// Waits until the tensors to be saved are copied, before parameters change.
    pub(super) fn wait_copied(&self) {
        self.savers.values().for_each(Saver::wait_copied);
    }

    fn files(&self, to: Target<'_>) -> Result<Vec<SavedFile>, StateError> {
        let (mut files, mut failed) = (Vec::new(), None);
        let encoder = self.encoder.as_ref().map(|worker| (&worker.state, &self.exports.encoder, worker.pool_name()));
        let foundation = self.foundation.as_ref();
        let foundation = foundation.map(|worker| (&worker.rank.state, &self.exports.foundation, worker.pool_name()));
        for (state, export, name) in encoder.into_iter().chain(foundation) {
            // The other pool's ranks save as well, and wait for this one.
            match save_state(state, to, export, name.as_str()) {
                Ok(written) => files.extend(written),
                Err(error) if error.is_of_disk() => failed = failed.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        let mut others: Vec<WriteOthers> = Vec::new();
        let stored =
            self.encoder.as_ref().filter(|worker| worker.state.rank() == 0).and_then(EncoderWorker::stored_towers);
        if let Some(towers) = stored {
            let write = |shards: &Shards| -> WriteOthers {
                let (towers, shards) = (towers.clone(), *shards);
                Box::new(move |folder, same, stop| towers.write((folder, same), &shards, stop))
            };
            others.extend(self.exports.encoder.shards().map(write));
        }
        for (tensors, shards) in &self.exports.carried {
            let (tensors, shards) = (tensors.clone(), *shards);
            others.push(Box::new(move |folder, same, stop| tensors.write((folder, same), &shards, stop)));
        }
        for write in others.into_iter().filter(|_| failed.is_none()) {
            match to {
                Target::Folder(folder) => {
                    files.extend(write(folder, &SameFiles::default(), &AtomicBool::new(false))?);
                }
                Target::Memory(snapshot) => {
                    let same = snapshot.borrow().same().clone();
                    let write = move |folder: &Path, stop: &AtomicBool| write(folder, &same, stop);
                    snapshot.borrow_mut().also_write(Box::new(write));
                }
            }
        }
        failed.map_or(Ok(files), Err)
    }
}
