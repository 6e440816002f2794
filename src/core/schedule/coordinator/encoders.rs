//! Tells who belongs to the encoder pool: members in the order of their ranks, those who come, those who go.

use super::CoordinatorSpec;
use crate::message::Epoch;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Epochs in a row in which the members, all alive, could not reduce; then it is no passing trouble.
const MAX_BROKEN: usize = 3;

/// The encoder pool of a run. Where encoders live in foundation actors it has no members and never changes.
#[derive(Serialize, Deserialize)]
pub(super) struct Encoders {
    /// Members may come and go.
    elastic: bool,
    /// The encoders' parameters change, so that a new member needs those of an old one.
    trained: bool,
    epoch: Epoch,
    /// Indices in the order of ranks.
    members: Vec<u32>,
    /// So many, the first ones, have the parameters of the step that is computed.
    num_current: usize,
    /// Built, and not yet members.
    ready: Vec<u32>,
    /// To be let go when it suits.
    retiring: BTreeSet<u32>,
    /// Gone, and not yet told to the others.
    left: Vec<u32>,
    /// The members were told to reduce the current step.
    reducing: bool,
    /// Members that could not.
    broken: BTreeSet<u32>,
    num_broken: usize,
}

/// Holds what an epoch begins with.
pub(super) struct NewEpoch {
    pub joined: Vec<u32>,
    /// Gone, or let go now.
    pub left: Vec<u32>,
    /// The encoders among those that live and are to be stopped.
    pub retired: Vec<u32>,
}

impl Encoders {
    pub fn new(spec: &CoordinatorSpec) -> Self {
        Self::of(spec.pools.encoder, spec.elastic && spec.pools.encoder > 0, spec.encoder_trained)
    }

    fn of(num_members: u32, elastic: bool, trained: bool) -> Self {
        Self {
            elastic,
            trained,
            epoch: Epoch(0),
            members: (0..num_members).collect(),
            num_current: num_members as usize,
            ready: Vec::new(),
            retiring: BTreeSet::new(),
            left: Vec::new(),
            reducing: false,
            broken: BTreeSet::new(),
            num_broken: 0,
        }
    }

    pub fn is_elastic(&self) -> bool {
        self.elastic
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub fn members(&self) -> &[u32] {
        &self.members
    }

    pub fn is_member(&self, index: u32) -> bool {
        // As long as nobody came or went, ranks are indices.
        self.members.get(index as usize) == Some(&index) || self.members.contains(&index)
    }

    /// Members that can be given units: they have the parameters, or parameters do not change.
    pub fn workers(&self) -> &[u32] {
        if self.trained { &self.members[..self.num_current] } else { &self.members }
    }

    pub fn num_current(&self) -> usize {
        self.workers().len()
    }

    /// Nobody is left who could compute, where somebody should be.
    pub fn is_paused(&self) -> bool {
        self.elastic && self.workers().is_empty()
    }

    /// The pool's trained parameters are nowhere any more.
    pub fn is_lost(&self) -> bool {
        self.trained && self.is_paused()
    }

    /// Built, and not yet a member.
    pub fn is_ready(&self, index: u32) -> bool {
        self.ready.contains(&index)
    }

    pub fn ready(&mut self, index: u32) {
        self.ready.push(index);
    }

    /// Lets one go when it suits, be it that it is ready; not the last member.
    pub fn retire(&mut self, index: u32) {
        let staying = self.workers().iter().filter(|member| !self.retiring.contains(member)).count();
        if !self.members.contains(&index) || staying > 1 {
            self.retiring.insert(index);
        }
    }

    /// Returns the encoder that is to be removed and can be: others may have died since that was wished.
    fn may_leave(&self) -> Option<u32> {
        let is_here = |index: &u32| self.ready.contains(index) || self.members.contains(index);
        let others_work = |index: &u32| self.workers().iter().any(|other| other != index);
        self.retiring.iter().copied().find(|index| is_here(index) && others_work(index))
    }

    /// Forgets one that is gone; true if it was a member.
    pub fn lose(&mut self, index: u32) -> bool {
        self.ready.retain(|&other| other != index);
        self.retiring.remove(&index);
        let Some(rank) = self.members.iter().position(|&member| member == index) else { return false };
        self.members.remove(rank);
        self.num_current -= usize::from(rank < self.num_current);
        self.left.push(index);
        true
    }

    pub fn is_reducing(&self) -> bool {
        self.reducing
    }

    pub fn begin_reducing(&mut self) {
        self.reducing = true;
    }

    /// A member could not reduce.
    ///
    /// # Errors
    /// So it was too often, though nobody has died.
    pub fn broke(&mut self, index: u32, error: &str) -> Result<(), String> {
        self.broken.insert(index);
        if self.num_broken >= MAX_BROKEN {
            return Err(format!("{error}; the pool could not reduce in {} epochs in a row", self.num_broken + 1));
        }
        Ok(())
    }

    pub fn is_broken(&self, index: u32) -> bool {
        self.broken.contains(&index)
    }

    /// The current step is decided: all members have the same parameters after it.
    pub fn decided(&mut self) {
        self.num_current = self.members.len();
        self.reducing = false;
        self.broken.clear();
        self.num_broken = 0;
    }

    /// Has nobody to tell of who has left yet.
    pub fn postpone(&mut self, left: Vec<u32>) {
        self.left = left;
    }

    /// Returns whether there must, or may without waste, be another epoch. `all_answered`: every member has reduced or
    /// could not.
    pub fn is_due(&self, all_answered: bool) -> bool {
        let broken = !self.broken.is_empty() && all_answered;
        let wished = !self.ready.is_empty() || self.may_leave().is_some();
        !self.left.is_empty() || broken || (wished && !self.reducing)
    }

    pub fn begin_epoch(&mut self) -> NewEpoch {
        self.epoch.0 += 1;
        self.num_broken += usize::from(self.left.is_empty() && !self.broken.is_empty());
        self.reducing = false;
        self.broken.clear();
        let (mut retired, mut left) = (Vec::new(), std::mem::take(&mut self.left));
        while let Some(index) = self.may_leave() {
            retired.push(index);
            // One that was not yet a member is not known to the others.
            if self.lose(index) {
                left.push(index);
            }
        }
        self.left.clear();
        let joined = std::mem::take(&mut self.ready);
        self.members.extend(&joined);
        NewEpoch { joined, left, retired }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_one_left_is_not_let_go_though_it_was_to_be() {
        for trained in [false, true] {
            let mut pool = Encoders::of(3, true, trained);
            pool.begin_reducing();
            [1, 2].into_iter().for_each(|index| pool.retire(index));
            assert!(!pool.is_due(false), "not while they reduce");
            pool.lose(0);
            let new = pool.begin_epoch();
            assert_eq!((new.left, new.retired, pool.members()), (vec![0, 1], vec![1], &[2][..]));
            assert!(!pool.is_due(false), "it stays, and no epoch follows the other");
            // Somebody else has come and has the parameters: now it may go.
            pool.ready(3);
            assert_eq!(pool.begin_epoch().joined, [3]);
            pool.decided();
            assert_eq!((pool.begin_epoch().retired, pool.members()), (vec![2], &[3][..]));
        }
    }

    #[test]
    fn who_is_let_go_before_it_is_ready_goes_when_it_is() {
        let mut pool = Encoders::of(1, true, true);
        pool.retire(1);
        assert!(!pool.is_due(false));
        pool.ready(1);
        assert!(pool.is_due(false));
        let new = pool.begin_epoch();
        assert_eq!((new.joined, new.left, new.retired, pool.members()), (vec![], vec![], vec![1], &[0][..]));
    }
}
