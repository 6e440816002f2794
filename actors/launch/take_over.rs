//! Going on in the place of a scheduler that has died.

use super::RunError;
use super::join::{Before, Returns};
use crate::journal::{Beginning, Heard, Journal, Past, Record};
use crate::scheduler::{Effect, Scheduler};
use loongforge_core::message::{ActorId, Command, StepId};
use loongforge_core::schedule::{CheckpointDraft, CoordinatorSpec, Input};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// What an actor was told last: more than can be on its way to it.
const SPARE: usize = 256;

/// Where a run's journal is.
#[derive(Clone, Debug)]
pub struct Keep {
    pub path: PathBuf,
    /// Goes on where a former scheduler died: the first step that nobody was told of.
    pub again: Option<StepId>,
}

/// The journal of a run, and its past where it has one.
pub(super) struct Kept {
    pub journal: Option<Rc<RefCell<Journal>>>,
    pub past: Option<Past>,
}

impl Kept {
    pub fn open(keep: Option<&Keep>, config: &str) -> Result<Self, RunError> {
        let Some(Keep { path, again }) = keep else { return Ok(Self { journal: None, past: None }) };
        let (journal, past) = match again {
            Some(_) => {
                let (journal, past) = Past::read(path, config)?;
                (journal, Some(past))
            }
            None => (Journal::create(path)?, None),
        };
        Ok(Self { journal: Some(Rc::new(RefCell::new(journal))), past })
    }

    pub fn write(&self, record: &Record) {
        if let Some(journal) = &self.journal {
            journal.borrow_mut().append(record);
        }
    }

    /// The run begins.
    pub fn begin(
        &self,
        config: &str,
        spec: &CoordinatorSpec,
        resume: Option<&Path>,
        rendezvous: &Path,
    ) -> Result<(), RunError> {
        // Not by postcard: it leaves out what is empty.
        let state = serde_json::to_string(&spec.state).expect("a state is JSON");
        let begin = Beginning {
            config: config.to_owned(),
            first_step: spec.first_step,
            state,
            resume: resume.map(Path::to_owned),
            rendezvous: rendezvous.to_owned(),
        };
        self.write(&Record::Began(begin));
        self.write(&Record::Life(1));
        Ok(())
    }

    /// The run is over, whatever came of it.
    pub fn end(&self) {
        self.write(&Record::Ended);
        if let Some(journal) = &self.journal {
            journal.borrow_mut().sync();
        }
    }
}

/// Has the scheduler hear everything again. Returns what is known of everyone's wires, and what is left to do.
pub(super) fn hear_again(
    scheduler: &mut Scheduler,
    past: &Past,
    first_unseen: StepId,
    queue: usize,
    returns: &Returns,
) -> (BTreeMap<ActorId, Before>, Vec<Effect>) {
    let mut told: BTreeMap<ActorId, (u64, VecDeque<Command>)> = BTreeMap::new();
    let mut tell = |actor: ActorId, command: Command| {
        let (count, last) = told.entry(actor).or_default();
        *count += 1;
        last.push_back(command);
        if last.len() > queue + SPARE {
            last.pop_front();
        }
    };
    let (mut left, mut drafts, mut retry) = (Vec::new(), Vec::new(), None);
    for heard in past.course.iter().cloned() {
        match heard {
            Heard::Told(actor, command) => tell(actor, command),
            Heard::Input(input) => {
                match &input {
                    Input::Published(step, to) | Input::PublishFailed(step, to, _) => {
                        drafts.retain(|draft: &CheckpointDraft| (draft.step, draft.to) != (*step, *to));
                    }
                    Input::RetrySave => retry = None,
                    _ => {}
                }
                for effect in scheduler.hear_again(input, first_unseen) {
                    match effect {
                        Effect::Send(actor, command) => tell(actor, command),
                        Effect::Evict(_) => {}
                        Effect::Publish(draft) => drafts.push(*draft),
                        Effect::RetrySave(after) => retry = Some(Effect::RetrySave(after)),
                        // Of a pause that is over nothing is heard when its time is up.
                        effect => left.push(effect),
                    }
                }
            }
        }
    }
    // One that was published before it was written down cannot be published again: it is saved anew.
    let drafts = drafts.into_iter().map(|draft| Effect::Publish(Box::new(draft)));
    left.extend(drafts.chain(retry));
    let said = past.said();
    let before = scheduler.alive().into_iter().filter_map(|actor| {
        let (number, _) = past.members.get(&actor)?;
        let (count, backlog) = told.remove(&actor).unwrap_or_default();
        let before = Before {
            number: *number,
            returned: Some(returns.expect_again(actor, *number, 0)),
            life: past.lives + 1,
            said: said.get(&actor).copied().unwrap_or_default(),
            told: count,
            backlog: backlog.into(),
            confirms: true,
        };
        Some((actor, before))
    });
    (before.collect(), left)
}
