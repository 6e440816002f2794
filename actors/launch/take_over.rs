//! Takes over from a scheduler that died.

use super::RunError;
use super::join::{Before, ReconnectRegistry};
use crate::effect::Effect;
use crate::journal::{Beginning, Journal, JournalError, Record, RecoveredRun, ReplayEntry};
use crate::scheduler::{Observer, Scheduler};
use loongforge_core::message::{ActorId, StepId};
use loongforge_core::schedule::{Coordinator, CoordinatorSpec};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Location and settings of a run's journal.
#[derive(Clone, Debug)]
pub struct JournalSpec {
    pub path: PathBuf,
    /// The first step that nobody was told of, if this scheduler takes over from one that died.
    pub take_over_at: Option<StepId>,
    /// Bytes written since the last truncation above which the journal is truncated; 0: after every step.
    pub cut_after: u64,
}

impl JournalSpec {
    /// Size of a journal that can be read again in a fraction of a second.
    pub const CUT_AFTER: u64 = 4 << 20;
}

/// The journal of a run, and its past if it has one.
pub(super) struct RunJournal {
    /// The file, where the run has one.
    pub file: Option<Rc<RefCell<Journal>>>,
    pub past: Option<RecoveredRun>,
}

impl RunJournal {
    /// Begins a journal, or reads that of a scheduler which is gone, for the run of this config; no spec: there is none.
    ///
    /// # Errors
    /// The journal cannot be made, or is not one of this run.
    pub fn open(spec: Option<&JournalSpec>, config: &str) -> Result<Self, RunError> {
        let Some(JournalSpec { path, take_over_at, .. }) = spec else { return Ok(Self { file: None, past: None }) };
        let (journal, past) = match take_over_at {
            Some(_) => {
                let (journal, past) = RecoveredRun::read(path, config)?;
                (journal, Some(past))
            }
            None => (Journal::create(path)?, None),
        };
        Ok(Self { file: Some(Rc::new(RefCell::new(journal))), past })
    }

    /// Appends a record, if there is a journal.
    pub fn write(&self, record: &Record) {
        if let Some(file) = &self.file {
            file.borrow_mut().append(record);
        }
    }

    /// Records that the run begins.
    pub fn begin(&self, config: &str, spec: &CoordinatorSpec, resume: Option<&Path>, rendezvous: &Path) {
        let begin = Beginning {
            config: config.to_owned(),
            first_step: spec.first_step,
            state: spec.state.clone(),
            resume: resume.map(Path::to_owned),
            is_kept: spec.is_kept,
            rendezvous: rendezvous.to_owned(),
        };
        self.write(&Record::Began(Box::new(begin)));
        self.write(&Record::Life(1));
    }

    /// Records that the run is over, whatever its result.
    pub fn end(&self) {
        self.write(&Record::Ended);
        if let Some(file) = &self.file {
            file.borrow_mut().sync();
        }
    }
}

/// A scheduler that has taken every input of the one that died, what is known of everyone's wires, and what is left to do.
pub(super) type Successor = (Scheduler, BTreeMap<ActorId, Before>, Vec<Effect>);

/// Creates the scheduler that takes over from one that died, from its journal.
///
/// # Errors
/// Fails if the journal has another version.
pub(super) fn replay(
    past: &RecoveredRun,
    journal: &JournalSpec,
    spec: CoordinatorSpec,
    observer: Box<dyn Observer>,
    returns: &ReconnectRegistry,
) -> Result<Successor, RunError> {
    let mut scheduler = match &past.snapshot {
        Some(snapshot) => {
            let wrong = |_| JournalError::NotAJournal { path: journal.path.clone() };
            let coordinator = Coordinator::restore(&snapshot.coordinator, spec.snapshots).map_err(wrong)?;
            Scheduler::new(coordinator, observer).with_outstanding(snapshot.outstanding.clone())
        }
        None => Scheduler::new(Coordinator::new(spec), observer),
    };
    let mut end = Vec::new();
    for heard in past.course.iter().cloned() {
        match heard {
            ReplayEntry::Told(actor, command) => scheduler.replay_told(actor, &command),
            ReplayEntry::Input(input) => {
                let effects = scheduler.replay(*input, journal.take_over_at.unwrap_or(StepId(0)));
                end.extend(effects.into_iter().filter(|effect| matches!(effect, Effect::Finished(_))));
            }
        }
    }
    let mut left = scheduler.outstanding().left();
    left.extend(end);
    let before = scheduler.alive().into_iter().filter_map(|actor| {
        let (number, _) = past.members.get(&actor)?;
        let account = scheduler.outstanding().of(actor);
        let before = Before {
            number: *number,
            returned: Some(returns.expect_again(actor, *number)),
            life: past.lives + 1,
            said: account.said,
            told: account.told,
            backlog: account.last.into(),
            confirms: true,
        };
        Some((actor, before))
    });
    let before = before.collect();
    Ok((scheduler, before, left))
}
