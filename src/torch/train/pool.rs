//! One replica's share of a pool's training state: parameters, gradient lanes, reduction, update.
//!
//! A step's gradient is a sum over lanes in lane order. With fixed lanes (`run.deterministic`) the lanes are dealt
//! to the replicas round-robin and gathered, so the sum has the same bits for any number of replicas; otherwise
//! each replica is one lane and the sum is an all-reduce.

use super::adamw::{AdamW, AdamWConfig};
use super::shares::{square_sum, sum_copies, sum_replicas};
use crate::comm::{Mesh, ProcessGroup};
use crate::native::{NativeError, sum_of_squares};
use crate::nn::{GradBuffer, ParamStore};
use loongforge_core::message::Lane;
use std::collections::BTreeMap;
use std::rc::Rc;
use tch::{Device, Kind, Tensor};

/// How a pool's gradient sum is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lanes {
    /// One lane a replica.
    PerReplica,
    /// This many lanes whatever the number of replicas; lane `l` belongs to replica `l % replicas`.
    Fixed(u32),
}

/// Parameters of a pool on one replica and what training adds to them. A frozen pool has no optimizer.
pub struct Pool {
    params: Rc<ParamStore>,
    group: ProcessGroup,
    lanes: Lanes,
    grads: BTreeMap<Lane, GradBuffer>,
    optimizer: Option<AdamW>,
    /// The pool's gradient of the step that waits for its commit.
    reduced: Option<Tensor>,
    /// The ranks among which parameters are split; `None` where every rank has all.
    mesh: Option<Rc<Mesh>>,
}

impl Pool {
    /// `optimizer: None` freezes the pool.
    ///
    /// # Errors
    /// See [`AdamW::new`].
    pub fn new(
        params: Rc<ParamStore>,
        group: ProcessGroup,
        lanes: Lanes,
        optimizer: Option<AdamWConfig>,
    ) -> Result<Self, NativeError> {
        params.set_trainable(optimizer.is_some());
        let own: Vec<Lane> = match lanes {
            Lanes::PerReplica => vec![Lane(group.rank() as u32)],
            Lanes::Fixed(count) => (group.rank() as u32..count).step_by(group.world()).map(Lane).collect(),
        };
        let trained = optimizer.is_some();
        let grads = own.into_iter().filter(|_| trained).map(|lane| (lane, params.new_grad())).collect();
        let optimizer = optimizer.map(|config| AdamW::new(&params, config)).transpose()?;
        Ok(Self { params, group, lanes, grads, optimizer, reduced: None, mesh: None })
    }

    /// Of parameters that are split among ranks: the group of the pool is `mesh.data`.
    #[must_use]
    pub fn split_among(mut self, mesh: Rc<Mesh>) -> Self {
        self.mesh = Some(mesh);
        self
    }

    /// The ranks among which parameters are split; `None` where every rank has all.
    pub fn mesh(&self) -> Option<&Mesh> {
        self.mesh.as_deref()
    }

    pub fn params(&self) -> &Rc<ParamStore> {
        &self.params
    }

    pub fn is_trained(&self) -> bool {
        self.optimizer.is_some()
    }

    pub fn optimizer(&self) -> Option<&AdamW> {
        self.optimizer.as_ref()
    }

    pub fn optimizer_mut(&mut self) -> Option<&mut AdamW> {
        self.optimizer.as_mut()
    }

    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    /// Where gradients of one of this replica's lanes are summed; `None` where the pool is frozen.
    ///
    /// # Panics
    /// The lane is another replica's: the plan and the pool disagree, which is a bug of ours.
    pub fn lane(&mut self, lane: Lane) -> Option<&mut GradBuffer> {
        self.optimizer.as_ref()?;
        Some(self.grads.get_mut(&lane).unwrap_or_else(|| panic!("lane {lane} is not of replica {}", self.group.rank())))
    }

    /// The lane of a replica that has just one.
    pub fn own_lane(&self) -> Lane {
        Lane(self.group.rank() as u32)
    }

    /// Sums the gradients over the pool and keeps the sum for [`Pool::commit`]. Returns its sum of squares, the same
    /// on every replica; 0 where frozen. Every replica calls it once a step.
    ///
    /// # Errors
    /// A replica is gone or did not come in time.
    pub fn reduce(&mut self) -> Result<f64, NativeError> {
        if self.optimizer.is_none() {
            return Ok(0.0);
        }
        let _no_grad = tch::no_grad_guard();
        let sum = match self.lanes {
            Lanes::PerReplica => {
                let flat = self.grads[&self.own_lane()].flat().shallow_clone();
                match self.mesh() {
                    Some(mesh) => sum_replicas(&self.params, &flat, mesh)?,
                    None => self.group.all_reduce_sum(&flat)?,
                }
                flat
            }
            Lanes::Fixed(count) => self.gather_lanes(count)?,
        };
        if let Some(mesh) = self.mesh() {
            sum_copies(&self.params, &sum, &mesh.tp)?;
            let squares = square_sum(&self.params, &sum, mesh)?;
            self.reduced = Some(sum);
            return Ok(squares);
        }
        let squares = match sum.device() {
            Device::Cpu => sum_of_squares(&sum),
            _ => sum.norm_scalaropt_dtype(2.0, Kind::Double).double_value(&[]).powi(2),
        };
        self.reduced = Some(sum);
        Ok(squares)
    }

    /// In place: the sum over the pool's replicas of a contiguous tensor, which each of them gives.
    ///
    /// # Errors
    /// A replica is gone or did not come in time.
    pub fn all_reduce_sum(&self, tensor: &Tensor) -> Result<(), NativeError> {
        self.group.all_reduce_sum(tensor)
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
            let lanes = self.group.all_gather(&own)?;
            for lane in lanes.iter().take((count - first) as usize) {
                match &mut sum {
                    None => sum = Some(lane.copy()),
                    Some(sum) => drop(sum.g_add_(lane)),
                }
            }
        }
        Ok(sum.expect("at least one lane"))
    }

    /// Applies the reduced gradient times `clip_scale`.
    ///
    /// # Errors
    /// The optimizer failed.
    ///
    /// # Panics
    /// Nothing was reduced.
    pub fn commit(&mut self, clip_scale: f64, learning_rate: f64) -> Result<(), NativeError> {
        if let Some(optimizer) = &mut self.optimizer {
            let grad = self.reduced.take().expect("a commit follows a reduction");
            // The sum of a replica's only lane is that lane's buffer.
            let is_lane = self.lanes == Lanes::PerReplica;
            if optimizer.step(&self.params, &grad, clip_scale, learning_rate, is_lane)? {
                return Ok(());
            }
        }
        self.abort();
        Ok(())
    }

    /// Forgets the step's gradients.
    pub fn abort(&mut self) {
        self.reduced = None;
        self.grads.values_mut().for_each(GradBuffer::zero);
    }
}
