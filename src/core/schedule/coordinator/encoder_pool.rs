//! Membership of encoder pools: members in order of rank, those that join, and those that leave.

use super::speeds::Speeds;
use super::{CoordinatorSpec, EncoderPoolSpec};
use crate::message::{ActorId, Epoch, PoolName, Replica, Role, Unit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Number of consecutive epochs in which the living members could not reduce, after which the fault counts as permanent.
const MAX_BROKEN: usize = 3;

/// The encoder pools of a run, in order of their names; none if encoders run in foundation actors.
#[derive(Serialize, Deserialize)]
pub(super) struct EncoderPools(Vec<EncoderPool>);

/// An encoder pool.
#[derive(Serialize, Deserialize)]
pub(super) struct EncoderPool {
    pub name: PoolName,
    pub speeds: Speeds,
    /// Encoders that have left without the others being told yet, with the reason.
    pub lost: Vec<(ActorId, String)>,
    /// The epoch whose `Output::Paused` was sent, while the pool has no encoders.
    pub paused: Option<Epoch>,
    /// True if members may join and leave.
    elastic: bool,
    /// True if the encoders' parameters change, so that a new member needs those of an old one.
    trained: bool,
    /// True if members may only read features.
    cached: bool,
    epoch: Epoch,
    /// Indices in order of rank.
    members: Vec<u32>,
    /// Number of members, counted from the first, that have the parameters of the current step.
    num_current: usize,
    /// Encoders that are built but not yet members.
    ready: Vec<u32>,
    /// Encoders to remove at the next opportunity.
    retiring: BTreeSet<u32>,
    /// Those among them whose processes were asked to stop, and may soon be killed.
    asked: BTreeSet<u32>,
    /// Encoders that have not answered a save: they stay until then.
    writing: BTreeSet<u32>,
    /// Encoders that are gone, without the others being told yet.
    left: Vec<u32>,
    /// True if the members were told to reduce the current step.
    reducing: bool,
    /// Members that could not reduce.
    broken: BTreeSet<u32>,
    num_broken: usize,
}

/// The start of an epoch.
pub(super) struct NewEpoch {
    pub joined: Vec<u32>,
    /// Encoders that are gone, or removed now.
    pub left: Vec<u32>,
    /// The encoders among those that are alive and must be stopped.
    pub retired: Vec<u32>,
}

impl EncoderPools {
    /// Starts with the members that the spec gives for each pool.
    pub fn new(spec: &CoordinatorSpec) -> Self {
        let pool = |pool: &EncoderPoolSpec| EncoderPool::of(pool, spec.pools.of(pool.name));
        Self(spec.encoders.iter().map(pool).collect())
    }

    /// Returns the pools in their order in the run.
    pub fn iter(&self) -> impl Iterator<Item = &EncoderPool> {
        self.0.iter()
    }

    /// Returns the pools in their order in the run, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut EncoderPool> {
        self.0.iter_mut()
    }

    /// Returns a pool by its name; `None` if the run has no such encoder pool.
    pub fn get(&self, name: PoolName) -> Option<&EncoderPool> {
        self.0.iter().find(|pool| pool.name == name)
    }

    /// Returns a pool by its name, to change; `None` if the run has no such encoder pool.
    pub fn get_mut(&mut self, name: PoolName) -> Option<&mut EncoderPool> {
        self.0.iter_mut().find(|pool| pool.name == name)
    }

    /// Returns the pool of an encoder.
    ///
    /// # Panics
    /// The run has no such pool: of that the caller has made sure.
    pub fn of(&mut self, encoder: ActorId) -> &mut EncoderPool {
        self.get_mut(encoder.pool).unwrap_or_else(|| panic!("{encoder} belongs to no pool of this run"))
    }

    /// Returns whether this is an encoder that is a member of its pool.
    pub fn is_member(&self, actor: ActorId) -> bool {
        actor.role == Role::Encoder && self.get(actor.pool).is_some_and(|pool| pool.is_member(actor.index))
    }

    /// Returns whether this is an encoder of a pool that may lose it.
    pub fn is_elastic(&self, actor: ActorId) -> bool {
        actor.role == Role::Encoder && self.get(actor.pool).is_some_and(EncoderPool::is_elastic)
    }

    /// Returns all members, pool by pool, in order of rank.
    pub fn members(&self) -> impl Iterator<Item = ActorId> {
        self.0.iter().flat_map(EncoderPool::actors)
    }

    /// Returns the number of members of all pools together.
    pub fn num_members(&self) -> usize {
        self.0.iter().map(|pool| pool.members.len()).sum()
    }

    /// Returns whether some pool has no encoder left that could compute.
    pub fn is_paused(&self) -> bool {
        self.0.iter().any(EncoderPool::is_paused)
    }
}

impl EncoderPool {
    fn of(spec: &EncoderPoolSpec, num_members: u32) -> Self {
        let EncoderPoolSpec { name, elastic, trained, cached, reads: _ } = *spec;
        Self {
            name,
            speeds: Speeds::new(name),
            lost: Vec::new(),
            paused: None,
            elastic,
            trained,
            cached,
            epoch: Epoch(0),
            members: (0..num_members).collect(),
            num_current: num_members as usize,
            ready: Vec::new(),
            retiring: BTreeSet::new(),
            asked: BTreeSet::new(),
            writing: BTreeSet::new(),
            left: Vec::new(),
            reducing: false,
            broken: BTreeSet::new(),
            num_broken: 0,
        }
    }

    /// Returns the id of encoder `index` of this pool, whether or not it is a member.
    pub fn actor(&self, index: u32) -> ActorId {
        ActorId::encoder_of(self.name, index)
    }

    /// Returns the members in order of rank.
    pub fn actors(&self) -> impl Iterator<Item = ActorId> + use<'_> {
        self.members.iter().map(|&index| self.actor(index))
    }

    /// Returns the first member, which writes the pool's checkpoint files.
    pub fn writer(&self) -> Option<ActorId> {
        self.actors().next()
    }

    /// Returns whether the pool has parameters to train.
    pub fn is_trained(&self) -> bool {
        self.trained
    }

    /// Returns whether members may join, leave or die during the run.
    pub fn is_elastic(&self) -> bool {
        self.elastic
    }

    /// Returns whether features are cached in a folder, so that a member may be one that only reads them.
    pub fn is_cached(&self) -> bool {
        self.cached
    }

    /// Returns whether the unit belongs to this pool.
    pub fn has(&self, unit: &Unit) -> bool {
        unit.encoder.pool == self.name
    }

    /// Returns the replica of this pool that computes what the plan assigned to replica `planned`, `turn` places further on;
    /// without workers, the planned one.
    pub fn worker(&self, planned: u32, turn: usize) -> Replica {
        let workers = self.workers();
        let index = workers.get((planned as usize + turn) % workers.len().max(1)).copied();
        Replica::new(self.name, index.unwrap_or(planned))
    }

    /// Returns the current epoch, which changes with the members.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the indices of the members, in order of rank.
    pub fn members(&self) -> &[u32] {
        &self.members
    }

    /// Returns whether an encoder takes part in the pool's reductions.
    pub fn is_member(&self, index: u32) -> bool {
        // As long as nobody came or went, ranks are indices.
        self.members.get(index as usize) == Some(&index) || self.members.contains(&index)
    }

    /// Returns the members that can be assigned units: they have the parameters, or parameters do not change.
    pub fn workers(&self) -> &[u32] {
        if self.trained { &self.members[..self.num_current] } else { &self.members }
    }

    /// Returns the number of encoders that units may be assigned to.
    pub fn num_current(&self) -> usize {
        self.workers().len()
    }

    /// Returns whether no encoder is left that could compute, although one is needed.
    pub fn is_paused(&self) -> bool {
        self.elastic && self.workers().is_empty()
    }

    /// Returns whether no encoder has the pool's trained parameters any more.
    pub fn is_lost(&self) -> bool {
        self.trained && self.is_paused()
    }

    /// Returns whether an encoder is built but not yet a member.
    pub fn is_ready(&self, index: u32) -> bool {
        self.ready.contains(&index)
    }

    /// Records that a joining encoder has been built: it is a member from the next epoch on.
    pub fn ready(&mut self, index: u32) {
        self.ready.push(index);
    }

    /// Marks an encoder for removal at the next opportunity.
    pub fn retire(&mut self, index: u32) {
        self.retiring.insert(index);
    }

    /// Marks an encoder for removal whose process was asked to stop.
    pub fn ask(&mut self, index: u32) {
        self.asked.insert(index);
        self.retire(index);
    }

    /// Returns whether the pool's trained parameters are about to be lost: all encoders that have them are to leave, and the process of
    /// one was asked to stop, which cannot stay for want of another.
    pub fn is_ending(&self) -> bool {
        let is_asked = |index: &u32| self.asked.contains(index);
        self.trained && !self.asked.is_empty() && !self.has_stayers() && self.workers().iter().any(is_asked)
    }

    /// Returns the encoders whose removal was requested and is still to come.
    pub fn retiring(&self) -> impl Iterator<Item = ActorId> + use<'_> {
        self.retiring.iter().map(|&index| self.actor(index))
    }

    /// Returns whether the removal of an encoder was requested and is still to come.
    pub fn is_to_release(&self) -> bool {
        !self.retiring.is_empty()
    }

    /// Returns whether an encoder that can compute is not to be removed.
    fn has_stayers(&self) -> bool {
        self.workers().iter().any(|index| !self.retiring.contains(index))
    }

    /// Sets the encoders that have not answered a save. They are not removed, since their parts of checkpoints would be lost.
    pub fn keep(&mut self, writing: BTreeSet<u32>) {
        self.writing = writing;
    }

    /// Returns the encoder that is to be removed and can be: others may have died since the request.
    fn may_leave(&self) -> Option<u32> {
        let is_here = |index: &u32| self.ready.contains(index) || self.members.contains(index);
        let others_work = |index: &u32| self.workers().iter().any(|other| other != index);
        let is_done = |index: &u32| !self.writing.contains(index);
        self.retiring.iter().copied().find(|index| is_here(index) && others_work(index) && is_done(index))
    }

    /// Removes an encoder that is gone; returns whether it was a member.
    pub fn lose(&mut self, index: u32) -> bool {
        self.ready.retain(|&other| other != index);
        self.retiring.remove(&index);
        self.asked.remove(&index);
        let Some(rank) = self.members.iter().position(|&member| member == index) else { return false };
        self.members.remove(rank);
        self.num_current -= usize::from(rank < self.num_current);
        self.left.push(index);
        true
    }

    /// Returns whether the members are reducing gradients: nobody joins or is removed meanwhile.
    pub fn is_reducing(&self) -> bool {
        self.reducing
    }

    /// Records that the members reduce their gradients: nobody joins or is removed meanwhile.
    pub fn begin_reducing(&mut self) {
        self.reducing = true;
    }

    /// Records that a member could not reduce.
    ///
    /// # Errors
    /// Fails if this happened too often although nobody has died.
    pub fn broke(&mut self, index: u32, error: &str) -> Result<(), String> {
        self.broken.insert(index);
        if self.num_broken >= MAX_BROKEN {
            return Err(format!("{error}; the pool could not reduce in {} epochs in a row", self.num_broken + 1));
        }
        Ok(())
    }

    /// Returns whether a member could not reduce.
    pub fn is_broken(&self, index: u32) -> bool {
        self.broken.contains(&index)
    }

    /// Records that the current step is decided: all members then have the same parameters.
    pub fn decided(&mut self) {
        self.num_current = self.members.len();
        self.reducing = false;
        self.broken.clear();
        self.num_broken = 0;
    }

    /// Keeps the encoders that left for a later epoch, as there is nobody to tell yet.
    pub fn postpone(&mut self, left: Vec<u32>) {
        self.left = left;
    }

    /// Returns whether a new epoch must begin, or can begin without waste. `all_answered`: every member has reduced or could not.
    pub fn is_due(&self, all_answered: bool) -> bool {
        let broken = !self.broken.is_empty() && all_answered;
        let wished = !self.ready.is_empty() || self.may_leave().is_some();
        !self.left.is_empty() || broken || (wished && !self.reducing)
    }

    /// Begins the next epoch: encoders that joined become members, and those that were to leave are removed.
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

    fn pool_of(num_members: u32, trained: bool) -> EncoderPool {
        EncoderPool::of(
            &EncoderPoolSpec { name: PoolName::ENCODER, elastic: true, trained, cached: false, reads: false },
            num_members,
        )
    }

    #[test]
    fn the_only_one_left_is_not_let_go_though_it_was_to_be() {
        for trained in [false, true] {
            let mut pool = pool_of(3, trained);
            pool.begin_reducing();
            [1, 2].into_iter().for_each(|index| pool.retire(index));
            assert!(!pool.is_due(false), "not while they reduce");
            assert!(pool.has_stayers());
            pool.lose(0);
            let new = pool.begin_epoch();
            assert_eq!((new.left, new.retired, pool.members()), (vec![0, 1], vec![1], &[2][..]));
            assert!(!pool.is_due(false), "it stays, and no epoch follows the other");
            assert!(!pool.has_stayers());
            // Somebody else has come and has the parameters: now it may go.
            pool.ready(3);
            assert_eq!(pool.begin_epoch().joined, [3]);
            pool.decided();
            assert_eq!((pool.begin_epoch().retired, pool.members()), (vec![2], &[3][..]));
        }
    }

    #[test]
    fn who_writes_a_checkpoint_is_let_go_when_it_is_written() {
        let mut pool = pool_of(2, true);
        pool.retire(0);
        pool.keep(BTreeSet::from([0, 1]));
        assert!(pool.is_to_release() && pool.retiring().eq([ActorId::encoder(0)]) && !pool.is_due(false));
        pool.keep(BTreeSet::from([1]));
        assert!(pool.is_due(false));
        assert_eq!((pool.begin_epoch().retired, pool.members()), (vec![0], &[1][..]));
        assert!(!pool.is_to_release());
    }

    #[test]
    fn who_is_let_go_before_it_is_ready_goes_when_it_is() {
        let mut pool = pool_of(1, true);
        pool.retire(1);
        assert!(!pool.is_due(false));
        pool.ready(1);
        assert!(pool.is_due(false));
        let new = pool.begin_epoch();
        assert_eq!((new.joined, new.left, new.retired, pool.members()), (vec![], vec![], vec![1], &[0][..]));
    }
}
