//! Summing a step's gradients over a pool.
//!
//! A step's gradient is a sum over lanes in lane order. With fixed lanes (`run.deterministic`) the lanes are dealt
//! to the replicas round-robin and gathered, so the sum has the same bits for any number of replicas; otherwise
//! each replica is one lane and the sum is an all-reduce, for a foundation in buckets that have begun with the last
//! backward (`buckets.rs`). Where the store is shared out among the replicas, each updates
//! its slices: the sum is a reduce-scatter, and the new parameters are gathered.

use super::shares::{add_squares, square_sum, squares_of, sum_copies, sum_replicas};
use super::train_state::{Lanes, Stages, TrainState};
use crate::device::upload;
use crate::native::{NativeError, Purpose, allocated_for};
use crate::params::ZeroStage;
use loongforge_core::message::Lane;
use tch::Tensor;

/// Marks the messages that sum tied parameters' gradients; those of micro-batches count from 0.
const TIED: i32 = i32::MAX;

impl TrainState {
    /// Sums the gradients over the pool and keeps the sum for [`TrainState::commit`]. Returns its sum of squares, the same
    /// on every replica; 0 where frozen. Every replica calls it once a step.
    ///
    /// # Errors
    /// A replica is gone or did not come in time.
    pub fn reduce(&mut self) -> Result<f64, NativeError> {
        allocated_for(Purpose::Buffers, || self.reduce_gradients())
    }

    fn reduce_gradients(&mut self) -> Result<f64, NativeError> {
        let _no_grad = tch::no_grad_guard();
        if self.optimizer.is_none() {
            // Other stages may be trained, and wait for this one's part in the norm.
            return match self.mesh() {
                _ if self.stages.is_none() => Ok(0.0),
                Some(mesh) => {
                    let (is_shared, device) = (!self.params.sharding().is_none(), self.params.flat().device());
                    add_squares(0.0, 0.0, is_shared, device, mesh)
                }
                None => self.over_stages(0.0),
            };
        }
        let sum = self.sum_lanes_of_replicas()?;
        if let Some(mesh) = self.mesh() {
            sum_copies(&self.params, &sum, mesh)?;
            self.tie(&sum)?;
            let squares = square_sum(&self.params, &sum, mesh)?;
            self.reduced = Some(sum);
            return Ok(squares);
        }
        let again = self.tie(&sum)?;
        let mut squares = squares_of(&sum) - again;
        self.reduced = Some(sum);
        if !self.params.sharding().is_none() {
            let all = self.number(squares);
            self.group.all_reduce_sum(&all)?;
            squares = all.double_value(&[]);
        }
        self.over_stages(squares)
    }

    /// Returns the sum over replicas, or this rank's slices of it.
    fn sum_lanes_of_replicas(&mut self) -> Result<Tensor, NativeError> {
        let lane = self.own_lane();
        if let (Some(grads), Some(buckets)) = (self.grads.get(&lane), &mut self.buckets) {
            return buckets.finish(grads);
        }
        let shared = self.params.sharding().shared;
        match self.lanes {
            Lanes::PerReplica => {
                let flat = self.grads[&self.own_lane()].flat().shallow_clone();
                match (shared, self.mesh()) {
                    (ZeroStage::Nothing, Some(mesh)) => sum_replicas(&self.params, &flat, mesh).map(|()| flat),
                    (ZeroStage::Nothing, None) => self.group.all_reduce_sum(&flat).map(|()| flat),
                    (ZeroStage::State, _) => self.scatter(&flat),
                    (ZeroStage::Gradients | ZeroStage::Parameters, _) => Ok(flat),
                }
            }
            Lanes::Fixed(count) => {
                let sum = self.gather_lanes(count)?;
                Ok(if shared == ZeroStage::Nothing { sum } else { self.own_slices(&sum) })
            }
        }
    }

    /// Returns the sum over the stages of a pipeline.
    fn over_stages(&self, squares: f64) -> Result<f64, NativeError> {
        let Some(stages) = self.stages.as_ref().filter(|stages| stages.group.world() > 1) else { return Ok(squares) };
        let sum = self.number(squares);
        stages.group.all_reduce_sum(&sum)?;
        Ok(sum.double_value(&[]))
    }

    fn number(&self, value: f64) -> Tensor {
        upload(&Tensor::from(value), self.params.flat().device())
    }

    /// Sums what the first and the last stage both have. Returns the squares that the first stage counts already.
    fn tie(&self, sum: &Tensor) -> Result<f64, NativeError> {
        let mut again = 0.0;
        let Some(Stages { group, tied }) = self.stages.as_ref().filter(|stages| stages.group.world() > 1) else {
            return Ok(again);
        };
        let last = group.world() - 1;
        for &id in tied.iter().filter(|_| [0, last].contains(&group.rank())) {
            let (part, at) = self.params.owned_range(id);
            if part.is_empty() {
                continue;
            }
            let own = sum.narrow(0, at, part.end - part.start);
            if group.rank() == last {
                group.start_send(&own, 0, TIED)?.wait()?;
                group.start_recv(&own, 0, TIED)?.wait()?;
                again += squares_of(&own);
            } else {
                let others = own.empty_like();
                group.start_recv(&others, last, TIED)?.wait()?;
                let _ = own.shallow_clone().g_add_(&others);
                group.start_send(&own, last, TIED)?.wait()?;
            }
        }
        Ok(again)
    }

    /// This rank's slices of the sum over replicas of gradients, whole in the store's order.
    fn scatter(&self, flat: &Tensor) -> Result<Tensor, NativeError> {
        let own = flat.new_empty([self.params.num_owned()], (flat.kind(), flat.device()));
        let trained = self.params.units().iter().filter(|unit| unit.is_trained());
        let started = trained.map(|unit| {
            let ((start, len), (at, own_len)) = (unit.range(), unit.own_range());
            let group = self.zero.as_ref().map_or(&*self.group, |zero| zero.group_of(unit));
            group.start_reduce_scatter_sum_into(&own.narrow(0, at, own_len), &flat.narrow(0, start, len))
        });
        started.collect::<Vec<_>>().into_iter().try_for_each(|started| started?.wait())?;
        Ok(own)
    }

    /// This rank's slices of what is whole in the store's order.
    pub(super) fn own_slices(&self, flat: &Tensor) -> Tensor {
        let slices = self.params.owned_slices(flat);
        Tensor::cat(&slices, 0)
    }

    fn gather_lanes(&self, count: u32) -> Result<Tensor, NativeError> {
        let world = self.group.world() as u32;
        let mut sum: Option<Tensor> = None;
        let mut idle = None;
        for first in (0..count).step_by(world as usize) {
            let own = match self.grads.get(&Lane(first + self.group.rank() as u32)) {
                Some(grad) => grad.flat().shallow_clone(),
                // Fewer lanes than replicas in the last round: take part in the collective all the same.
                None => idle.get_or_insert_with(|| self.params.new_grad()).flat().shallow_clone(),
            };
            // A replica that has all lanes adds them up where they are.
            let lanes = if world == 1 { vec![own] } else { self.group.all_gather(&own)? };
            for lane in lanes.iter().take((count - first) as usize) {
                match &mut sum {
                    None => sum = Some(lane.copy()),
                    Some(sum) => drop(sum.g_add_(lane)),
                }
            }
        }
        Ok(sum.expect("at least one lane"))
    }
}
