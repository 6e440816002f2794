//! An encoder's membership in a pool whose members come and go: a process group for each epoch, made when it is needed.

use crate::comm::ProcessGroup;
use crate::native::{NativeError, is_dry_run};
use crate::train::TrainState;
use loongforge_core::message::{Epoch, Lane, Regroup, Replica, StepPlan};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Sets how long a member waits for another one, which is known to be about to come: longer, and it is gone or hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Tells who the members of an encoder pool are, as this one knows.
pub struct Membership {
    me: Replica,
    /// Folder in which members find each other.
    rendezvous: PathBuf,
    epoch: Epoch,
    /// The numbers of the members, in the order of ranks.
    members: Vec<u32>,
    /// The number of members, the first ones, that have the pool's parameters; the others take them.
    num_current: usize,
    /// The pool has the group of this epoch.
    formed: bool,
}

impl Membership {
    /// Makes the membership of encoder `me`, before the first change of a pool that begins with encoders `0..num_members`.
    pub fn new(me: Replica, num_members: u32, rendezvous: PathBuf) -> Self {
        let members: Vec<u32> = (0..num_members).collect();
        Self { me, rendezvous, epoch: Epoch(0), num_current: members.len(), members, formed: false }
    }

    /// Returns the epoch of the current membership.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns this encoder's rank among the members.
    pub fn rank(&self) -> usize {
        self.rank_of(self.me.index).expect("an encoder is told of the epochs that it is a member of")
    }

    fn rank_of(&self, encoder: u32) -> Option<usize> {
        self.members.iter().position(|&member| member == encoder)
    }

    /// Takes over the members of an epoch; their group is made when it is needed.
    pub fn regroup(&mut self, regroup: &Regroup) {
        self.epoch = regroup.epoch;
        self.members.clone_from(&regroup.members);
        self.num_current = regroup.num_current as usize;
        self.formed = false;
    }

    /// Sums the step's gradients over the members; as [`TrainState::reduce_among`]. All members call it.
    ///
    /// # Errors
    /// A member is gone or did not come in time. The pool's own sums are as before.
    pub fn reduce(&mut self, state: &mut TrainState, plan: &StepPlan) -> Result<f64, NativeError> {
        if !state.is_trained() {
            return Ok(0.0);
        }
        self.form(state)?;
        let own = plan.units.iter().filter(|unit| unit.encoder.pool == self.me.pool);
        let owners: BTreeMap<Lane, usize> =
            own.filter_map(|unit| Some((unit.lane, self.rank_of(unit.encoder.index)?))).collect();
        state.reduce_among(&owners)
    }

    /// Makes the epoch's group, and gives the parameters to who has joined.
    fn form(&mut self, state: &mut TrainState) -> Result<(), NativeError> {
        if self.formed {
            return Ok(());
        }
        let store = self.rendezvous.join(format!("{}-{}", self.me.pool, self.epoch));
        let (world, device) = (self.members.len(), state.params().flat().device());
        state.set_group(match is_dry_run() {
            true => ProcessGroup::dry(self.rank(), world),
            false => ProcessGroup::join(&store, self.me.pool.as_str(), self.rank(), world, PATIENCE, device)?,
        });
        if self.num_current < self.members.len() {
            state.take_from_first()?;
        }
        self.formed = true;
        Ok(())
    }
}
