//! Optimization.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

use super::{FlowLoss, NoiseLevels, Preference};

/// Optimization.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Train {
    /// Loss mask: all tokens of a text (`pretrain`, `midtrain`), or the assistant's (`sft`).
    #[serde(default)]
    pub phase: Phase,
    /// Answers of a conversation that `sft` learns: all, or the last one. A message's own `weight: 0` takes it out of
    /// both.
    #[serde(default)]
    pub learn: Learn,
    /// Learn from pairs of answers, of which people prefer the first, and not to imitate one (DPO and its kin); `null`: no
    /// pairs.
    #[serde(default)]
    pub preference: Option<Preference>,
    /// How much the targets of a sample count, by their number n: 1 each (`token`), 1/n (`sample`: all samples count alike) or 1/√n
    /// (`square`, as InternVL is trained). The loss is the weighted mean over the global batch; held-out losses are means over tokens.
    #[serde(default)]
    pub loss_weighting: LossWeighting,
    /// Label smoothing of the cross-entropy of tokens, as torch's and transformers' `label_smoothing_factor`: the share of each
    /// target that is spread evenly over the vocabulary. Prediction heads are smoothed too; held-out losses are not. 0: none.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.99))]
    pub label_smoothing: f64,
    /// NEFTune: noise on the embeddings of tokens in training, uniform up to `neftune_alpha / sqrt(L D)` in a document of L tokens
    /// and a model of width D; 5 is usual. 0: none.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1e4))]
    pub neftune_alpha: f64,
    /// Optimizer steps; instead of them `epochs` may be given.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1000000000000_u64))]
    pub steps: Option<u64>,
    /// Instead of `steps`: how many epochs, which may be a fraction. The run has `epochs` x samples /
    /// `global_batch_size` steps, rounded up; the samples are those of all files of `data.train` together.
    #[serde(default)]
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub epochs: Option<f64>,
    /// Samples a step, over all replicas; packs, with `data.pack.mode: stream`; groups of answers, with
    /// `train.preference.loss: kto`.
    #[schemars(range(min = 1, max = 16777216))]
    pub global_batch_size: usize,
    /// Most samples in one pack; `null`: as many as `data.pack.max_tokens` holds.
    #[serde(default)]
    #[schemars(range(min = 1, max = 16777216))]
    pub micro_batch_size: Option<usize>,
    /// Compute dtype; master weights and the optimizer stay in float32, but for the moments of `adamw_8bit`.
    #[serde(default)]
    pub precision: Precision,
    /// Peak learning rate.
    #[schemars(range(max = 1e3), extend("exclusiveMinimum" = 0.0))]
    pub lr: f64,
    /// Learning rate at the end of the schedule.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub min_lr: f64,
    /// Course of the learning rate after the warm-up.
    #[serde(default)]
    pub schedule: Schedule,
    /// Steps over which the learning rate rises linearly to its peak.
    #[serde(default)]
    pub warmup_steps: u64,
    /// Instead of `warmup_steps`: their share of all steps, rounded up.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub warmup_ratio: Option<f64>,
    /// The last steps of the schedule `wsd`, over which the learning rate falls; `null`: a tenth of all steps.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub decay_steps: Option<u64>,
    /// Largest gradient norm, over all pools together, or of each of two transformers by itself; 0: no clipping.
    #[serde(default = "clip_grad")]
    #[schemars(range(min = 0.0))]
    pub clip_grad: f64,
    /// The optimizer.
    #[serde(default)]
    pub optimizer: Optimizer,
    /// Diffusion models: the noise levels of training; `null`: logit-normal, without a shift.
    #[serde(default)]
    pub sigma: Option<NoiseLevels>,
    /// Diffusion models: the loss; `null`: the mean square error of samples.
    #[serde(default)]
    pub loss: Option<FlowLoss>,
    /// The part that an average of the trained weights keeps at each step, such as 0.999; in the first steps it keeps less.
    /// Evaluations are of the averages and samples are made with them, and checkpoints have them. `null`: there is no average.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.999999))]
    pub ema: Option<f64>,
    /// Limit above which steps whose loss or gradient is not finite, which are skipped, end the run.
    #[serde(default)]
    pub on_nonfinite: NonFinite,
}

/// The optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Optimizer {
    /// AdamW; `adamw_8bit`, whose moments take a byte for each parameter and not four (bitsandbytes' AdamW8bit); or `muon`, for the
    /// matrices of hidden layers, beside AdamW for all else.
    #[serde(rename = "type")]
    pub kind: OptimizerType,
    /// Decay of the running means of the gradient and of its square; each at least 0 and below 1.
    pub betas: [f64; 2],
    /// Added to the denominator.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub eps: f64,
    /// Decoupled weight decay.
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
    /// What is Muon's own; `null`: its defaults. The other keys are AdamW's beside it, but for `weight_decay`, which is of both.
    pub muon: Option<Muon>,
    /// Keep its state off the device, as DeepSpeed's `offload_optimizer` and Megatron-LM's `--optimizer-cpu-offload` do; `null`: all of
    /// it is on the device.
    pub offload: Option<OptimizerOffload>,
}

/// Where the optimizer's state lies in place of the device: moments, float32 masters and averages. Its step is computed there. On a CPU
/// no bit of a run changes, and checkpoints are the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OptimizerOffload {
    /// The host's memory, or files that the system reads and writes as they are needed.
    pub to: OffloadTo,
    /// For `disk`: the directory of the files, on a fast disk of each host; it is created if it does not exist. They have no names and
    /// are gone when a process ends.
    pub path: Option<PathBuf>,
    /// The part of an actor's trained parameters whose state is moved, the first ones; rounded up to whole parameters.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub fraction: f64,
}

/// A place for the optimizer's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum OffloadTo {
    // The host's memory.
    #[default]
    Cpu,
    // Files in `path`.
    Disk,
}

impl Default for OptimizerOffload {
    fn default() -> Self {
        Self { to: OffloadTo::default(), path: None, fraction: 1.0 }
    }
}

/// Muon (Keller Jordan 2024): momentum with Nesterov's step, and five Newton–Schulz iterations that make each matrix of the update
/// nearly orthogonal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Muon {
    /// Decay of the running mean of the gradient.
    #[schemars(range(min = 0.0, max = 0.9999))]
    pub momentum: f64,
    /// How the learning rate follows the shape of a matrix `[out, in]`: times `0.2 * sqrt(max(out, in))`, with which steps are as
    /// large as AdamW's (`match_rms_adamw`), or times `sqrt(max(1, out / in))` (`original`).
    pub adjust_lr: AdjustLr,
    /// Muon's learning rate as a multiple of `train.lr`, which is AdamW's.
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub lr_ratio: f64,
}

/// How Muon's learning rate follows the shape of a matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum AdjustLr {
    // Times 0.2 * sqrt(max(out, in)).
    #[default]
    MatchRmsAdamw,
    // Times sqrt(max(1, out / in)).
    Original,
}

/// The limit above which skipped steps end the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NonFinite {
    /// Most skipped steps in a row.
    pub max_consecutive: usize,
}

/// Says what a run trains for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Phase {
    // Every token of texts and of rendered messages.
    Pretrain,
    // As `pretrain`, from weights that were trained before.
    Midtrain,
    // What the assistant says in messages.
    #[default]
    Sft,
}

/// Says which of a conversation's answers are learned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Learn {
    // Every answer.
    #[default]
    All,
    // The last answer only; those before it are read.
    Last,
}

/// How much the targets of a sample count in the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum LossWeighting {
    // Every target alike.
    #[default]
    Token,
    // Every sample alike.
    Sample,
    // Between both.
    Square,
}

impl LossWeighting {
    /// The weight of each target of a sample that has `num_targets` of them.
    pub fn of_target(self, num_targets: u32) -> f64 {
        let num_targets = f64::from(num_targets.max(1));
        match self {
            Self::Token => 1.0,
            Self::Sample => num_targets.recip(),
            Self::Square => num_targets.sqrt().recip(),
        }
    }
}

/// Numbers the model computes with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Precision {
    #[default]
    Float32,
    Bf16,
}

/// Course of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Schedule {
    #[default]
    Cosine,
    Constant,
    Linear,
    // Warm-up, stable, decay: constant, and linear to `min_lr` over the last `decay_steps`.
    Wsd,
    // With the square root of the steps of the warm-up over those done, not below `min_lr`.
    #[serde(rename = "inverse_sqrt")]
    InverseSqrt,
}

/// The optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum OptimizerType {
    #[default]
    Adamw,
    // Moments in 8 bits.
    #[serde(rename = "adamw_8bit")]
    Adamw8bit,
    // Muon for the matrices of hidden layers.
    Muon,
}

impl Train {
    /// Steps of the whole run.
    ///
    /// # Panics
    /// The config has `epochs`, and nobody has counted the samples: `data::settle_steps` does.
    pub fn num_steps(&self) -> u64 {
        self.steps.expect("epochs are settled before anybody asks for steps")
    }

    /// Steps of the warm-up of a run of so many steps.
    pub fn num_warmup_steps(&self, steps: u64) -> u64 {
        self.warmup_ratio.map_or(self.warmup_steps, |ratio| (ratio * steps as f64).ceil() as u64)
    }
}

impl Default for Optimizer {
    fn default() -> Self {
        Self { kind: OptimizerType::Adamw, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1, muon: None, offload: None }
    }
}

impl Default for Muon {
    fn default() -> Self {
        Self { momentum: 0.95, adjust_lr: AdjustLr::default(), lr_ratio: 1.0 }
    }
}

impl Default for NonFinite {
    fn default() -> Self {
        Self { max_consecutive: 3 }
    }
}

fn clip_grad() -> f64 {
    1.0
}
