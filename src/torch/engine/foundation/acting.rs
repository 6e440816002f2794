//! Evaluations in which a robot policy acts: a pack at a time, from noise to actions.

use crate::engine::stages::Filled;
use crate::model::{Acting, ActionChunk, Denoising, Draw, FoundationFamily, Observed, SampleRow};
use crate::params::ParamStore;
use loongforge_core::engine::EngineError;
use loongforge_core::message::SampleId;
use tch::{Device, Kind, Tensor};

/// A policy on the parameters that are trained, and the seed of its noise.
pub struct Actor {
    policy: Box<dyn Acting>,
    chunk: ActionChunk,
    seed: u64,
}

impl Actor {
    /// Makes the policy of a family; `None`: the model is none, or one that writes actions as tokens.
    pub fn of(family: &dyn FoundationFamily, params: &ParamStore, seed: u64) -> Option<Actor> {
        let policy = family.as_policy().filter(|policy| !policy.chunk().writes)?;
        Some(Actor { policy: policy.acting(params), chunk: policy.chunk(), seed })
    }

    /// Makes the normalized actions `[chunk_size, max_action_dim]` of each sample of a pack, whose tokens and features are given.
    ///
    /// # Errors
    /// The policy makes no actions of noise.
    pub(super) fn act(&self, Filled { batch, features }: &Filled) -> Result<Vec<(SampleId, Vec<f32>)>, EngineError> {
        let ActionChunk { horizon, action_dim, num_steps, .. } = self.chunk;
        let draw = |row: &SampleRow| Draw { seed: self.seed, sample: row.id, purpose: row.purpose, number: 0 };
        let noise: Vec<Tensor> = batch.samples.iter().map(|row| draw(row).noise(&[horizon, action_dim])).collect();
        let seen: Vec<Tensor> = features.iter().flatten().map(Tensor::shallow_clone).collect();
        let observed = Observed { columns: &batch.columns, cu_seqlens: &batch.cu_seqlens, features: &seen };
        let from = Denoising { noise: &Tensor::cat(&noise, 0), num_steps: num_steps as usize, given: None };
        let actions =
            self.policy.act(observed, from).ok_or("eval.actions: the policy does not generate actions from noise")?;
        let actions = actions.to_device(Device::Cpu).to_kind(Kind::Float).flatten(0, -1).contiguous();
        let flat = Vec::<f32>::try_from(actions).map_err(|error| error.to_string())?;
        let chunks = flat.chunks((horizon * action_dim) as usize).map(<[f32]>::to_vec);
        Ok(batch.samples.iter().map(|row| row.id).zip(chunks).collect())
    }
}
