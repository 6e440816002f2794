//! One replica's share of a pool's training state: parameters, gradient lanes, reduction, update.
//!
//! A step's gradient is a sum over lanes in lane order. With fixed lanes (`run.deterministic`) the lanes are dealt
//! to the replicas round-robin and gathered, so the sum has the same bits for any number of replicas; otherwise
//! each replica is one lane and the sum is an all-reduce. Where the store is shared out among the replicas, each updates
//! its slices: the sum is a reduce-scatter, and the new parameters are gathered.

use super::adamw::{AdamW, AdamWConfig};
use super::shares::{square_sum, sum_copies, sum_replicas};
use crate::comm::{Mesh, ProcessGroup};
use crate::native::{NativeError, sum_of_squares};
use crate::nn::{GradBuffer, ParamId, ParamStore, Role, Shared};
use crate::parallel::Zero;
use loongforge_core::message::Lane;
use std::collections::BTreeMap;
use std::rc::Rc;
use tch::{Device, Kind, Tensor};

/// Marks the messages that sum tied parameters' gradients; those of micro-batches count from 0.
const TIED: i32 = i32::MAX;

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
    pub(super) params: Rc<ParamStore>,
    pub(super) group: Rc<ProcessGroup>,
    pub(super) lanes: Lanes,
    pub(super) grads: BTreeMap<Lane, GradBuffer>,
    pub(super) optimizer: Option<AdamW>,
    /// The pool's gradient of the step that waits for its commit.
    pub(super) reduced: Option<Tensor>,
    /// The ranks among which parameters are split; `None` where every rank has all.
    mesh: Option<Rc<Mesh>>,
    stages: Option<Stages>,
    /// This one's place among replicas that come and go; `None` where they do not.
    pub(super) elastic_rank: Option<usize>,
}

/// A pool that has one stage of a pipeline here.
struct Stages {
    group: Rc<ProcessGroup>,
    /// Parameters that the first and the last stage both have.
    tied: Vec<ParamId>,
}

impl Pool {
    /// `optimizer: None` freezes the pool. A store that is shared out is so among the ranks of `group`.
    ///
    /// # Errors
    /// See [`AdamW::new`].
    ///
    /// # Panics
    /// Gradients of several lanes are to be shared out: the lanes' sums are made whole.
    pub fn new(
        params: Rc<ParamStore>,
        group: impl Into<Rc<ProcessGroup>>,
        lanes: Lanes,
        optimizer: Option<AdamWConfig>,
    ) -> Result<Self, NativeError> {
        params.set_trainable(optimizer.is_some());
        let (group, sharding) = (group.into(), params.sharding());
        if !sharding.is_none() {
            assert_eq!((sharding.rank, sharding.world), (group.rank(), group.world()), "who shares parameters out");
            assert!(sharding.shared < Shared::Gradients || lanes == Lanes::PerReplica, "lanes of slices");
            params.set_keeper(Rc::new(Zero::new(group.clone())));
        }
        let own: Vec<Lane> = match lanes {
            Lanes::PerReplica => vec![Lane(group.rank() as u32)],
            Lanes::Fixed(count) => (group.rank() as u32..count).step_by(group.world()).map(Lane).collect(),
        };
        let trained = optimizer.is_some();
        let grads = own.into_iter().filter(|_| trained).map(|lane| (lane, params.new_grad())).collect();
        let optimizer = optimizer.map(|config| AdamW::new(&params, config)).transpose()?;
        Ok(Self { params, group, lanes, grads, optimizer, reduced: None, mesh: None, stages: None, elastic_rank: None })
    }

    /// Of parameters that are split among ranks: the group of the pool is `mesh.data`.
    ///
    /// # Panics
    /// Replicas share something out.
    #[must_use]
    pub fn split_among(mut self, mesh: Rc<Mesh>) -> Self {
        assert!(self.params.sharding().is_none(), "parts of parameters that are shared out");
        self.mesh = Some(mesh);
        self
    }

    /// The ranks among which parameters are split; `None` where every rank has all.
    pub fn mesh(&self) -> Option<&Mesh> {
        self.mesh.as_deref()
    }

    /// Makes this one stage of a pipeline along `group`: norms are of all stages, and the gradients of parameters that
    /// the first and the last stage both have, the `tied` ones, are summed.
    #[must_use]
    pub fn with_stages(mut self, group: impl Into<Rc<ProcessGroup>>, tied: &[String]) -> Self {
        let tied = tied.iter().filter_map(|name| self.params.find(name));
        let tied = tied.filter(|id| self.params.spec(*id).role == Role::Trained).collect();
        self.stages = Some(Stages { group: group.into(), tied });
        self
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
        self.elastic_rank.unwrap_or_else(|| self.group.rank())
    }

    /// Which of the pool's stages this is.
    pub fn part(&self) -> usize {
        self.stages.as_ref().map_or(0, |stages| stages.group.rank())
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
            // Other stages may be trained.
            return self.over_stages(0.0);
        }
        let _no_grad = tch::no_grad_guard();
        let shared = self.params.sharding().shared;
        let sum = match self.lanes {
            Lanes::PerReplica => {
                let flat = self.grads[&self.own_lane()].flat().shallow_clone();
                match shared {
                    Shared::Nothing => match self.mesh() {
                        Some(mesh) => sum_replicas(&self.params, &flat, mesh).map(|()| flat)?,
                        None => self.group.all_reduce_sum(&flat).map(|()| flat)?,
                    },
                    Shared::State => self.scatter(&flat)?,
                    Shared::Gradients | Shared::Parameters => flat,
                }
            }
            Lanes::Fixed(count) => {
                let sum = self.gather_lanes(count)?;
                if shared == Shared::Nothing { sum } else { self.own_slices(&sum) }
            }
        };
        if let Some(mesh) = self.mesh().filter(|_| shared == Shared::Nothing) {
            sum_copies(&self.params, &sum, &mesh.tp)?;
            self.tie(&sum)?;
            let squares = square_sum(&self.params, &sum, mesh)?;
            self.reduced = Some(sum);
            return Ok(squares);
        }
        let again = self.tie(&sum)?;
        let squares = self.number(squares(&sum) - again);
        self.reduced = Some(sum);
        if shared != Shared::Nothing {
            self.group.all_reduce_sum(&squares)?;
        }
        self.over_stages(squares.double_value(&[]))
    }

    /// The sum over the stages of a pipeline.
    fn over_stages(&self, squares: f64) -> Result<f64, NativeError> {
        let Some(stages) = self.stages.as_ref().filter(|stages| stages.group.world() > 1) else { return Ok(squares) };
        let sum = self.number(squares);
        stages.group.all_reduce_sum(&sum)?;
        Ok(sum.double_value(&[]))
    }

    fn number(&self, value: f64) -> Tensor {
        Tensor::from(value).to_device(self.params.flat().device())
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
                again += squares(&own);
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
            self.group.start_reduce_scatter_sum_into(&own.narrow(0, at, own_len), &flat.narrow(0, start, len))
        });
        started.collect::<Vec<_>>().into_iter().try_for_each(|started| started?.wait())?;
        Ok(own)
    }

    /// This rank's slices of what is whole in the store's order.
    fn own_slices(&self, flat: &Tensor) -> Tensor {
        let slices = self.params.owned_slices(flat);
        Tensor::cat(&slices, 0)
    }

    /// Gathers the parameters that other ranks have changed, where they are to be whole between steps.
    fn gather(&self) -> Result<(), NativeError> {
        if self.params.sharding().is_none() || self.params.sharding().shared == Shared::Parameters {
            return Ok(());
        }
        let trained = self.params.units().iter().filter(|unit| unit.is_trained());
        let started = trained.map(|unit| self.group.start_all_gather_into(unit.whole(), unit.own()));
        started.collect::<Vec<_>>().into_iter().try_for_each(|started| started?.wait())
    }

    /// The gradient of parameter `id` that waits for its commit, whole, as [`Pool::gather_state`].
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    ///
    /// # Panics
    /// Nothing was reduced.
    pub fn reduced(&self, id: ParamId) -> Result<Tensor, NativeError> {
        self.gather_state(id, self.reduced.as_ref().expect("gradients were reduced"))
    }

    /// Runs `body` while all parameters are here; every rank calls it where they are shared out.
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    pub fn with_whole<T>(&self, body: impl FnOnce() -> T) -> Result<T, NativeError> {
        if self.params.sharding().shared < Shared::Parameters {
            return Ok(body());
        }
        let units = self.params.units();
        for unit in units {
            unit.allocate();
            self.group.start_all_gather_into(unit.whole(), unit.own())?.wait()?;
        }
        let made = body();
        units.iter().for_each(|unit| unit.release());
        Ok(made)
    }

    /// The values of what this rank's optimizer changes, laid out as its state.
    pub(super) fn own_values(&self) -> Tensor {
        let flat = self.params.flat().detach();
        match self.params.sharding().shared {
            Shared::Nothing => flat.narrow(0, 0, self.params.num_trained()),
            Shared::Parameters => flat.narrow(0, 0, self.params.num_owned()),
            _ => self.own_slices(&flat),
        }
    }

    /// Parameter `id` of what lies in slices as the optimizer's state does, whole, on every rank, each of which calls it.
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    pub fn gather_state(&self, id: ParamId, own: &Tensor) -> Result<Tensor, NativeError> {
        let (spec, (part, at)) = (self.params.spec(id), self.params.owned_range(id));
        let mine = own.narrow(0, if part.is_empty() { 0 } else { at }, part.end - part.start);
        if self.params.sharding().is_none() {
            return Ok(mine.view(spec.shape.as_slice()));
        }
        // Every rank gives its part in its place among zeros.
        let whole = own.new_zeros([spec.num_elements()], (own.kind(), own.device()));
        whole.narrow(0, part.start, part.end - part.start).copy_(&mine);
        self.group.all_reduce_sum(&whole)?;
        Ok(whole.view(spec.shape.as_slice()))
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
            // The sum of a replica's only lane is that lane's buffer, but for slices that were summed apart from it, and
            // where replicas come and go.
            let apart = self.params.sharding().shared == Shared::State || self.elastic_rank.is_some();
            let is_lane = self.lanes == Lanes::PerReplica && !apart;
            let is_zero = optimizer.step(&grad, clip_scale, learning_rate, is_lane)?;
            self.gather()?;
            if is_zero {
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

/// The sum of squares of contiguous float32.
pub(super) fn squares(x: &Tensor) -> f64 {
    match x.device() {
        Device::Cpu => sum_of_squares(x),
        _ => x.norm_scalaropt_dtype(2.0, Kind::Double).double_value(&[]).powi(2),
    }
}
