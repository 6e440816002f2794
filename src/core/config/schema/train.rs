//! Optimization.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

use super::{FlowLoss, Latents, NoiseLevels, Preference};

/// Optimization.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Train {
    /// Loss mask: all tokens of a text (`pretrain`, `midtrain`), or only the assistant's (`sft`).
    #[serde(default)]
    pub phase: Phase,
    /// Answers of a conversation that `sft` trains on: all, or the last one. A message with `weight: 0` is excluded in both cases.
    #[serde(default)]
    pub learn: Learn,
    /// Preference learning from pairs of answers or labeled answers, instead of imitation (DPO and related losses); `null`: none.
    #[serde(default)]
    pub preference: Option<Preference>,
    /// Weight of each target of a sample with n targets: 1 (`token`), 1/n (`sample`: all samples count equally) or 1/√n (`square`,
    /// as in InternVL's training). The loss is the weighted mean over the global batch; held-out losses are means over tokens.
    #[serde(default)]
    pub loss_weighting: LossWeighting,
    /// Label smoothing of the cross-entropy of tokens, as torch's and transformers' `label_smoothing_factor`: the fraction of each
    /// target that is spread evenly over the vocabulary. It also applies to multi-token prediction layers, but not to held-out
    /// losses. 0: none.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.99))]
    pub label_smoothing: f64,
    /// NEFTune: uniform noise on the token embeddings in training, of magnitude up to `neftune_alpha / sqrt(L D)` for a document of
    /// L tokens and a model of width D; 5 is usual. 0: none.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1e4))]
    pub neftune_alpha: f64,
    /// Number of optimizer steps; `epochs` may be set instead, or beside it: the run then has the smaller number of steps.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1000000000000_u64))]
    pub steps: Option<u64>,
    /// Number of epochs, which may be fractional. The run has `epochs` x samples / `global_batch_size` steps,
    /// rounded up; samples are counted over all files of `data.train`.
    #[serde(default)]
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub epochs: Option<f64>,
    /// Samples per step, over all replicas; with `data.pack.mode: stream` packs, with `train.preference.loss: kto` groups of
    /// answers.
    #[schemars(range(min = 1, max = 16777216))]
    pub global_batch_size: usize,
    /// Maximum number of samples in one pack; `null`: as many as fit in `data.pack.max_tokens`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 16777216))]
    pub micro_batch_size: Option<usize>,
    /// Compute dtype; master weights and optimizer state are float32, except the moments of `adamw_8bit`.
    #[serde(default)]
    pub precision: Precision,
    /// Peak learning rate.
    #[schemars(range(max = 1e3), extend("exclusiveMinimum" = 0.0))]
    pub lr: f64,
    /// Learning rate at the end of the schedule.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub min_lr: f64,
    /// Learning rate schedule after the warm-up.
    #[serde(default)]
    pub schedule: Schedule,
    /// Number of steps over which the learning rate rises linearly to its peak.
    #[serde(default)]
    pub warmup_steps: u64,
    /// Instead of `warmup_steps`: the fraction of all steps, rounded up.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub warmup_ratio: Option<f64>,
    /// Number of steps at the end of the schedule `wsd` over which the learning rate decays; `null`: a tenth of all steps, or what the
    /// warm-up leaves.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub decay_steps: Option<u64>,
    /// Maximum gradient norm, over all pools together; with two transformers, of each one separately. 0: no clipping.
    #[serde(default = "clip_grad")]
    #[schemars(range(min = 0.0))]
    pub clip_grad: f64,
    /// The optimizer.
    #[serde(default)]
    pub optimizer: Optimizer,
    /// Diffusion models: noise levels in training; `null`: logit-normal, without a shift.
    #[serde(default)]
    pub sigma: Option<NoiseLevels>,
    /// Diffusion models: the loss; `null`: the mean squared error, averaged over samples.
    #[serde(default)]
    pub loss: Option<FlowLoss>,
    /// Diffusion models: the latent of a picture or clip that is trained on. `mean`: the mean that the autoencoder gives; `sample`: one
    /// drawn from its distribution each time the sample is read, as in Diffusers' DreamBooth scripts. Conditions and held-out losses
    /// use the mean.
    #[serde(default)]
    pub latents: Latents,
    /// Decay of an exponential moving average of the trained weights, such as 0.999; lower in the first steps. Evaluation and
    /// sampling use the averages, and checkpoints contain them. `null`: no average.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.999999))]
    pub ema: Option<f64>,
    /// Limit on skipped steps. Steps with a loss or gradient that is not finite are skipped; above the limit the run ends.
    #[serde(default)]
    pub on_nonfinite: NonFinite,
}

/// The optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Optimizer {
    /// AdamW; `adamw_8bit`, whose moments take one byte per parameter instead of four (bitsandbytes' AdamW8bit); or `muon`, for the
    /// matrices of hidden layers, with AdamW for all other parameters.
    #[serde(rename = "type")]
    pub kind: OptimizerType,
    /// Decay rates of the running means of the gradient and of its square; each at least 0 and below 1.
    pub betas: [f64; 2],
    /// Added to the denominator for numerical stability.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub eps: f64,
    /// Decoupled weight decay.
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
    /// Settings of Muon; `null`: its defaults. The other keys configure the AdamW used with it, except `weight_decay`, which
    /// applies to both.
    pub muon: Option<Muon>,
    /// Keep optimizer state off the device, as DeepSpeed's `offload_optimizer` and Megatron-LM's `--optimizer-cpu-offload` do;
    /// `null`: all of it stays on the device.
    pub offload: Option<OptimizerOffload>,
}

/// Where to keep optimizer state instead of on the device: moments, float32 master weights and averages. The optimizer step is
/// computed there. On a CPU no bit of a run changes, and checkpoints are the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OptimizerOffload {
    /// Host memory, or files that the operating system reads and writes as needed.
    pub to: OffloadTo,
    /// For `disk`: directory of the files, on a fast disk of each host; created if it does not exist. The files have no names and
    /// disappear when a process ends.
    pub path: Option<PathBuf>,
    /// Fraction of an actor's trained parameters whose state is offloaded, starting with the first; rounded up to whole parameters.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub fraction: f64,
}

/// The place of offloaded optimizer state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum OffloadTo {
    // Host memory.
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

/// Muon (Keller Jordan 2024): Nesterov momentum, and five Newton–Schulz iterations that make each update matrix nearly orthogonal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Muon {
    /// Decay rate of the running mean of the gradient.
    #[schemars(range(min = 0.0, max = 0.9999))]
    pub momentum: f64,
    /// How the learning rate depends on the shape of a matrix `[out, in]`: times `0.2 * sqrt(max(out, in))`, which makes steps as
    /// large as AdamW's (`match_rms_adamw`), or times `sqrt(max(1, out / in))` (`original`).
    pub adjust_lr: AdjustLr,
    /// Muon's learning rate as a multiple of `train.lr`, the rate of AdamW.
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub lr_ratio: f64,
}

/// The dependence of Muon's learning rate on the shape of a matrix.
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

/// Limit on skipped steps, above which the run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NonFinite {
    /// Largest number of consecutive skipped steps.
    pub max_consecutive: usize,
}

/// The tokens that a run is trained on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Phase {
    // Every token of texts and of rendered messages.
    Pretrain,
    // As `pretrain`, starting from trained weights.
    Midtrain,
    // The assistant's answers in messages.
    #[default]
    Sft,
}

/// The answers of a conversation that are trained on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Learn {
    // Every answer.
    #[default]
    All,
    // Only the last answer; earlier ones are context.
    Last,
}

/// The weights of a sample's targets in the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum LossWeighting {
    // All targets equally.
    #[default]
    Token,
    // All samples equally.
    Sample,
    // In between.
    Square,
}

impl LossWeighting {
    /// Returns the weight of each target of a sample with `num_targets` targets.
    pub fn of_target(self, num_targets: u32) -> f64 {
        let num_targets = f64::from(num_targets.max(1));
        match self {
            Self::Token => 1.0,
            Self::Sample => num_targets.recip(),
            Self::Square => num_targets.sqrt().recip(),
        }
    }
}

/// Compute dtype of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Precision {
    #[default]
    Float32,
    Bf16,
}

/// Learning rate schedule after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Schedule {
    #[default]
    Cosine,
    Constant,
    Linear,
    // Warm-up, stable, decay: constant, then linear to `min_lr` over the last `decay_steps`.
    Wsd,
    // Times the square root of warm-up steps over steps done, not below `min_lr`.
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
    /// Returns the number of steps of the whole run.
    ///
    /// # Panics
    /// The config has `epochs`, and nobody has counted the samples: `data::settle_steps` does.
    pub fn num_steps(&self) -> u64 {
        let steps = self.steps.filter(|_| self.epochs.is_none());
        steps.expect("epochs are settled before anybody asks for steps")
    }

    /// Returns the number of warm-up steps of a run of `steps` steps.
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
