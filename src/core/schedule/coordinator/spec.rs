//! Describes what a coordinator is told before it begins.

use super::{EvaluationSpec, SchedulerState};
use crate::config::{
    BadSamples, Balance, EncoderPool, FoundationPool, PackMode, Placement, RunConfig, SavePoints, TooLong,
};
use crate::message::{ActorId, PoolName, Role, StepId, TowerSet};
use crate::schedule::{ModelShape, PlanSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Commands about changes of encoder pools that an engine may not have taken yet.
const MAX_CHANGES: usize = 64;

/// Number of actors of each pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSizes {
    pub data: u32,
    /// The encoder pools in the order of their names; none where encoders live in the foundation's actors.
    pub encoders: Vec<PoolSize>,
    /// The foundation pools, at least one.
    pub foundations: Vec<PoolSize>,
}

/// Number of actors of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSize {
    pub name: PoolName,
    pub actors: u32,
}

impl PoolSizes {
    /// The pools of a run whose model has these towers.
    pub fn new(config: &RunConfig, towers: TowerSet) -> Self {
        let pools = &config.pools;
        let size =
            |(name, pool, _): (PoolName, &EncoderPool, TowerSet)| PoolSize { name, actors: pool.num_actors() as u32 };
        let encoders = match pools.placement {
            Placement::Separate => pools.encoders(towers).into_iter().map(size).collect(),
            Placement::Colocated => Vec::new(),
        };
        let foundation =
            |(name, pool): (PoolName, FoundationPool)| PoolSize { name, actors: pool.layout().ranks() as u32 };
        let foundations = config.foundations().into_iter().map(foundation).collect();
        Self { data: pools.data.replicas as u32, encoders, foundations }
    }

    /// Pools with the names of their roles; without encoders there is no pool of them.
    pub fn of_roles(data: u32, encoder: u32, foundation: u32) -> Self {
        let encoder = PoolSize { name: PoolName::ENCODER, actors: encoder };
        let foundation = PoolSize { name: PoolName::FOUNDATION, actors: foundation };
        let encoders = [encoder].into_iter().filter(|pool| pool.actors > 0).collect();
        Self { data, encoders, foundations: vec![foundation] }
    }

    pub fn data_actors(&self) -> impl Iterator<Item = ActorId> + use<> {
        (0..self.data).map(ActorId::data)
    }

    /// Actors of all encoder pools.
    pub fn encoder_actors(&self) -> impl Iterator<Item = ActorId> + use<'_> {
        self.encoders.iter().flat_map(|pool| (0..pool.actors).map(|index| ActorId::encoder_of(pool.name, index)))
    }

    /// Actors of all foundation pools.
    pub fn foundation_actors(&self) -> impl Iterator<Item = ActorId> + use<'_> {
        self.foundations.iter().flat_map(|pool| (0..pool.actors).map(|index| ActorId::foundation_of(pool.name, index)))
    }

    /// Actors that take part in the transaction of a step.
    pub fn compute_actors(&self) -> impl Iterator<Item = ActorId> + use<'_> {
        self.encoder_actors().chain(self.foundation_actors())
    }

    /// Returns the number of encoder actors of all pools.
    pub fn num_encoders(&self) -> u32 {
        self.encoders.iter().map(|pool| pool.actors).sum()
    }

    /// Actors of all foundation pools.
    pub fn num_foundations(&self) -> u32 {
        self.foundations.iter().map(|pool| pool.actors).sum()
    }

    /// Number of [`PoolSizes::compute_actors`].
    pub fn num_compute(&self) -> usize {
        (self.num_encoders() + self.num_foundations()) as usize
    }

    /// Number of [`PoolSizes::actors`].
    pub fn num_actors(&self) -> usize {
        self.data as usize + self.num_compute()
    }

    /// Actors of a pool; of the scheduler and of pools that the run does not have there are none.
    pub fn of(&self, name: PoolName) -> u32 {
        match name {
            PoolName::DATA => self.data,
            _ => {
                let mut pools = self.encoders.iter().chain(&self.foundations);
                pools.find(|pool| pool.name == name).map_or(0, |pool| pool.actors)
            }
        }
    }

    /// Returns whether the actor is one of [`PoolSizes::actors`].
    pub fn contains(&self, actor: ActorId) -> bool {
        actor.index < self.of(actor.pool)
    }

    /// Every pool with its role and the number of its actors, in the order in which actors are started.
    pub fn pools(&self) -> impl Iterator<Item = (Role, PoolSize)> + use<'_> {
        let data = PoolSize { name: PoolName::DATA, actors: self.data };
        let encoders = self.encoders.iter().map(|&pool| (Role::Encoder, pool));
        let foundations = self.foundations.iter().map(|&pool| (Role::Foundation, pool));
        [(Role::Data, data)].into_iter().chain(encoders).chain(foundations)
    }

    /// Everybody but the scheduler.
    pub fn actors(&self) -> impl Iterator<Item = ActorId> + use<'_> {
        self.data_actors().chain(self.compute_actors())
    }
}

/// Holds what the coordinator must know of an encoder pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncoderPoolSpec {
    pub name: PoolName,
    /// Encoders may come and go while the run goes on.
    pub elastic: bool,
    /// The encoders' parameters change.
    pub trained: bool,
    /// Features are kept in a folder: an actor without towers may read them there.
    pub cached: bool,
    /// The run begins without encoders of the pool: its one actor reads.
    pub reads: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CoordinatorSpec {
    pub pools: PoolSizes,
    pub plan: PlanSpec,
    /// First step to compute; 0 unless resumed.
    pub first_step: StepId,
    /// Holds what the run begins with: all of it empty unless resumed.
    pub state: SchedulerState,
    /// Steps of the whole run, those before `first_step` included.
    pub steps: u64,
    /// Samples of a step; packs, where a stream is packed.
    pub global_batch_size: usize,
    /// Samples that the packer of a stream chooses from; `None`: samples are packed within their step.
    pub look_ahead: Option<usize>,
    /// Plans go by costs that are fitted to the engines' times.
    pub fitted: bool,
    /// Steps planned ahead of the one being computed.
    pub prefetch_steps: usize,
    /// Largest gradient norm; 0: no clipping.
    pub clip_grad: f64,
    /// Most steps in a row that may be skipped.
    pub max_nonfinite: usize,
    pub bad_samples: BadSamples,
    pub too_long: TooLong,
    pub checkpoint_dir: PathBuf,
    pub save_points: SavePoints,
    /// The run ends when so many checkpoints in a row could not be written.
    pub max_save_failures: usize,
    /// Folder in memory for checkpoints every so many steps, to begin again from; `None`: there are none.
    pub snapshots: Option<(PathBuf, u64)>,
    /// Rules of the pools of `pools.encoders`, in the same order.
    pub encoders: Vec<EncoderPoolSpec>,
    /// The number of lanes is the plan's, whatever the number of encoders.
    pub fixed_lanes: bool,
    /// Held-out samples that are evaluated while the run goes on; `None`: there are none.
    pub evaluation: Option<EvaluationSpec>,
}

impl CoordinatorSpec {
    /// `resume`: the first step to compute, and what the checkpoint holds of the scheduler. The config's epochs are settled.
    pub fn new(config: &RunConfig, shape: ModelShape, resume: Option<(StepId, SchedulerState)>) -> Self {
        let (first_step, state) = resume.unwrap_or_default();
        let pack = &config.data.pack;
        let encoder = |(name, pool, towers): (PoolName, &EncoderPool, TowerSet)| EncoderPoolSpec {
            name,
            elastic: pool.is_elastic(),
            trained: !config.model.has_frozen(towers),
            cached: pool.cache_dir.is_some() && config.model.has_frozen(towers),
            reads: pool.reads(),
        };
        Self {
            pools: PoolSizes::new(config, shape.towers),
            plan: PlanSpec::new(config, shape),
            first_step,
            state,
            steps: config.train.num_steps(),
            global_batch_size: config.train.global_batch_size,
            look_ahead: (pack.mode == PackMode::Stream).then_some(pack.look_ahead),
            fitted: config.scheduler.balance == Balance::Fitted,
            prefetch_steps: config.scheduler.prefetch_steps,
            clip_grad: config.train.clip_grad,
            max_nonfinite: config.train.on_nonfinite.max_consecutive,
            bad_samples: config.data.on_bad_sample,
            too_long: pack.too_long,
            checkpoint_dir: config.checkpoint.dir.clone(),
            save_points: config.checkpoint.save_points(),
            max_save_failures: config.checkpoint.max_failures,
            snapshots: None,
            encoders: match config.pools.placement {
                Placement::Separate => config.pools.encoders(shape.towers).into_iter().map(encoder).collect(),
                Placement::Colocated => Vec::new(),
            },
            fixed_lanes: config.run.deterministic,
            evaluation: None,
        }
    }

    /// Returns whether the encoders of some pool may come and go.
    pub fn is_elastic(&self) -> bool {
        self.encoders.iter().any(|pool| pool.elastic)
    }

    /// The pools that begin without encoders: an actor of theirs reads features.
    pub fn reading(&self) -> BTreeSet<PoolName> {
        self.encoders.iter().filter(|pool| pool.reads).map(|pool| pool.name).collect()
    }

    /// Returns the rules of an encoder pool; `None` where the run has no such pool.
    pub fn encoder_pool(&self, name: PoolName) -> Option<&EncoderPoolSpec> {
        self.encoders.iter().find(|pool| pool.name == name)
    }

    /// Windows of positions that data actors may be reading at once.
    pub(super) fn max_windows(&self) -> usize {
        self.prefetch_steps + 2
    }

    /// Most commands that an engine may not have taken yet: windows to read, plans ahead, `Commit`, `Save`, `Stop`, and
    /// what changes in encoder pools while an engine is busy.
    pub fn max_unanswered(&self) -> usize {
        let plans = self.prefetch_steps + 1 + self.max_windows();
        // Of an evaluation a plan, what ends it, and two windows.
        self.max_windows() + plans + 4 + 4 + MAX_CHANGES
    }
}
