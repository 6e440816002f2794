//! The part of a pool that one rank has: its part of every layer, its experts, its stages, its slices.

use super::stages::{Stages, whole_rows};
use crate::comm::Mesh;
use crate::model::{FoundationFamily, Stage, Towers};
use crate::params::{ParallelRank, ParamSpec, ParamStore, Sharding, ZeroStage};
use crate::tape::Policy;
use crate::train::TrainState;
use loongforge_core::config::{ContextAttention, Layout};
use loongforge_core::engine::EngineError;
use loongforge_core::message::PoolName;
use loongforge_core::schedule::Pipeline;
use std::rc::Rc;
use std::sync::Arc;

/// Describes how a foundation is laid out, besides the ranks of its mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Splits {
    pub sequence_parallel: bool,
    pub virtual_stages: usize,
    /// 0: rows are whole.
    pub chunk_tokens: usize,
    pub context: ContextAttention,
    /// The level at which replicas share out: see [`ZeroStage::of_level`].
    pub zero: usize,
    /// True if two packs are computed in turns where experts are spread over ranks.
    pub expert_overlap: bool,
}

impl Default for Splits {
    fn default() -> Self {
        Self {
            sequence_parallel: false,
            virtual_stages: 1,
            chunk_tokens: 0,
            context: ContextAttention::Ring,
            zero: 0,
            expert_overlap: true,
        }
    }
}

/// A foundation in its layout: what is known of it before there are ranks.
pub(super) struct FoundationPlan {
    family: Arc<dyn FoundationFamily>,
    pipeline: Pipeline,
    stages: Vec<Stage>,
}

impl FoundationPlan {
    /// Returns the plan of a rank of `pool` at `parallel`. Either all ranks have a plan or none has.
    ///
    /// # Errors
    /// The model cannot be split so.
    pub fn new(
        family: &Arc<dyn FoundationFamily>,
        layout: Layout,
        parallel: &ParallelRank,
        splits: &Splits,
        pool: PoolName,
    ) -> Result<Self, EngineError> {
        if layout.cp > 1 && splits.chunk_tokens > 0 {
            let what = "rows can be split by context_parallel or by chunk_tokens, not by both";
            return Err(format!("pools.{pool}: {what}").into());
        }
        if let Some(what) = family.needs_whole_rows().filter(|_| splits.chunk_tokens > 0) {
            return Err(whole_rows(pool, what));
        }
        let family = match parallel.is_whole() {
            true => family.clone(),
            false => family.divided(parallel).map_err(|found| format!("pools.{pool}: {found}"))?,
        };
        let shares = family.check_context(layout.cp, splits.context);
        shares.map_err(|found| format!("pools.{pool}.context_parallel: {found}"))?;
        let pipeline = Pipeline { ranks: layout.pp, virtual_stages: splits.virtual_stages };
        let stages = cut(family.as_ref(), pipeline, pool)?;
        Ok(Self { family, pipeline, stages })
    }

    /// Returns the stages of the pipeline's rank `pp`.
    fn own(&self, pp: usize) -> Vec<Stage> {
        self.pipeline.stages_of(pp).map(|stage| self.stages[stage].clone()).collect()
    }

    /// Returns the parameters of the pipeline's rank `pp`.
    pub fn specs(&self, pp: usize) -> Vec<ParamSpec> {
        self.own(pp).iter().flat_map(|stage| self.family.stage_specs(stage)).collect()
    }
}

/// A rank's share of a foundation.
pub(super) struct FoundationShare {
    mesh: Rc<Mesh>,
    splits: Splits,
    plan: FoundationPlan,
    is_whole: bool,
    own: Vec<Stage>,
}

impl FoundationShare {
    /// # Errors
    /// The model cannot be split so.
    pub fn new(
        family: &Arc<dyn FoundationFamily>,
        mesh: Rc<Mesh>,
        splits: Splits,
        pool: PoolName,
    ) -> Result<Self, EngineError> {
        let parallel = ParallelRank::of(&mesh, splits.sequence_parallel);
        let plan = FoundationPlan::new(family, mesh.layout(), &parallel, &splits, pool)?;
        let own = plan.own(mesh.place().pp);
        Ok(Self { mesh, splits, plan, is_whole: parallel.is_whole(), own })
    }

    /// Returns the parameters of this rank's stages.
    pub fn specs(&self) -> Vec<ParamSpec> {
        self.own.iter().flat_map(|stage| self.plan.family.stage_specs(stage)).collect()
    }

    /// Returns how parameters are shared out among the ranks of `mesh.data`.
    pub fn sharding(&self) -> Sharding {
        Sharding::among(ZeroStage::of_level(self.splits.zero), &self.mesh)
    }

    /// Returns a pool along `mesh.data` with this share's parameters, made a part of the whole.
    pub fn join(&self, state: TrainState) -> TrainState {
        let state = state.with_stages(self.mesh.pp.clone(), &self.plan.family.shared_by_stages());
        if self.is_whole { state } else { state.split_among(self.mesh.clone()) }
    }

    /// Builds this rank's stages on their parameters; tapes keep activations as `policy` says.
    pub fn stages(&self, params: &ParamStore, policy: Policy) -> Stages {
        let build = |stage| self.plan.family.build_stage(stage, params, policy);
        let models = self.own.iter().map(build).collect();
        Stages::new(self.mesh.clone(), self.plan.pipeline, models, self.splits.chunk_tokens)
            .with_context(self.splits.context)
            .overlapping_experts(self.splits.expert_overlap)
    }
}

/// Returns the stages of a pipeline in order; all of the model without one.
///
/// # Errors
/// The model cannot be cut so.
pub(super) fn cut(
    family: &dyn FoundationFamily,
    pipeline: Pipeline,
    pool: PoolName,
) -> Result<Vec<Stage>, EngineError> {
    let num_layers = family.num_layers();
    if pipeline.stages() == 1 {
        return Ok(vec![Stage::whole(num_layers)]);
    }
    let error = |what: String| format!("pools.{pool}.pipeline_parallel: {what}");
    let too_many = || match num_layers {
        0 => error("this model cannot be split into stages; set it to 1".into()),
        _ => error(format!("{} stages are too many for {num_layers} layers; use fewer", pipeline.stages())),
    };
    let stages = Stage::all(pipeline.layers(num_layers).ok_or_else(too_many)?);
    stages.iter().try_for_each(|stage| family.check_stage(stage)).map_err(|found| error(found.to_string()))?;
    Ok(stages)
}

/// A rank's share of an encoder.
pub(super) struct EncoderShare {
    mesh: Rc<Mesh>,
    pub towers: Towers,
    zero: usize,
}

impl EncoderShare {
    /// # Errors
    /// The encoder cannot be split so.
    pub fn new(towers: &Towers, mesh: Rc<Mesh>, zero: usize) -> Result<Self, EngineError> {
        let towers = divided_towers(towers, &ParallelRank::of(&mesh, false))?;
        Ok(Self { mesh, towers, zero })
    }

    /// Returns how parameters are shared out among the ranks of `mesh.data`.
    pub fn sharding(&self) -> Sharding {
        Sharding::among(ZeroStage::of_level(self.zero), &self.mesh)
    }

    /// Works like [`FoundationShare::join`].
    pub fn join(&self, state: TrainState) -> TrainState {
        if self.mesh.tp.world() == 1 { state } else { state.split_among(self.mesh.clone()) }
    }
}

/// Returns the parts of an encoder's towers that the rank at `parallel` computes.
///
/// # Errors
/// A tower cannot be split so.
pub(super) fn divided_towers(towers: &Towers, parallel: &ParallelRank) -> Result<Towers, EngineError> {
    match parallel.is_whole() {
        true => Ok(towers.clone()),
        false => Ok(towers.divided(parallel).map_err(|found| found.to_string())?),
    }
}
