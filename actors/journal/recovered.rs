//! The state of a run recovered from its journal.

use super::{Beginning, Journal, JournalError, Record, Snapshot};
use loongforge_core::message::{ActorId, Command, PoolName, StepId};
use loongforge_core::schedule::{Coordinator, Input};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A run until its scheduler died.
#[derive(Debug)]
pub struct RecoveredRun {
    pub begin: Beginning,
    /// Number of lives so far.
    pub lives: u64,
    /// All actors that have had a place: the number of the wire, and the address of incoming edges.
    pub members: BTreeMap<ActorId, (u128, PathBuf)>,
    /// The encoder pools that continued without encoders; `None`: those that began so.
    pub reading: Option<BTreeSet<PoolName>>,
    /// The last snapshot in the journal.
    pub snapshot: Option<Snapshot>,
    /// The inputs that the coordinator received since then, and the messages that others sent to actors in between.
    pub course: Vec<ReplayEntry>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ReplayEntry {
    Input(Box<Input>),
    Told(ActorId, Command),
}

impl RecoveredRun {
    /// Reads the journal of a run with this config.
    ///
    /// # Errors
    /// Fails if it is another run's, or there is none.
    pub fn read(path: &Path, config: &str) -> Result<(Journal, Self), JournalError> {
        let (journal, records) = Journal::open(path)?;
        let past = Self::of(records).ok_or_else(|| JournalError::NotAJournal { path: path.to_owned() })?;
        match past.begin.config == config {
            true => Ok((journal, past)),
            false => Err(JournalError::OtherConfig { path: path.to_owned() }),
        }
    }

    fn of(records: Vec<Record>) -> Option<Self> {
        let mut records = records.into_iter();
        let Some(Record::Began(begin)) = records.next() else { return None };
        let (members, reading, snapshot, course) = (BTreeMap::new(), None, None, Vec::new());
        let mut past = Self { begin: *begin, lives: 0, members, reading, snapshot, course };
        for record in records {
            match record {
                Record::Life(life) => past.lives = life,
                Record::Member { actor, wire, edges } => drop(past.members.insert(actor, (wire, edges))),
                Record::Told { actor, command } => past.course.push(ReplayEntry::Told(actor, command)),
                Record::Reading(pools) => past.reading = Some(pools),
                Record::Input(input) => past.course.push(ReplayEntry::Input(Box::new(input))),
                Record::Snapshot(snapshot) => past.snapshot = Some(snapshot),
                Record::Began(_) | Record::Ended => return None,
            }
        }
        Some(past)
    }

    /// Returns the first step that the journal tells of: those before it were reported, and are not replayed.
    pub fn first_step(&self) -> StepId {
        let restore = |snapshot: &Snapshot| Coordinator::restore(&snapshot.coordinator, None).ok();
        let restored = self.snapshot.as_ref().and_then(restore);
        restored.map_or(self.begin.first_step, |coordinator| coordinator.current_step())
    }

    /// Returns the port of the rendezvous store of the members of its pools, if there is one.
    pub fn store(&self) -> Option<u16> {
        self.begin.rendezvous.strip_prefix("tcp").ok()?.to_str()?.parse().ok()
    }
}

/// Returns the past of a run with this config whose scheduler died before its end, after everyone had a place. A journal that
/// another scheduler is writing does not count.
pub fn unfinished(path: &Path, config: &str) -> Option<RecoveredRun> {
    path.exists().then_some(())?;
    let (_, past) = RecoveredRun::read(path, config).ok()?;
    (past.lives > 0 && (past.snapshot.is_some() || !past.course.is_empty())).then_some(past)
}

/// Returns whether there is such a past.
pub fn is_open(path: &Path, config: &str) -> bool {
    unfinished(path, config).is_some()
}
