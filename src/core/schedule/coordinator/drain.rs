//! Shutdown of a run: everyone is told to stop and waited for, and the root cause is determined.

use super::by_actor::ByActor;
use super::io::FailureKind;
use super::{Failure, Outcome};
use crate::message::ActorId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The actors that have ended, and the reason why the run ends.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Drain {
    /// The result, set when everyone is told to stop: how the run ends, or who failed first.
    result: Option<Result<Outcome, ActorId>>,
    /// The first known failure of each actor.
    failures: BTreeMap<ActorId, Cause>,
    /// Actors that have not ended.
    alive: ByActor<()>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "StoredCause", into = "StoredCause")]
struct Cause {
    text: String,
    kind: FailureKind,
    /// The peer whose end is the deeper cause; the actor itself: an unknown rank of its pool.
    lost: Option<ActorId>,
}

/// A cause in the journal.
#[derive(Serialize, Deserialize)]
struct StoredCause {
    text: String,
    is_loss: bool,
    is_numeric: bool,
    lost: Option<ActorId>,
}

impl From<StoredCause> for Cause {
    fn from(StoredCause { text, is_loss, is_numeric, lost }: StoredCause) -> Self {
        let kind = match (is_loss, is_numeric) {
            (true, _) => FailureKind::Loss,
            (false, true) => FailureKind::Numbers,
            (false, false) => FailureKind::Fault,
        };
        Self { text, kind, lost }
    }
}

impl From<Cause> for StoredCause {
    fn from(Cause { text, kind, lost }: Cause) -> Self {
        let (is_loss, is_numeric) = (kind == FailureKind::Loss, kind == FailureKind::Numbers);
        Self { text, is_loss, is_numeric, lost }
    }
}

impl Drain {
    /// Waits for these actors once the shutdown has begun.
    pub fn new(actors: impl Iterator<Item = ActorId>) -> Self {
        Self { alive: actors.collect(), ..Self::default() }
    }

    /// Adds an actor.
    pub fn join(&mut self, actor: ActorId) {
        self.alive.insert(actor, ());
    }

    /// Returns whether the shutdown has begun.
    pub fn has_begun(&self) -> bool {
        self.result.is_some()
    }

    /// Begins the shutdown with this outcome, unless it has begun: the first cause counts.
    pub fn begin(&mut self, outcome: Outcome) {
        self.result.get_or_insert(Ok(outcome));
    }

    /// Records a failure, which ends the run. A later failure may be a consequence: it counts only if the first one points to it.
    pub fn fail(&mut self, actor: ActorId, text: String, lost: Option<ActorId>) {
        self.failures.entry(actor).or_insert(Cause { text, kind: FailureKind::Fault, lost });
        self.result.get_or_insert(Err(actor));
    }

    /// Ends the run because of numbers that are not finite.
    pub fn fail_numbers(&mut self, text: String) {
        let cause = Cause { text, kind: FailureKind::Numbers, lost: None };
        self.failures.entry(ActorId::SCHEDULER).or_insert(cause);
        self.result.get_or_insert(Err(ActorId::SCHEDULER));
    }

    /// Records an actor that ended without a message.
    pub fn lose(&mut self, actor: ActorId, text: String) {
        self.lose_with(actor, text, None);
    }

    /// Records a missing actor, and the peer whose end is the deeper cause.
    pub fn lose_with(&mut self, actor: ActorId, text: String, lost: Option<ActorId>) {
        self.end(actor);
        self.failures.entry(actor).or_insert(Cause { text, kind: FailureKind::Loss, lost });
        self.result.get_or_insert(Err(actor));
    }

    /// Records that an actor has ended, whether or not it was told to.
    pub fn end(&mut self, actor: ActorId) {
        self.alive.remove(actor);
    }

    /// Returns whether an actor has ended, or never joined.
    pub fn has_ended(&self, actor: ActorId) -> bool {
        !self.alive.contains(actor)
    }

    /// Returns the actors that have not ended.
    pub fn alive(&self) -> impl Iterator<Item = ActorId> + '_ {
        self.alive.iter().map(|(actor, ())| actor)
    }

    /// Returns how the run ended, once all actors have.
    ///
    /// # Errors
    /// An actor failed: the first cause is told.
    pub fn finished(&self) -> Option<Result<Outcome, Failure>> {
        let result = self.result?;
        self.alive.is_empty().then(|| result.map_err(|first| self.first_cause(first)))
    }

    /// Follows "I lost X" to X, if X failed by itself: the messages may have arrived in any order.
    fn first_cause(&self, first: ActorId) -> Failure {
        let (mut actor, mut seen) = (first, BTreeSet::from([first]));
        while let Some(deeper) = self.deeper_cause(actor).filter(|deeper| seen.insert(*deeper)) {
            actor = deeper;
        }
        let Cause { text, kind, .. } = &self.failures[&actor];
        Failure { actor, cause: text.clone(), kind: *kind }
    }

    /// Returns whom a failed actor has lost, if that one has failed too. An actor that lacks a rank does not know which: it is one
    /// of its pool that failed for another reason, or else one that is gone.
    fn deeper_cause(&self, actor: ActorId) -> Option<ActorId> {
        let lost = self.failures[&actor].lost?;
        if lost != actor {
            return self.failures.contains_key(&lost).then_some(lost);
        }
        let is_of_pool = |other: ActorId| (other.role, other.pool) == (actor.role, actor.pool);
        let others = self.failures.iter().filter(|(other, cause)| is_of_pool(**other) && cause.lost != Some(**other));
        others.min_by_key(|(_, cause)| cause.kind == FailureKind::Loss).map(|(other, _)| *other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::PoolSizes;

    #[test]
    fn the_peer_that_was_lost_is_the_cause_even_when_it_is_heard_of_later() {
        let pools = PoolSizes::of_roles(1, 2, 1);
        let mut drain = Drain::new(pools.actors());
        drain.fail(ActorId::foundation(0), "lost encoder/1".into(), Some(ActorId::encoder(1)));
        drain.fail(ActorId::encoder(0), "lost foundation/0".into(), Some(ActorId::foundation(0)));
        drain.fail(ActorId::encoder(1), "out of memory".into(), None);
        drain.fail(ActorId::encoder(1), "connection closed".into(), None);
        assert!(drain.finished().is_none());
        pools.actors().for_each(|actor| drain.end(actor));
        let failure = drain.finished().unwrap().unwrap_err();
        assert_eq!(failure.to_string(), "encoder/1: out of memory");
    }

    #[test]
    fn a_rank_that_is_gone_or_has_failed_is_the_cause_where_others_lack_one() {
        let pools = PoolSizes::of_roles(1, 0, 4);
        let ends = |more: &[(u32, Option<&str>)]| {
            let mut drain = Drain::new(pools.actors());
            drain.fail(ActorId::foundation(0), "a collective failed".into(), Some(ActorId::foundation(0)));
            drain.fail(ActorId::foundation(1), "a collective failed".into(), Some(ActorId::foundation(1)));
            drain.lose(ActorId::data(0), "killed".into());
            for (rank, failed) in more {
                match failed {
                    Some(text) => drain.fail(ActorId::foundation(*rank), (*text).to_owned(), None),
                    None => drain.lose(ActorId::foundation(*rank), "killed".into()),
                }
            }
            pools.actors().for_each(|actor| drain.end(actor));
            let failure = drain.finished().unwrap().unwrap_err();
            (failure.to_string(), failure.is_loss())
        };
        assert_eq!(ends(&[]), ("foundation/0: a collective failed".to_owned(), false));
        assert_eq!(ends(&[(3, None)]), ("foundation/3: killed".to_owned(), true));
        assert_eq!(ends(&[(2, None), (3, Some("out of memory"))]), ("foundation/3: out of memory".to_owned(), false));
    }

    #[test]
    fn a_cause_is_stored_in_the_form_that_journals_have() {
        use FailureKind::{Fault, Loss, Numbers};
        for (kind, is_loss, is_numeric) in [(Fault, false, false), (Loss, true, false), (Numbers, false, true)] {
            let json = serde_json::json!({"text": "a", "is_loss": is_loss, "is_numeric": is_numeric, "lost": null});
            let cause: Cause = serde_json::from_value(json.clone()).unwrap();
            assert_eq!(cause.kind, kind);
            assert_eq!(serde_json::to_value(cause).unwrap(), json);
        }
    }

    #[test]
    fn peers_that_lost_each_other_are_no_endless_hunt() {
        let pools = PoolSizes::of_roles(0, 1, 1);
        let mut drain = Drain::new(pools.actors());
        drain.fail(ActorId::foundation(0), "lost encoder/0".into(), Some(ActorId::encoder(0)));
        drain.fail(ActorId::encoder(0), "lost foundation/0".into(), Some(ActorId::foundation(0)));
        pools.actors().for_each(|actor| drain.end(actor));
        assert_eq!(drain.finished().unwrap().unwrap_err().actor, ActorId::encoder(0));
    }
}
