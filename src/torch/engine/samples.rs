//! Makes frames of latents in a foundation actor: the decoder of the model's autoencoder, and who writes its frames.

use super::foundation::{HandOver, SampleMaking, SamplePart, UntrainedPart};
use super::lora::TrainedError;
use super::pool_specs::splits;
use super::share::FoundationPlan;
use super::trained::trained_stage;
use super::weight_budget::both_within_budget;
use super::weights::{expect_weights_of, initialize};
use crate::model::{Autoencoder, FoundationFamily, MakeSettings, ModelConfig, SampleRow, TreeNames};
use crate::params::{ParallelRank, ParamSpec, ParamStore};
use crate::train::WeightsError;
use loongforge_core::config::{Part, RunConfig};
use loongforge_core::engine::EngineError;
use loongforge_core::message::{PoolName, SampleId, StepId};
use loongforge_core::observe::{Clip, ObserveError};
use std::sync::Arc;
use tch::{Device, Kind, Tensor};

/// Says how a diffusion model's samples are made and shown.
#[derive(Clone)]
pub struct SampleSpec {
    pub settings: MakeSettings,
    pub autoencoder: Autoencoder,
    /// Frames a second of clips.
    pub fps: f64,
    /// The averages of the weights are not put in their place (`sample.ema`).
    pub own_weights: bool,
    pub write: WriteClip,
    /// The level below which the transformer of low noise predicts, where the model has two.
    pub boundary: f64,
    pub hand_over: HandOver,
    /// The transformer that is not trained, where a run trains one of two.
    pub other: Option<UntrainedTransformer>,
}

/// One of two transformers, which makes samples with the one that is trained.
#[derive(Clone)]
pub struct UntrainedTransformer {
    pub family: Arc<dyn FoundationFamily>,
    /// It is of high noise.
    pub is_high: bool,
}

impl UntrainedTransformer {
    /// Checks that the actors of `pools.foundation` can have it beside the transformer that is trained, before there are any.
    ///
    /// # Errors
    /// It cannot be split as the pool says, the weight budget is too small for both, or `model.load` lacks a tensor of it, or has one of
    /// another shape.
    pub fn check(&self, config: &RunConfig, model: &ModelConfig) -> Result<(), EngineError> {
        let (name, part) = (PoolName::FOUNDATION, &config.model.foundation);
        let pool = config.foundation_pool(name);
        let (layout, splits) = (pool.layout(), splits(&pool));
        let first = ParallelRank::first(layout, splits.sequence_parallel);
        let plan = |family: &Arc<dyn FoundationFamily>| FoundationPlan::new(family, layout, &first, &splits, name);
        let (own, other) = (plan(model.foundation_of(name))?, plan(&self.family)?);
        for stage in 0..layout.pp {
            let own = trained_stage(own.specs(stage), &model.tree, |_| ("model.foundation", part))?;
            both_within_budget(config, own, untrained_stage(other.specs(stage), &model.tree, config)?)?;
        }
        let unfit = |error: WeightsError| {
            format!(
                "`sample` reads the transformer that is not trained from model.load; without it, leave the section out: \
                 {error}"
            )
        };
        Ok(expect_weights_of(config, &self.family.specs()).map_err(unfit)?)
    }
}

/// Writes what was made of a prompt before a step; returns the name of the file in the run's folder.
pub type WriteClip = Arc<dyn Fn(StepId, SampleId, &Clip) -> Result<String, ObserveError> + Send + Sync>;

impl SampleSpec {
    /// Says how the actors of a foundation pool make samples, with `other` where they train one of two transformers. The first rank of a
    /// replica decodes them, in float32, with the weights that the run begins with: the autoencoder is not trained.
    ///
    /// # Errors
    /// The weights of the decoder are missing, or torn.
    pub(super) fn making(
        &self,
        config: &RunConfig,
        device: Device,
        pool: PoolName,
        is_leader: bool,
        other: Option<UntrainedPart>,
    ) -> Result<SampleMaking, EngineError> {
        let SampleSpec { settings, autoencoder, fps, write, boundary, hand_over, .. } = self.clone();
        let part = match pool {
            PoolName::FOUNDATION_HIGH => return Ok(SampleMaking::high_noise(settings, boundary, hand_over)),
            PoolName::FOUNDATION_LOW => SamplePart::Low(boundary, hand_over),
            _ => SamplePart::Whole,
        };
        if !is_leader {
            let finish = |_: StepId, _: &SampleRow, _: &Tensor| Err("only the first rank decodes samples".into());
            return Ok(SampleMaking { settings, part, other, finish: Box::new(finish) });
        }
        let params = ParamStore::new(autoencoder.decoder_specs(), Kind::Float, device);
        params.set_trainable(false);
        initialize(config, &params)?;
        let finish = move |step: StepId, row: &SampleRow, latents: &Tensor| {
            let clip = decode(&autoencoder, &params, row, latents, fps)?;
            Ok(write(step, row.id, &clip)?)
        };
        Ok(SampleMaking { settings, part, other, finish: Box::new(finish) })
    }
}

/// Returns the frames of the latents `[tokens, width]` of a sample; `params` have the decoder's parameters.
///
/// # Errors
/// The sample has no size.
pub fn decode(
    autoencoder: &Autoencoder,
    params: &ParamStore,
    row: &SampleRow,
    latents: &Tensor,
    fps: f64,
) -> Result<Clip, EngineError> {
    let _no_grad = tch::no_grad_guard();
    let grid = row.target.ok_or("the result has no size")?.grid;
    let latents = latents.to_kind(Kind::Float).to_device(params.flat().device());
    let frames = autoencoder.decoder(params).decode(&latents, [grid.t, grid.h, grid.w].map(i64::from), None);
    let sizes: Vec<usize> = frames.size().into_iter().map(|size| size as usize).collect();
    let sizes = <[usize; 4]>::try_from(sizes).map_err(|sizes| format!("frames have the shape {sizes:?}"))?;
    let values = frames.to_kind(Kind::Float).to_device(Device::Cpu).contiguous().view([-1]);
    let values = Vec::<f32>::try_from(values).map_err(|error| format!("frames: {error}"))?;
    Ok(Clip::from_values(&values, sizes, fps))
}

/// Returns parameters of a stage as the run holds those of the transformer that is not trained.
///
/// # Errors
/// A weight cannot be rounded.
pub(super) fn untrained_stage(
    specs: Vec<ParamSpec>,
    tree: &TreeNames,
    config: &RunConfig,
) -> Result<Vec<ParamSpec>, TrainedError> {
    let part = untrained_part(config);
    trained_stage(specs, tree, |_| ("model.foundation", &part))
}

/// Returns the part of the config that the transformer that is not trained would have: it is frozen.
pub(super) fn untrained_part(config: &RunConfig) -> Part {
    let frozen_precision = config.model.foundation.frozen_precision;
    Part { freeze: Some(true), frozen_precision, ..Part::default() }
}
