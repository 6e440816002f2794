//! Messages in flight between a scheduler and its actors, as far as a successor must know them.

use crate::effect::Effect;
use loongforge_core::message::{ActorId, Command, Epoch, Event, PoolName};
use loongforge_core::schedule::{CheckpointDraft, Doubt, Input};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Messages in flight, tracked from the coordinator's inputs and outputs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutstandingMessages {
    accounts: BTreeMap<ActorId, Account>,
    drafts: Vec<CheckpointDraft>,
    doubts: Vec<Doubt>,
    paused: BTreeMap<PoolName, Epoch>,
    retry: Option<Duration>,
}

/// Messages of one actor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// Number of messages that the actor has sent (`said`) and received (`told`).
    pub said: u64,
    pub told: u64,
    /// The last messages sent to the actor, which it has not answered and may not have received.
    pub last: VecDeque<Command>,
}

impl OutstandingMessages {
    /// Records an input of the coordinator.
    pub fn heard(&mut self, input: &Input) {
        match input {
            Input::Event(actor, event) => self.accounts.entry(*actor).or_default().answered(event),
            Input::Gone(actor, _) => drop(self.accounts.remove(actor)),
            Input::Published(step, to) | Input::PublishFailed(step, to, _) => {
                self.drafts.retain(|draft| (draft.step, draft.to) != (*step, *to));
            }
            Input::Doubted(doubt) => self.doubts.retain(|other| other != doubt),
            Input::GraceOver(pool, epoch) => self.paused.retain(|name, paused| (*name, *paused) != (*pool, *epoch)),
            Input::RetrySave => self.retry = None,
            _ => {}
        }
    }

    /// Records an output of the coordinator.
    pub fn follows(&mut self, effect: &Effect) {
        match effect {
            Effect::Send(actor, command) => self.told(*actor, command),
            Effect::Evict(actor) => drop(self.accounts.remove(actor)),
            Effect::Paused(pool, epoch) => drop(self.paused.insert(*pool, *epoch)),
            Effect::Doubt(doubt) => self.doubts.push(doubt.clone()),
            Effect::Publish(draft) => self.drafts.push((**draft).clone()),
            Effect::RetrySave(after) => self.retry = Some(*after),
            Effect::Stopping(_) | Effect::Finished(_) => {}
        }
    }

    /// Records a command sent to an actor.
    pub fn told(&mut self, actor: ActorId, command: &Command) {
        let account = self.accounts.entry(actor).or_default();
        account.told += 1;
        account.last.push_back(command.clone());
    }

    /// Returns the unanswered messages to an actor, and the number of all messages to it.
    pub fn of(&self, actor: ActorId) -> Account {
        self.accounts.get(&actor).cloned().unwrap_or_default()
    }

    /// Returns the effects that are still to be carried out, besides messages. A pause that is over has no effect when its time is up;
    /// and a checkpoint that was published before that was written down cannot be published again: it is saved anew.
    pub fn left(&self) -> Vec<Effect> {
        let drafts = self.drafts.iter().map(|draft| Effect::Publish(Box::new(draft.clone())));
        let doubts = self.doubts.iter().cloned().map(Effect::Doubt);
        let paused = self.paused.iter().map(|(&pool, &epoch)| Effect::Paused(pool, epoch));
        let waits = paused.chain(self.retry.map(Effect::RetrySave));
        let stops = |account: &Account| account.last.contains(&Command::Stop);
        let stopping = self.accounts.iter().filter(|(_, account)| stops(account));
        let stopping = stopping.map(|(&actor, _)| Effect::Stopping(actor));
        drafts.chain(doubts).chain(waits).chain(stopping).collect()
    }
}

impl Account {
    /// Records an answer: the actor has received the message that it answers, and all earlier ones.
    fn answered(&mut self, event: &Event) {
        self.said += 1;
        let is_answered = |command: &Command| match (event, command) {
            (Event::Applied { step }, Command::Commit(commit)) => commit.step == *step,
            (Event::Applied { step }, Command::Abort { step: aborted }) => aborted == step,
            (Event::Measured { .. }, Command::Read { .. } | Command::ReadAgain { .. }) => true,
            _ => false,
        };
        if let Some(place) = self.last.iter().position(is_answered) {
            self.last.drain(..=place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::message::StepId;

    #[test]
    fn what_was_answered_and_what_was_told_before_it_needs_not_be_said_again() {
        let (mut outstanding, me) = (OutstandingMessages::default(), ActorId::encoder(1));
        let abort = |step| Command::Abort { step: StepId(step) };
        let reduce = |step| Command::Reduce { step: StepId(step), epoch: Epoch(0) };
        [reduce(0), abort(0), reduce(1), abort(1)].iter().for_each(|command| outstanding.told(me, command));
        outstanding.heard(&Input::Event(me, Event::Ready));
        assert_eq!(outstanding.of(me).last.len(), 4, "it has answered nothing");
        outstanding.heard(&Input::Event(me, Event::Applied { step: StepId(0) }));
        assert_eq!(outstanding.of(me), Account { said: 2, told: 4, last: [reduce(1), abort(1)].into() });
        outstanding.heard(&Input::Gone(me, "killed".into()));
        assert_eq!(outstanding.of(me), Account::default());
    }
}
