//! Who belongs to the encoder pool: members in the order of their ranks, those who come, those who go.

use super::CoordinatorSpec;
use crate::message::Epoch;
use std::collections::BTreeSet;

/// Epochs in a row in which the members, all alive, could not reduce; then it is no passing trouble.
const MAX_BROKEN: usize = 3;

/// The encoder pool of a run. Where encoders live in foundation actors it has no members and never changes.
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

/// What an epoch begins with.
pub(super) struct NewEpoch {
    pub joined: Vec<u32>,
    /// Gone, or let go now.
    pub left: Vec<u32>,
    /// Of those, the ones that live and are to be stopped.
    pub retired: Vec<u32>,
}

impl Encoders {
    pub fn new(spec: &CoordinatorSpec) -> Self {
        Self {
            elastic: spec.elastic && spec.pools.encoder > 0,
            trained: spec.encoder_trained,
            epoch: Epoch(0),
            members: (0..spec.pools.encoder).collect(),
            num_current: spec.pools.encoder as usize,
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

    /// Lets a member go when it suits; not the last one.
    pub fn retire(&mut self, index: u32) {
        let staying = self.workers().iter().filter(|member| !self.retiring.contains(member)).count();
        if self.ready.contains(&index) || (self.members.contains(&index) && staying > 1) {
            self.retiring.insert(index);
        }
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

    /// Whether there must, or may without waste, be another epoch. `all_answered`: every member has reduced or could not.
    pub fn is_due(&self, all_answered: bool) -> bool {
        let broken = !self.broken.is_empty() && all_answered;
        let wished = !self.ready.is_empty() || !self.retiring.is_empty();
        !self.left.is_empty() || broken || (wished && !self.reducing)
    }

    pub fn begin_epoch(&mut self) -> NewEpoch {
        self.epoch.0 += 1;
        self.num_broken += usize::from(self.left.is_empty() && !self.broken.is_empty());
        self.reducing = false;
        self.broken.clear();
        let retired: Vec<u32> = std::mem::take(&mut self.retiring).into_iter().collect();
        let mut left = std::mem::take(&mut self.left);
        for &index in &retired {
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
