//! The settings of a coordinator.

use super::{EvaluationSpec, SchedulerState};
use crate::config::{
    BadSamples, Balance, EncoderPool, FoundationPool, PackMode, Placement, RunConfig, SavePoints, TooLong,
};
use crate::message::{ActorId, PoolName, Role, StepId, TowerSet};
use crate::schedule::{ModelShape, PlanSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Maximum number of commands about changes of encoder pools that an engine has not handled yet: all encoders of a host may die at once.
/// A queue takes memory only for what is in it.
const MAX_CHANGES: usize = 1024;

/// Number of actors of each pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSizes {
    pub data: u32,
    /// The encoder pools in the order of their names; none if encoders run in the foundation's actors.
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
    /// Returns the pools of a run whose model has these towers.
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

    /// Returns pools named after their roles; without encoders there is no encoder pool.
    pub fn of_roles(data: u32, encoder: u32, foundation: u32) -> Self {
        let encoder = PoolSize { name: PoolName::ENCODER, actors: encoder };
        let foundation = PoolSize { name: PoolName::FOUNDATION, actors: foundation };
        let encoders = [encoder].into_iter().filter(|pool| pool.actors > 0).collect();
        Self { data, encoders, foundations: vec![foundation] }
    }

    /// Returns the ids of all data actors, in order.
    pub fn data_actors(&self) -> impl Iterator<Item = ActorId> + use<> {
        (0..self.data).map(ActorId::data)
    }

    /// Returns the actors of all encoder pools.
    pub fn encoder_actors(&self) -> impl Iterator<Item = ActorId> + use<'_> {
        self.encoders.iter().flat_map(|pool| (0..pool.actors).map(|index| ActorId::encoder_of(pool.name, index)))
    }

    /// Returns the actors of all foundation pools.
    pub fn foundation_actors(&self) -> impl Iterator<Item = ActorId> + use<'_> {
        self.foundations.iter().flat_map(|pool| (0..pool.actors).map(|index| ActorId::foundation_of(pool.name, index)))
    }

    /// Returns the actors that take part in the transaction of a step.
    pub fn compute_actors(&self) -> impl Iterator<Item = ActorId> + use<'_> {
        self.encoder_actors().chain(self.foundation_actors())
    }

    /// Returns the number of encoder actors of all pools.
    pub fn num_encoders(&self) -> u32 {
        self.encoders.iter().map(|pool| pool.actors).sum()
    }

    /// Returns the number of foundation actors of all pools.
    pub fn num_foundations(&self) -> u32 {
        self.foundations.iter().map(|pool| pool.actors).sum()
    }

    /// Returns the number of [`PoolSizes::compute_actors`].
    pub fn num_compute(&self) -> usize {
        (self.num_encoders() + self.num_foundations()) as usize
    }

    /// Returns the number of [`PoolSizes::actors`].
    pub fn num_actors(&self) -> usize {
        self.data as usize + self.num_compute()
    }

    /// Returns the number of actors of a pool; 0 for the scheduler and for pools that the run does not have.
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

    /// Returns every pool with its role and number of actors, in the order in which actors are started.
    pub fn pools(&self) -> impl Iterator<Item = (Role, PoolSize)> + use<'_> {
        let data = PoolSize { name: PoolName::DATA, actors: self.data };
        let encoders = self.encoders.iter().map(|&pool| (Role::Encoder, pool));
        let foundations = self.foundations.iter().map(|&pool| (Role::Foundation, pool));
        [(Role::Data, data)].into_iter().chain(encoders).chain(foundations)
    }

    /// Returns all actors except the scheduler.
    pub fn actors(&self) -> impl Iterator<Item = ActorId> + use<'_> {
        self.data_actors().chain(self.compute_actors())
    }
}

/// The properties of an encoder pool that the coordinator needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncoderPoolSpec {
    pub name: PoolName,
    /// True if encoders may join and leave during the run.
    pub elastic: bool,
    /// True if the encoders' parameters change.
    pub trained: bool,
    /// True if features are cached in a folder, from which an actor without towers may read them.
    pub cached: bool,
    /// True if the run begins without encoders in the pool: its one actor reads features.
    pub reads: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CoordinatorSpec {
    pub pools: PoolSizes,
    pub plan: PlanSpec,
    /// First step to compute; 0 unless resumed.
    pub first_step: StepId,
    /// State with which the run begins: empty unless resumed.
    pub state: SchedulerState,
    /// True if the checkpoint that the run is resumed from lies in `checkpoint_dir`, and not in memory or in another folder.
    pub is_kept: bool,
    /// Number of steps of the whole run, including those before `first_step`.
    pub steps: u64,
    /// Samples per step, or packs if a stream is packed.
    pub global_batch_size: usize,
    /// Number of samples that a stream packer chooses from; `None`: samples are packed within their step.
    pub look_ahead: Option<usize>,
    /// True if plans use costs fitted to the engines' times.
    pub fitted: bool,
    /// Number of steps planned ahead of the current one.
    pub prefetch_steps: usize,
    /// Maximum gradient norm; 0: no clipping.
    pub clip_grad: f64,
    /// Largest number of consecutive steps that may be skipped.
    pub max_nonfinite: usize,
    pub bad_samples: BadSamples,
    pub too_long: TooLong,
    pub checkpoint_dir: PathBuf,
    pub save_points: SavePoints,
    /// Number of consecutive checkpoint failures after which the run ends.
    pub max_save_failures: usize,
    /// Folder in memory for checkpoints every N steps, for restarts; `None`: there are none.
    pub snapshots: Option<(PathBuf, u64)>,
    /// Rules of the pools of `pools.encoders`, in the same order.
    pub encoders: Vec<EncoderPoolSpec>,
    /// True if the plan fixes the number of lanes, whatever the number of encoders.
    pub fixed_lanes: bool,
    /// Held-out samples that are evaluated during the run; `None`: there are none.
    pub evaluation: Option<EvaluationSpec>,
}

impl CoordinatorSpec {
    /// Creates the spec. `resume`: the first step to compute, and the scheduler state in the checkpoint. The config's epochs are
    /// settled.
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
            is_kept: true,
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

    /// Returns whether encoders of some pool may join and leave.
    pub fn is_elastic(&self) -> bool {
        self.encoders.iter().any(|pool| pool.elastic)
    }

    /// Returns the pools that begin without encoders, with an actor that reads features.
    pub fn reading(&self) -> BTreeSet<PoolName> {
        self.encoders.iter().filter(|pool| pool.reads).map(|pool| pool.name).collect()
    }

    /// Returns the rules of an encoder pool; `None` if the run has no such pool.
    pub fn encoder_pool(&self, name: PoolName) -> Option<&EncoderPoolSpec> {
        self.encoders.iter().find(|pool| pool.name == name)
    }

    /// Returns the maximum number of windows of positions that data actors read at once.
    pub(super) fn max_windows(&self) -> usize {
        self.prefetch_steps + 2
    }

    /// Returns the maximum number of commands that an engine has not handled yet: windows to read, plans ahead, `Commit`, `Save`,
    /// `Stop`, and changes of encoder pools while an engine is busy.
    pub fn max_unanswered(&self) -> usize {
        let plans = self.prefetch_steps + 1 + self.max_windows();
        // Of an evaluation a plan, what ends it, and two windows.
        self.max_windows() + plans + 4 + 4 + MAX_CHANGES
    }
}
