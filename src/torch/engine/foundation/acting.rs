//! Evaluations in which a robot policy acts: a pack at a time, from noise to actions.

use super::FoundationWorker;
use super::evaluating::Evaluating;
use crate::engine::stages::Filled;
use crate::model::{Acting, ActionChunk, Denoising, Draw, FoundationFamily, Observed, SampleRow};
use crate::params::ParamStore;
use loongforge_core::engine::{EngineError, Ports, Progress};
use loongforge_core::message::Activity;
use std::time::Instant;
use tch::{Device, Kind, Tensor};

/// A policy on the parameters that are trained, and the seed of its noise.
pub struct Actor {
    policy: Box<dyn Acting>,
    chunk: ActionChunk,
    seed: u64,
}

impl Actor {
    /// `None`: the model is no policy, or one that writes actions as tokens.
    pub fn of(family: &dyn FoundationFamily, params: &ParamStore, seed: u64) -> Option<Actor> {
        let policy = family.as_policy().filter(|policy| !policy.chunk().writes)?;
        Some(Actor { policy: policy.acting(params), chunk: policy.chunk(), seed })
    }

    /// Normalized actions of each sample, `[chunk_size, max_action_dim]`.
    fn act(&self, Filled { batch, features }: &Filled) -> Result<Vec<Vec<f32>>, EngineError> {
        let ActionChunk { horizon, action_dim, num_steps, .. } = self.chunk;
        let draw = |row: &SampleRow| Draw { seed: self.seed, sample: row.id, purpose: row.purpose, number: 0 };
        let noise: Vec<Tensor> = batch.samples.iter().map(|row| draw(row).noise(&[horizon, action_dim])).collect();
        let seen: Vec<Tensor> = features.iter().flatten().map(Tensor::shallow_clone).collect();
        let observed = Observed { columns: &batch.columns, cu_seqlens: &batch.cu_seqlens, features: &seen };
        let from = Denoising { noise: &Tensor::cat(&noise, 0), num_steps: num_steps as usize, given: None };
        let actions = self.policy.act(observed, from).ok_or("eval.actions: the policy makes no actions of noise")?;
        let actions = actions.to_device(Device::Cpu).to_kind(Kind::Float).flatten(0, -1).contiguous();
        let flat = Vec::<f32>::try_from(actions).map_err(|error| error.to_string())?;
        Ok(flat.chunks((horizon * action_dim) as usize).map(<[f32]>::to_vec).collect())
    }
}

impl FoundationWorker {
    /// Acts so where that is asked for.
    pub fn with_actor(self, actor: Option<Actor>) -> Self {
        Self { actor, ..self }
    }

    /// Makes the actions of the next pack, if what it needs is here.
    pub(super) fn act_next(&mut self, ports: &mut Ports) -> Result<Progress, EngineError> {
        let step = &self.steps[0];
        let Some(evaluation) = step.evaluation.as_ref().filter(|evaluation| evaluation.has_left()) else {
            return Ok(Progress::Idle);
        };
        if !self.continues_alone() {
            return Err("eval.actions: actions are made by single ranks with a whole model; set it to 0".into());
        }
        let (id, number) = (step.id, evaluation.num_continued);
        let Some(filled) = self.assemble(number)? else { return Ok(Progress::Idle) };
        let start = Instant::now();
        self.state.params().set_dropout(None);
        let acted = self
            .actor
            .as_ref()
            .ok_or("eval.actions: the model is no robot policy that makes actions of noise")?
            .act(&filled)?;
        let step = &mut self.steps[0];
        if let Some(evaluation) = &mut step.evaluation {
            evaluation.num_continued += 1;
            evaluation.acted.extend(filled.batch.samples.iter().map(|row| row.id).zip(acted));
        }
        step.packs[number].forget();
        ports.trace.span(Activity::Forward, Some((id, Some(number as u32))), start);
        Ok(Progress::Busy)
    }
}

impl Evaluating {
    /// Returns whether actions are made.
    pub fn acts(&self) -> bool {
        self.purpose.is_act()
    }
}
