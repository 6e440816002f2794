//! Describes what a coordinator is told before it begins.

use super::{EvaluationSpec, SchedulerState};
use crate::config::{BadSamples, Balance, PackMode, Placement, RunConfig, TooLong};
use crate::message::{ActorId, Role, StepId};
use crate::schedule::{ModelShape, PlanSpec};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Commands about changes of the encoder pool that an engine may not have taken yet.
const MAX_CHANGES: usize = 64;

/// Number of actors of each role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSizes {
    pub data: u32,
    /// 0 where encoders live in the foundation's actors.
    pub encoder: u32,
    pub foundation: u32,
}

impl PoolSizes {
    pub fn new(config: &RunConfig) -> Self {
        let pools = &config.pools;
        Self {
            data: pools.data.replicas as u32,
            encoder: if pools.placement == Placement::Colocated { 0 } else { pools.encoder.layout().ranks() as u32 },
            foundation: pools.foundation.layout().ranks() as u32,
        }
    }

    pub fn data_actors(self) -> impl Iterator<Item = ActorId> {
        (0..self.data).map(ActorId::data)
    }

    /// Actors that take part in the transaction of a step.
    pub fn compute_actors(self) -> impl Iterator<Item = ActorId> {
        (0..self.encoder).map(ActorId::encoder).chain((0..self.foundation).map(ActorId::foundation))
    }

    /// Number of [`PoolSizes::compute_actors`].
    pub fn num_compute(self) -> usize {
        (self.encoder + self.foundation) as usize
    }

    /// Number of [`PoolSizes::actors`].
    pub fn num_actors(self) -> usize {
        self.data as usize + self.num_compute()
    }

    /// Actors of a role; the scheduler is none of them.
    pub fn of(self, role: Role) -> u32 {
        match role {
            Role::Scheduler => 0,
            Role::Data => self.data,
            Role::Encoder => self.encoder,
            Role::Foundation => self.foundation,
        }
    }

    /// Returns whether the actor is one of [`PoolSizes::actors`].
    pub fn contains(self, actor: ActorId) -> bool {
        actor.index < self.of(actor.role)
    }

    /// Everybody but the scheduler.
    pub fn actors(self) -> impl Iterator<Item = ActorId> {
        self.data_actors().chain(self.compute_actors())
    }
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
    /// 0: only at the end.
    pub checkpoint_every: u64,
    /// The run ends when so many checkpoints in a row could not be written.
    pub max_save_failures: usize,
    /// Folder in memory for checkpoints every so many steps, to begin again from; `None`: there are none.
    pub snapshots: Option<(PathBuf, u64)>,
    /// Encoders may come and go while the run goes on.
    pub elastic: bool,
    /// The number of lanes is the plan's, whatever the number of encoders.
    pub fixed_lanes: bool,
    /// The encoders' parameters change.
    pub encoder_trained: bool,
    /// Held-out samples that are evaluated while the run goes on; `None`: there are none.
    pub evaluation: Option<EvaluationSpec>,
}

impl CoordinatorSpec {
    /// `resume`: the first step to compute, and what the checkpoint holds of the scheduler. The config's epochs are settled.
    pub fn new(config: &RunConfig, shape: ModelShape, resume: Option<(StepId, SchedulerState)>) -> Self {
        let (first_step, state) = resume.unwrap_or_default();
        let pack = &config.data.pack;
        Self {
            pools: PoolSizes::new(config),
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
            checkpoint_every: config.checkpoint.every_steps,
            max_save_failures: config.checkpoint.max_failures,
            snapshots: None,
            elastic: config.pools.encoder.is_elastic(),
            fixed_lanes: config.run.deterministic,
            encoder_trained: !config.model.has_frozen(shape.towers),
            evaluation: None,
        }
    }

    /// Windows of positions that data actors may be reading at once.
    pub(super) fn max_windows(&self) -> usize {
        self.prefetch_steps + 2
    }

    /// Most commands that an engine may not have taken yet: windows to read, plans ahead, `Commit`, `Save`, `Stop`, and
    /// what changes in the encoder pool while an engine is busy.
    pub fn max_unanswered(&self) -> usize {
        let plans = self.prefetch_steps + 1 + self.max_windows();
        // Of an evaluation a plan, what ends it, and two windows.
        self.max_windows() + plans + 4 + 4 + MAX_CHANGES
    }
}
