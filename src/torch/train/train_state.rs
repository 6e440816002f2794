//! One replica's share of a pool's training state: parameters, gradient lanes, update. The collectives between the ranks are in
//! `reduce.rs` and `slices.rs`.

use super::adamw::AdamW;
use super::buckets::{self, Buckets};
use super::placed::StateSlice;
use super::rule::{AdamWConfig, OptimizerConfig};
use super::shares::gather_whole;
use crate::comm::{Mesh, ProcessGroup};
use crate::native::{NativeError, Purpose, allocated_for};
use crate::parallel::Zero;
use crate::params::{GradBuffer, ParamId, ParamStore, Role, ZeroStage};
use loongforge_core::message::Lane;
use std::collections::BTreeMap;
use std::rc::Rc;
use tch::Tensor;

/// Says how a pool's gradient sum is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lanes {
    /// One lane a replica.
    PerReplica,
    /// This many lanes whatever the number of replicas; lane `l` belongs to replica `l % replicas`.
    Fixed(u32),
}

/// Parameters of a pool on one replica and what training adds to them. A frozen pool has no optimizer.
pub struct TrainState {
    pub(super) params: Rc<ParamStore>,
    pub(super) group: Rc<ProcessGroup>,
    pub(super) lanes: Lanes,
    pub(super) grads: BTreeMap<Lane, GradBuffer>,
    pub(super) optimizer: Option<AdamW>,
    /// The pool's gradient of the step that waits for its commit.
    pub(super) reduced: Option<Tensor>,
    /// The ranks among which parameters are split; `None` where every rank has all.
    mesh: Option<Rc<Mesh>>,
    /// The part that brings what is shared out.
    pub(super) zero: Option<Rc<Zero>>,
    pub(super) stages: Option<Stages>,
    /// Sums over replicas that begin before the step's backward ends.
    pub(super) buckets: Option<Buckets>,
    /// This one's place among replicas that come and go; `None` where they do not.
    pub(super) elastic_rank: Option<usize>,
    /// The optimizer's own weights, while averages are in their place.
    pub(super) own_weights: Option<Tensor>,
}

/// A pool that has one stage of a pipeline here.
pub(super) struct Stages {
    pub group: Rc<ProcessGroup>,
    /// Parameters that the first and the last stage both have.
    pub tied: Vec<ParamId>,
}

impl TrainState {
    /// `optimizer: None` freezes the pool. A store that is shared out is so among the ranks of `group`.
    ///
    /// # Errors
    /// Fails as [`AdamW::new`] does.
    ///
    /// # Panics
    /// Gradients of several lanes are to be shared out: the lanes' sums are made whole.
    pub fn new(
        params: Rc<ParamStore>,
        group: impl Into<Rc<ProcessGroup>>,
        lanes: Lanes,
        optimizer: Option<AdamWConfig>,
    ) -> Result<Self, NativeError> {
        Self::with(params, group, lanes, optimizer.map(OptimizerConfig::from))
    }

    /// Works like [`TrainState::new`] with another optimizer. A store that is shared out is so as its method asks
    /// ([`OptimizerMethod::sharding`](super::OptimizerMethod::sharding)).
    ///
    /// # Errors
    /// Fails as that function does.
    ///
    /// # Panics
    /// Panics as that function does.
    pub fn with(
        params: Rc<ParamStore>,
        group: impl Into<Rc<ProcessGroup>>,
        lanes: Lanes,
        optimizer: Option<OptimizerConfig>,
    ) -> Result<Self, NativeError> {
        params.set_trainable(optimizer.is_some());
        let (group, sharding) = (group.into(), params.sharding());
        if !sharding.is_none() {
            assert_eq!((sharding.rank, sharding.world), (group.rank(), group.world()), "who shares parameters out");
            assert!(sharding.shared < ZeroStage::Gradients || lanes == Lanes::PerReplica, "lanes of slices");
        }
        let own: Vec<Lane> = match lanes {
            Lanes::PerReplica => vec![Lane(group.rank() as u32)],
            Lanes::Fixed(count) => (group.rank() as u32..count).step_by(group.world()).map(Lane).collect(),
        };
        let trained = optimizer.is_some();
        let grads = own.into_iter().filter(|_| trained).map(|lane| (lane, params.new_grad())).collect();
        let optimizer = optimizer.map(|config| AdamW::new(&params, config)).transpose()?;
        let of_experts = group.clone();
        let state = Self {
            params,
            group,
            lanes,
            grads,
            optimizer,
            reduced: None,
            mesh: None,
            zero: None,
            stages: None,
            buckets: None,
            elastic_rank: None,
            own_weights: None,
        };
        Ok(state.shared_out_among(of_experts))
    }

    /// Makes it a pool of parameters that are split among ranks: the group of the pool is `mesh.data`.
    #[must_use]
    pub fn split_among(mut self, mesh: Rc<Mesh>) -> Self {
        let of_experts = mesh.expert_data.clone();
        self.mesh = Some(mesh);
        self.shared_out_among(of_experts)
    }

    /// `of_experts`: who shares out experts that are spread over ranks.
    fn shared_out_among(mut self, of_experts: Rc<ProcessGroup>) -> Self {
        if !self.params.sharding().is_none() {
            let zero = Rc::new(Zero::new(self.group.clone(), of_experts));
            self.params.set_unsharder(zero.clone());
            self.zero = Some(zero);
        }
        self
    }

    /// Returns the ranks among which parameters are split; `None` where every rank has all.
    pub fn mesh(&self) -> Option<&Mesh> {
        self.mesh.as_deref()
    }

    /// Returns the ranks among which parameters are split, or this rank alone.
    pub fn mesh_or_single(&self) -> Rc<Mesh> {
        self.mesh.clone().unwrap_or_else(|| Rc::new(Mesh::single()))
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

    /// Sums gradients in buckets, which may begin before the backward ends: of one lane a replica, where replicas share out
    /// no sums (those that do, sum every unit when the backward has left it).
    #[must_use]
    pub fn in_buckets(self) -> Self {
        self.in_buckets_of(buckets::ELEMENTS)
    }

    /// Returns whether gradients are summed in buckets, which may begin before the backward ends.
    pub fn is_in_buckets(&self) -> bool {
        self.buckets.is_some()
    }

    /// Sums gradients in buckets of so many elements, where replicas have whole gradients that are to be summed.
    pub(super) fn in_buckets_of(mut self, elements: i64) -> Self {
        let sums = self.lanes == Lanes::PerReplica && self.params.sharding().shared < ZeroStage::Gradients;
        if sums && self.is_trained() && self.group.world() > 1 {
            let of_experts = self.mesh.as_ref().map_or(&self.group, |mesh| &mesh.expert_data).clone();
            self.buckets = Some(Buckets::new(self.params.clone(), self.group.clone(), of_experts, elements));
        }
        self
    }

    /// Returns the parameters that are trained, with the frozen ones beside them.
    pub fn params(&self) -> &Rc<ParamStore> {
        &self.params
    }

    /// Returns the tensors of a checkpoint that change in [`TrainState::commit`] alone, and where members of a pool come and go: the
    /// parameters' flat buffer `[len]` and the tensors of the optimizer's state, flat as well.
    pub fn lasting(&self) -> Vec<Tensor> {
        let state = self.optimizer.iter().flat_map(|optimizer| optimizer.tensors()).map(Tensor::shallow_clone);
        [self.params.flat().detach()].into_iter().chain(state).collect()
    }

    /// Returns the number of bytes of the optimizer's state that are off the device.
    pub fn offloaded_bytes(&self) -> u64 {
        self.optimizer.as_ref().map_or(0, AdamW::offloaded_bytes)
    }

    /// Returns whether there is an optimizer.
    pub fn is_trained(&self) -> bool {
        self.optimizer.is_some()
    }

    /// Returns the optimizer; `None` if nothing is trained.
    pub fn optimizer(&self) -> Option<&AdamW> {
        self.optimizer.as_ref()
    }

    /// Returns the optimizer, to change its state; `None` if nothing is trained.
    pub fn optimizer_mut(&mut self) -> Option<&mut AdamW> {
        self.optimizer.as_mut()
    }

    /// Takes the parameters' present values for the optimizer's float32 ones. It is for parameters that were set after the optimizer was
    /// made, before the first step.
    pub fn refresh_master(&mut self) {
        self.optimizer.iter_mut().for_each(AdamW::refresh_master);
    }

    /// Returns this rank's number in its group, or in the current membership of an elastic pool.
    pub fn rank(&self) -> usize {
        self.elastic_rank.unwrap_or_else(|| self.group.rank())
    }

    /// Returns which of the pool's stages this is.
    pub fn part(&self) -> usize {
        self.stages.as_ref().map_or(0, |stages| stages.group.rank())
    }

    /// Returns where gradients of one of this replica's lanes are summed; `None` where the pool is frozen.
    ///
    /// # Panics
    /// The lane is another replica's: the plan and the pool disagree, which is a bug of ours.
    pub fn lane(&mut self, lane: Lane) -> Option<&mut GradBuffer> {
        self.optimizer.as_ref()?;
        Some(self.grads.get_mut(&lane).unwrap_or_else(|| panic!("lane {lane} is not of replica {}", self.group.rank())))
    }

    /// Works like [`TrainState::lane`], with the sums that are to begin when the step's last backward comes past their
    /// parameters.
    pub fn lane_and_sums(&mut self, lane: Lane) -> (Option<&mut GradBuffer>, Option<&mut Buckets>) {
        (self.grads.get_mut(&lane), self.buckets.as_mut())
    }

    /// Begins all sums over replicas that have not begun.
    ///
    /// # Errors
    /// A replica is gone.
    pub fn begin_sums(&mut self) -> Result<(), NativeError> {
        let lane = self.own_lane();
        match (self.grads.get(&lane), &mut self.buckets) {
            (Some(grads), Some(buckets)) => buckets.begin(grads, |_| true),
            _ => Ok(()),
        }
    }

    /// Returns the lane of a replica that has just one.
    pub fn own_lane(&self) -> Lane {
        Lane(self.group.rank() as u32)
    }

    /// Sums a contiguous tensor of any shape, which each of the pool's replicas gives, over the replicas, in place.
    ///
    /// # Errors
    /// A replica is gone or did not come in time.
    pub fn all_reduce_sum(&self, tensor: &Tensor) -> Result<(), NativeError> {
        self.group.all_reduce_sum(tensor)
    }

    /// Applies the reduced gradient times `clip_scale`.
    ///
    /// # Errors
    /// The optimizer failed.
    ///
    /// # Panics
    /// Nothing was reduced.
    pub fn commit(&mut self, clip_scale: f64, learning_rate: f64) -> Result<(), NativeError> {
        // Taken out for the step, in which the rest of the state gathers what other ranks have.
        if let Some(mut optimizer) = self.optimizer.take() {
            let grad = self.reduced.take().expect("a commit follows a reduction");
            // The sum of a replica's only lane is that lane's buffer, but for slices that were summed apart from it, and
            // where replicas come and go.
            let apart = self.params.sharding().shared == ZeroStage::State || self.elastic_rank.is_some();
            let is_lane = self.lanes == Lanes::PerReplica && !apart;
            let gather = |id, part: &Tensor| self.gather_update(id, part);
            let stepped = optimizer.step_among(&grad, clip_scale, learning_rate, is_lane, &gather);
            self.optimizer = Some(optimizer);
            let is_zero = stepped?;
            allocated_for(Purpose::Buffers, || {
                self.gather()?;
                self.refresh_norms()
            })?;
            if is_zero {
                return Ok(());
            }
        }
        self.abort();
        Ok(())
    }

    /// Returns the update of a parameter from the flat parts of the ranks: whole where ranks cut its matrices, else of all matrices that
    /// this rank has.
    fn gather_update(&self, id: ParamId, part: &Tensor) -> Result<Tensor, NativeError> {
        let part = self.gather_slice(id, &StateSlice::of(part, 0))?;
        match &self.mesh {
            Some(mesh) if self.params.spec(id).is_cut_within_matrices() => {
                gather_whole(self.params.spec(id), &part, mesh)
            }
            _ => Ok(part),
        }
    }

    /// Makes the step's gradients not finite, for tests of what follows.
    pub fn poison(&mut self) {
        for grad in self.grads.values() {
            let _ = grad.flat().narrow(0, 0, 1).fill_(f64::NAN);
        }
    }

    /// Forgets the step's gradients.
    pub fn abort(&mut self) {
        self.buckets.iter_mut().for_each(Buckets::forget);
        self.reduced = None;
        self.grads.values_mut().for_each(GradBuffer::zero);
    }
}
