//! A pool whose replicas come and go: lanes belong to whom a plan gives them, and state goes to who is new.

use super::shares::squares_of;
use super::train_state::{Lanes, TrainState};
use crate::comm::ProcessGroup;
use crate::native::{NativeError, Purpose, allocated_for};
use crate::params::GradBuffer;
use loongforge_core::message::Lane;
use std::collections::BTreeMap;
use tch::{Kind, Tensor};

/// Elements of a tensor off the device that are sent at once.
const BROADCAST_ELEMENTS: i64 = 16 << 20;

impl TrainState {
    /// Makes it such a pool, of one replica until it is given a group. `rank`: its place among the replicas.
    pub fn elastic(mut self, rank: usize) -> Self {
        self.elastic_rank = Some(rank);
        self.grads.clear();
        self
    }

    /// The place among the replicas from now on; the group follows.
    pub fn set_rank(&mut self, rank: usize) {
        self.elastic_rank = Some(rank);
    }

    /// The group of the replicas from now on.
    pub fn set_group(&mut self, group: ProcessGroup) {
        self.group = group.into();
    }

    /// Returns where gradients of a lane are summed; `None` where the pool is frozen. Where each replica has one lane, any lane that it
    /// is given is that one.
    pub fn any_lane(&mut self, lane: Lane) -> Option<&mut GradBuffer> {
        self.optimizer.as_ref()?;
        let lane = if self.lanes == Lanes::PerReplica { Lane(0) } else { lane };
        Some(self.grads.entry(lane).or_insert_with(|| self.params.new_grad()))
    }

    /// Works like [`TrainState::reduce`], where lane `l` was summed by the replica of rank `owners[l]`. Lanes without owner
    /// are zero.
    ///
    /// # Errors
    /// A replica is gone or did not come in time. The lanes are as before, so that it may be tried in another group.
    pub fn reduce_among(&mut self, owners: &BTreeMap<Lane, usize>) -> Result<f64, NativeError> {
        allocated_for(Purpose::Buffers, || self.sum_among(owners))
    }

    fn sum_among(&mut self, owners: &BTreeMap<Lane, usize>) -> Result<f64, NativeError> {
        let _no_grad = tch::no_grad_guard();
        self.reduced = None;
        self.group.meet()?;
        let sum = match self.lanes {
            Lanes::PerReplica => {
                let own = self.any_lane(Lane(0)).map(|lane| lane.flat().copy());
                let own = own.unwrap_or_else(|| self.params.new_grad().flat().copy());
                self.group.all_reduce_sum(&own)?;
                own
            }
            Lanes::Fixed(_) => self.sum_lanes(owners)?,
        };
        let found = squares_of(&sum);
        self.reduced = Some(sum);
        Ok(found)
    }

    /// Sums the lanes in their order, whoever computed them.
    fn sum_lanes(&self, owners: &BTreeMap<Lane, usize>) -> Result<Tensor, NativeError> {
        let mut sum: Option<Tensor> = None;
        for (lane, &owner) in owners {
            let lane = match self.grads.get(lane).filter(|_| owner == self.group.rank()) {
                Some(grad) => grad.flat().shallow_clone(),
                None => self.params.new_grad().flat().shallow_clone(),
            };
            self.group.broadcast(&lane, owner)?;
            match &mut sum {
                None => sum = Some(lane.copy()),
                Some(sum) => drop(sum.g_add_(&lane)),
            }
        }
        Ok(sum.unwrap_or_else(|| self.params.new_grad().flat().shallow_clone()))
    }

    /// Parameters and optimizer state of the first replica; all replicas call it.
    ///
    /// # Errors
    /// A replica is gone or did not come in time.
    pub fn take_from_first(&mut self) -> Result<(), NativeError> {
        let _no_grad = tch::no_grad_guard();
        self.group.meet()?;
        self.group.broadcast(&self.params.flat().detach(), 0)?;
        let Some(optimizer) = &mut self.optimizer else { return Ok(()) };
        let num_steps = Tensor::from_slice(&[optimizer.num_steps as i64]);
        let device = self.params.flat().device();
        for tensor in optimizer.tensors() {
            if tensor.device() == device {
                self.group.broadcast(tensor, 0)?;
                continue;
            }
            // State that is off the device comes through it, part by part.
            for part in tensor.split(BROADCAST_ELEMENTS, 0) {
                let through = part.to_device(device);
                self.group.broadcast(&through, 0)?;
                part.shallow_clone().copy_(&through);
            }
        }
        self.group.broadcast(&num_steps, 0)?;
        debug_assert_eq!(num_steps.kind(), Kind::Int64);
        optimizer.num_steps = num_steps.int64_value(&[0]) as u64;
        Ok(())
    }
}
