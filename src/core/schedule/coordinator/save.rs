//! Checkpoints being written: which engines have, what they wrote, and what follows where one could not.
//!
//! Engines write in the background while steps go on, so several saves may be open. One that fails fails as a whole, once
//! everyone has answered: its folder goes, and a later step is saved in its place when the caller says that it is time.

use super::{CheckpointDraft, SchedulerState};
use crate::message::{ActorId, PoolName, SaveTo, SavedFile, StepId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Saves that are not published yet, and how those before went.
#[derive(Serialize, Deserialize)]
pub(super) struct Saves {
    open: BTreeMap<(StepId, SaveTo), Save>,
    /// The last step of which a checkpoint on the disk was begun and has not failed.
    last: Option<StepId>,
    /// Failures in a row.
    num_failures: usize,
    max_failures: usize,
    /// The next step that ends is to be saved, whatever its number.
    wanted: bool,
    /// One has failed: `wanted` from when the caller says so.
    waits: bool,
}

#[derive(Serialize, Deserialize)]
struct Save {
    dir: PathBuf,
    state: SchedulerState,
    /// Tells who is to answer yet, once for each time that it was told to write.
    awaited: Vec<ActorId>,
    /// Holds the actor of each encoder pool that writes what the pool has.
    writers: Vec<ActorId>,
    /// Frozen pools whose writer is gone and that have nobody else now: whoever comes first writes.
    vacant: Vec<PoolName>,
    files: BTreeMap<ActorId, Vec<SavedFile>>,
    failed: Option<Cause>,
}

#[derive(Serialize, Deserialize)]
enum Cause {
    /// It could not be written.
    Error(String),
    /// The writer is gone, and nobody else has these parameters any more.
    Lost(String),
}

/// A save of which all have answered.
pub(super) enum Ended {
    Written(Box<CheckpointDraft>),
    Failed(FailedSave),
}

/// A save that came to nothing. The checkpoints before it are as they were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedSave {
    pub step: StepId,
    pub to: SaveTo,
    /// To be removed.
    pub dir: PathBuf,
    pub error: String,
    /// Tells how many on the disk have failed in a row; 0: the writer was lost, which says nothing of the disk.
    pub num_failures: usize,
    /// Another one is to be begun when it suits: the caller answers [`Input::RetrySave`](super::Input::RetrySave).
    pub retries: bool,
}

impl Saves {
    /// Gives up after so many failures in a row.
    pub fn new(max_failures: usize) -> Self {
        Self { open: BTreeMap::new(), last: None, num_failures: 0, max_failures, wanted: false, waits: false }
    }

    /// Begins one; returns the folder to write into.
    pub fn begin(
        &mut self,
        (step, to): (StepId, SaveTo),
        state: SchedulerState,
        parent: &Path,
        awaited: Vec<ActorId>,
        writers: Vec<ActorId>,
    ) -> PathBuf {
        // Hidden and marked, so that nobody takes an unfinished checkpoint for one.
        let dir = parent.join(format!(".step-{:08}.tmp", step.0 + 1));
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

    /// Takes an engine's files.
    ///
    /// # Errors
    /// Nobody asked for it.
    pub fn saved(
        &mut self,
        id: (StepId, SaveTo),
        actor: ActorId,
        files: Vec<SavedFile>,
    ) -> Result<Option<Ended>, String> {
        self.answer(id, actor)?.files.entry(actor).or_default().extend(files);
        Ok(self.ended(id))
    }

    /// An engine could not write.
    ///
    /// # Errors
    /// Nobody asked for it.
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

    /// Its folder could not be made, or not be published.
    pub fn unpublished(&mut self, id: (StepId, SaveTo), error: String) -> Option<Ended> {
        self.open.get_mut(&id)?.failed.get_or_insert(Cause::Error(error));
        self.ended(id)
    }

    /// Goes on without an encoder that is gone. Its pool's writer is replaced by `writer` where that still `has` the parameters
    /// of the step: the saves and folders that it must write are returned; and what has ended now. A frozen pool that has
    /// nobody left is waited for: [`Saves::fill`].
    pub fn lose(
        &mut self,
        actor: ActorId,
        is_frozen: bool,
        writer: Option<ActorId>,
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
                    Some(next) => {
                        save.writers.push(next);
                        save.awaited.push(next);
                        again.push((id.0, id.1, save.dir.clone()));
                    }
                    None if is_frozen => save.vacant.push(actor.pool),
                    None => drop(save.failed.get_or_insert(Cause::Lost(format!("{actor} is gone, which wrote it")))),
                }
            }
            ended.extend(self.ended(id));
        }
        (again, ended)
    }

    /// Has `writer` write what its pool lacked somebody for: the saves and folders.
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

    /// Returns what has become of it once all have answered.
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

    /// Closes a save that has become a checkpoint; failures count from 0 again.
    pub fn published(&mut self, id: (StepId, SaveTo)) {
        self.open.remove(&id);
        if id.1 == SaveTo::Disk {
            self.num_failures = 0;
        }
    }

    /// Too many have failed in a row.
    pub fn is_hopeless(&self) -> bool {
        self.num_failures >= self.max_failures
    }

    /// The next step that ends is to be saved.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// It is time to try again, unless that has been done.
    pub fn retry(&mut self) {
        self.wanted |= std::mem::take(&mut self.waits);
    }

    /// Returns whether the next step is to be saved whatever its number: a checkpoint was asked for, or one has failed and is
    /// tried again.
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// One that failed is to be tried again, and it is not time yet.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// A checkpoint of this step or a later one is on the disk or on its way there.
    pub fn has_since(&self, step: StepId) -> bool {
        self.last >= Some(step)
    }

    /// A checkpoint of this step is on the disk or on its way there.
    pub fn has(&self, step: StepId) -> bool {
        self.last == Some(step)
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}
