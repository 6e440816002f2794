//! What of a pool one rank has: its part of every layer, its experts, its stages, its slices.

use super::stages::Stages;
use crate::comm::Mesh;
use crate::model::{EncoderFamily, FoundationFamily, Stage};
use crate::nn::{Division, ParamSpec, ParamStore, Sharding, Shared};
use crate::tape::Policy;
use crate::train::Pool;
use loongforge_core::config::ContextAttention;
use loongforge_core::engine::EngineError;
use loongforge_core::schedule::Pipeline;
use std::rc::Rc;
use std::sync::Arc;

/// How a foundation is laid out, besides the ranks of its mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Splits {
    pub sequence_parallel: bool,
    pub virtual_stages: usize,
    /// 0: rows are whole.
    pub chunk_tokens: usize,
    pub context: ContextAttention,
    /// What replicas share out: see [`Shared::of_level`].
    pub zero: usize,
    /// Where experts are spread, two packs go in turns.
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

/// A rank's share of a foundation.
pub(super) struct FoundationShare {
    mesh: Rc<Mesh>,
    splits: Splits,
    family: Arc<dyn FoundationFamily>,
    is_whole: bool,
    pipeline: Pipeline,
    own: Vec<Stage>,
}

impl FoundationShare {
    /// # Errors
    /// The model cannot be split so.
    pub fn new(family: &Arc<dyn FoundationFamily>, mesh: Rc<Mesh>, splits: Splits) -> Result<Self, EngineError> {
        let layout = mesh.layout();
        let shares = family.check_context(layout.cp, splits.context);
        shares.map_err(|found| format!("pools.foundation.context_parallel: {found}"))?;
        if layout.cp > 1 && splits.chunk_tokens > 0 {
            return Err("pools.foundation: rows are cut by context_parallel or by chunk_tokens, not by both".into());
        }
        let division = Division::of(&mesh, splits.sequence_parallel);
        let family = match division.is_whole() {
            true => family.clone(),
            false => family.divided(&division).map_err(|found| format!("pools.foundation: {found}"))?,
        };
        let pipeline = Pipeline { ranks: layout.pp, virtual_stages: splits.virtual_stages };
        let stages = cut(family.as_ref(), pipeline)?;
        let own = pipeline.stages_of(mesh.place().pp).map(|stage| stages[stage].clone()).collect();
        Ok(Self { mesh, splits, family, is_whole: division.is_whole(), pipeline, own })
    }

    pub fn specs(&self) -> Vec<ParamSpec> {
        self.own.iter().flat_map(|stage| self.family.stage_specs(stage)).collect()
    }

    /// Among the ranks of `mesh.data`.
    pub fn sharding(&self) -> Sharding {
        Sharding::among(Shared::of_level(self.splits.zero), &self.mesh)
    }

    /// A pool along `mesh.data` with this share's parameters, made a part of the whole.
    pub fn join(&self, pool: Pool) -> Pool {
        let pool = pool.with_stages(self.mesh.pp.clone(), &self.family.shared_by_stages());
        if self.is_whole { pool } else { pool.split_among(self.mesh.clone()) }
    }

    pub fn stages(&self, params: &ParamStore, policy: Policy) -> Stages {
        let build = |stage| self.family.build_stage(stage, params, policy);
        let models = self.own.iter().map(build).collect();
        Stages::new(self.mesh.clone(), self.pipeline, models, self.splits.chunk_tokens)
            .with_context(self.splits.context)
            .overlapping_experts(self.splits.expert_overlap)
    }
}

/// The stages of a pipeline in order; all of the model without one.
///
/// # Errors
/// The model cannot be cut so.
pub(super) fn cut(family: &dyn FoundationFamily, pipeline: Pipeline) -> Result<Vec<Stage>, EngineError> {
    let num_layers = family.num_layers();
    if pipeline.stages() == 1 {
        return Ok(vec![Stage::whole(num_layers)]);
    }
    let error = |what: String| format!("pools.foundation.pipeline_parallel: {what}");
    let too_many = || match num_layers {
        0 => error("this model cannot be cut into stages; set it to 1".into()),
        _ => error(format!("{} stages of {num_layers} layers; take fewer", pipeline.stages())),
    };
    let stages = Stage::all(pipeline.layers(num_layers).ok_or_else(too_many)?);
    stages.iter().try_for_each(|stage| family.check_stage(stage)).map_err(|found| error(found.to_string()))?;
    Ok(stages)
}

/// A rank's share of an encoder.
pub(super) struct EncoderShare {
    mesh: Rc<Mesh>,
    pub family: Arc<dyn EncoderFamily>,
    zero: usize,
}

impl EncoderShare {
    /// # Errors
    /// The encoder cannot be split so.
    pub fn new(family: &Arc<dyn EncoderFamily>, mesh: Rc<Mesh>, zero: usize) -> Result<Self, EngineError> {
        let division = Division::of(&mesh, false);
        let family = match division.is_whole() {
            true => family.clone(),
            false => family.divided(&division).map_err(|found| format!("pools.encoder: {found}"))?,
        };
        Ok(Self { mesh, family, zero })
    }

    /// Among the ranks of `mesh.data`.
    pub fn sharding(&self) -> Sharding {
        Sharding::among(Shared::of_level(self.zero), &self.mesh)
    }

    /// As [`FoundationShare::join`].
    pub fn join(&self, pool: Pool) -> Pool {
        if self.mesh.tp.world() == 1 { pool } else { pool.split_among(self.mesh.clone()) }
    }
}
