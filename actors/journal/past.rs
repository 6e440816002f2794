//! What the records of a run come to.

use super::{Beginning, Journal, JournalError, Record};
use loongforge_core::message::{ActorId, Command, Event};
use loongforge_core::schedule::Input;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A run until its scheduler died.
#[derive(Debug)]
pub struct Past {
    pub begin: Beginning,
    /// Lives so far.
    pub lives: u64,
    /// Everyone who has had a place: its wire, and where its edges come in.
    pub members: BTreeMap<ActorId, (u128, PathBuf)>,
    /// What the coordinator heard, and what others said to actors between.
    pub course: Vec<Heard>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    Input(Input),
    Told(ActorId, Command),
}

impl Past {
    /// Of the journal of a run of this configuration.
    ///
    /// # Errors
    /// It is another one's, or there is none.
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
        let mut past = Self { begin, lives: 0, members: BTreeMap::new(), course: Vec::new() };
        for record in records {
            match record {
                Record::Life(life) => past.lives = life,
                Record::Member { actor, wire, edges } => drop(past.members.insert(actor, (wire, edges))),
                Record::Told { actor, command } => past.course.push(Heard::Told(actor, command)),
                Record::Input(input) => past.course.push(Heard::Input(input)),
                Record::Began(_) | Record::Ended => return None,
            }
        }
        Some(past)
    }

    /// Port of the store through which the members of its pools find each other, where it has one.
    pub fn store(&self) -> Option<u16> {
        self.begin.rendezvous.strip_prefix("tcp").ok()?.to_str()?.parse().ok()
    }

    /// Messages that each actor has said.
    pub fn said(&self) -> BTreeMap<ActorId, u64> {
        let mut said = BTreeMap::new();
        for heard in &self.course {
            if let Heard::Input(Input::Event(actor, event)) = heard
                && !matches!(event, Event::Trace(_))
            {
                *said.entry(*actor).or_default() += 1;
            }
        }
        said
    }
}

/// The past of a run of this configuration whose scheduler has died before its end, where everyone had a place. A journal
/// that another scheduler writes is none of those.
pub fn unfinished(path: &Path, config: &str) -> Option<Past> {
    path.exists().then_some(())?;
    let (_, past) = Past::read(path, config).ok()?;
    (past.lives > 0 && !past.course.is_empty()).then_some(past)
}

/// Whether there is such a past.
pub fn is_open(path: &Path, config: &str) -> bool {
    unfinished(path, config).is_some()
}
