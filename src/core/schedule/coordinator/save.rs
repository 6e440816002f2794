//! Checkpoints being written: which engines have finished, what they wrote, and what follows if one fails.
//!
//! Engines write in the background while steps continue, so several saves may be open. A save fails as a whole, once all have
//! answered: its folder is removed, and a later step is saved instead when the caller says so.

use super::{CheckpointDraft, SchedulerState};
use crate::files::step_name;
use crate::message::{ActorId, PoolName, SaveTo, SavedFile, StepId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Maximum number of checkpoints that are written and not published: one on its way, and one that waits.
const MAX_UNPUBLISHED: usize = 2;

/// Saves that are not published yet, and the results of earlier ones.
#[derive(Serialize, Deserialize)]
pub(super) struct Saves {
    open: BTreeMap<(StepId, SaveTo), Save>,
    /// The last step of which a checkpoint on the disk was begun and has not failed.
    last: Option<StepId>,
    /// Number of consecutive failures.
    num_failures: usize,
    max_failures: usize,
    /// True if the next step is saved, whatever its number.
    wanted: bool,
    /// True if a failed save is to be retried: `wanted` is set when the caller says so.
    waits: bool,
    /// The last step that was held back because too many checkpoints were not published.
    held: Option<StepId>,
}

#[derive(Serialize, Deserialize)]
struct Save {
    dir: PathBuf,
    state: SchedulerState,
    /// Actors that have not answered, once for each time that they were told to write.
    awaited: Vec<ActorId>,
    /// The actor of each encoder pool that writes the pool's files.
    writers: Vec<ActorId>,
    /// Pools without a writer: the first encoder of the next epoch writes. Where there was none left, they are frozen.
    vacant: Vec<PoolName>,
    files: BTreeMap<ActorId, Vec<SavedFile>>,
    failed: Option<Cause>,
}

#[derive(Serialize, Deserialize)]
enum Cause {
    /// The files could not be written.
    Error(String),
    /// The writer is gone, and no other actor has these parameters.
    Lost(String),
}

/// A save that all actors have answered.
pub(super) enum Ended {
    Written(Box<CheckpointDraft>),
    Failed(FailedSave),
}

/// A failed save. Earlier checkpoints are unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedSave {
    pub step: StepId,
    pub to: SaveTo,
    /// The folder of the failed save, to be removed.
    pub dir: PathBuf,
    pub error: String,
    /// Number of consecutive failures of checkpoints on disk; 0: the writer was lost, which says nothing about the disk.
    pub num_failures: usize,
    /// True if it is tried again later: the caller answers [`Input::RetrySave`](super::Input::RetrySave).
    pub retries: bool,
}

impl Saves {
    /// Creates the tracker, which gives up after this many consecutive failures.
    pub fn new(max_failures: usize) -> Self {
        Self {
            open: BTreeMap::new(),
            last: None,
            num_failures: 0,
            max_failures,
            wanted: false,
            waits: false,
            held: None,
        }
    }

    /// Begins a save; returns the folder to write into.
    pub fn begin(
        &mut self,
        (step, to): (StepId, SaveTo),
        state: SchedulerState,
        parent: &Path,
        awaited: Vec<ActorId>,
        writers: Vec<ActorId>,
    ) -> PathBuf {
        // Hidden and marked, so that nobody takes an unfinished checkpoint for one.
        let dir = parent.join(format!(".{}.tmp", step_name(step.0 + 1)));
        let save = Save {
            dir: dir.clone(),
            state,
            awaited,
            writers,
            vacant: Vec::new(),
            files: BTreeMap::new(),
            failed: None,
        };
        let before = self.open.insert((step, to), save);
        assert!(before.is_none(), "step {step} is saved once");
        if to == SaveTo::Disk {
            (self.last, self.wanted, self.waits) = (Some(step), false, false);
        }
        dir
    }

    /// Records an engine's files.
    ///
    /// # Errors
    /// Fails if they were not requested.
    pub fn saved(
        &mut self,
        id: (StepId, SaveTo),
        actor: ActorId,
        files: Vec<SavedFile>,
    ) -> Result<Option<Ended>, String> {
        self.answer(id, actor)?.files.entry(actor).or_default().extend(files);
        Ok(self.ended(id))
    }

    /// Records that an engine could not write.
    ///
    /// # Errors
    /// Fails if no save was requested.
    pub fn failed(&mut self, id: (StepId, SaveTo), actor: ActorId, error: &str) -> Result<Option<Ended>, String> {
        let save = self.answer(id, actor)?;
        save.failed.get_or_insert(Cause::Error(format!("{actor}: {error}")));
        Ok(self.ended(id))
    }

    fn answer(&mut self, id: (StepId, SaveTo), actor: ActorId) -> Result<&mut Save, String> {
        let unasked = || format!("saved step {}, which was not requested", id.0);
        let save = self.open.get_mut(&id).ok_or_else(unasked)?;
        let answer = save.awaited.iter().position(|&awaited| awaited == actor).ok_or_else(unasked)?;
        save.awaited.remove(answer);
        Ok(save)
    }

    /// Records that a folder could not be created or published.
    pub fn unpublished(&mut self, id: (StepId, SaveTo), error: String) -> Option<Ended> {
        self.open.get_mut(&id)?.failed.get_or_insert(Cause::Error(error));
        self.ended(id)
    }

    /// Goes on without an encoder that is gone. Its pool's writer is replaced by `writer` where that still `has` the parameters
    /// of the step: the saves and folders that it must write are returned; and what has ended now. [`Saves::fill`] follows for a
    /// frozen pool that has nobody left, and where the writer does not know yet that it is the first (`is_told`).
    pub fn lose(
        &mut self,
        actor: ActorId,
        is_frozen: bool,
        (writer, is_told): (Option<ActorId>, bool),
        has: impl Fn(StepId) -> bool,
    ) -> (Vec<(StepId, SaveTo, PathBuf)>, Vec<Ended>) {
        let (mut again, mut ended) = (Vec::new(), Vec::new());
        for id in self.open.keys().copied().collect::<Vec<_>>() {
            let save = self.open.get_mut(&id).expect("it is one of them");
            if !save.awaited.contains(&actor) {
                continue;
            }
            save.awaited.retain(|&awaited| awaited != actor);
            if let Some(place) = save.writers.iter().position(|writer| *writer == actor) {
                save.writers.remove(place);
                match writer.filter(|_| has(id.0)) {
                    Some(next) if is_told => {
                        save.writers.push(next);
                        save.awaited.push(next);
                        again.push((id.0, id.1, save.dir.clone()));
                    }
                    None if !is_frozen => {
                        let cause = Cause::Lost(format!("{actor}, which was writing it, is lost"));
                        save.failed.get_or_insert(cause);
                    }
                    _ => save.vacant.push(actor.pool),
                }
            }
            ended.extend(self.ended(id));
        }
        (again, ended)
    }

    /// Makes `writer` write what its pool had no writer for; returns the saves and folders.
    pub fn fill(&mut self, writer: ActorId) -> Vec<(StepId, SaveTo, PathBuf)> {
        let vacant = self.open.iter_mut().filter(|(_, save)| save.vacant.contains(&writer.pool));
        let fill = |(&(step, to), save): (&(StepId, SaveTo), &mut Save)| {
            save.vacant.retain(|pool| *pool != writer.pool);
            save.writers.push(writer);
            save.awaited.push(writer);
            (step, to, save.dir.clone())
        };
        vacant.map(fill).collect()
    }

    /// Returns the actors of a pool that have not answered a save.
    pub fn awaited_of(&self, pool: PoolName) -> BTreeSet<u32> {
        let awaited = self.open.values().flat_map(|save| &save.awaited);
        awaited.filter(|actor| actor.pool == pool).map(|actor| actor.index).collect()
    }

    /// Returns whether an encoder has not written its pool's files of a save.
    pub fn lacks_files_of(&self, encoder: ActorId) -> bool {
        self.open.values().any(|save| save.writers.contains(&encoder) && save.awaited.contains(&encoder))
    }

    /// Returns whether a save waits for an encoder that is to write.
    pub fn lacks_writer(&self) -> bool {
        self.open.values().any(|save| !save.vacant.is_empty())
    }

    /// Returns the result of a save once all actors have answered.
    fn ended(&mut self, id: (StepId, SaveTo)) -> Option<Ended> {
        let save = self.open.get_mut(&id).filter(|save| save.awaited.is_empty() && save.vacant.is_empty())?;
        let (step, to) = id;
        if save.failed.is_none() {
            let draft = CheckpointDraft {
                step,
                to,
                dir: save.dir.clone(),
                state: std::mem::take(&mut save.state),
                files: std::mem::take(&mut save.files).into_values().flatten().collect(),
            };
            return Some(Ended::Written(Box::new(draft)));
        }
        let save = self.open.remove(&id)?;
        let (error, is_lost) = match save.failed? {
            Cause::Error(error) => (error, false),
            Cause::Lost(error) => (error, true),
        };
        // One that was begun later stands in for it already.
        let retries = to == SaveTo::Disk && self.last == Some(step);
        if retries {
            self.last = None;
            self.waits = true;
        }
        if to == SaveTo::Disk && !is_lost {
            self.num_failures += 1;
        }
        let num_failures = if is_lost || to == SaveTo::Memory { 0 } else { self.num_failures };
        Some(Ended::Failed(FailedSave { step, to, dir: save.dir, error, num_failures, retries }))
    }

    /// Closes a save that became a checkpoint, and resets the count of failures.
    pub fn published(&mut self, id: (StepId, SaveTo)) {
        self.open.remove(&id);
        if id.1 == SaveTo::Disk {
            self.num_failures = 0;
        }
    }

    /// Returns whether too many saves have failed in a row.
    pub fn is_hopeless(&self) -> bool {
        self.num_failures >= self.max_failures
    }

    /// Requests that the next step be saved.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// Starts the retry now, unless that has been done.
    pub fn retry(&mut self) {
        self.wanted |= std::mem::take(&mut self.waits);
    }

    /// Returns whether the next step is saved whatever its number: a checkpoint was requested, or a failed one is retried.
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Returns whether a failed save is to be retried later.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Returns whether a checkpoint of this step or a later one is on disk or being written.
    pub fn has_since(&self, step: StepId) -> bool {
        self.last >= Some(step)
    }

    /// Returns whether a checkpoint of this step is on disk or being written.
    pub fn has(&self, step: StepId) -> bool {
        self.last == Some(step)
    }

    /// Returns whether as many checkpoints as may wait are written and not published.
    pub fn is_full(&self) -> bool {
        let is_written = |save: &&Save| save.awaited.is_empty() && save.vacant.is_empty();
        self.open.values().filter(is_written).count() >= MAX_UNPUBLISHED
    }

    /// Holds a step back until checkpoints are published; returns whether that is new.
    pub fn hold(&mut self, step: StepId) -> bool {
        self.held.replace(step) != Some(step)
    }

    /// Returns whether no checkpoint is being written.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}
