//! The typed config tree, one file per section. The doc comment of a field is its documentation in the JSON schema and in
//! `docs/configuration.md`; its `range` is checked when a config is loaded. Rules that involve several keys are in the `validate`
//! modules.

mod audio;
mod checkpoint;
mod data;
mod flow;
mod json_map;
mod lora;
mod media_limits;
mod memory;
mod model;
mod pack;
mod policy;
mod pools;
mod preference;
mod run;
mod sample;
mod score;
mod security;
mod template;
mod tracking;
mod train;
mod train_file;

pub use audio::{Audio, AudioAugment, AudioLimits, BackgroundNoise, MaskFill};
pub use checkpoint::Checkpoint;
pub use data::{BadSamples, Data, Mix, OnChange};
pub use flow::{Density, Experts, FlowLoss, Latents, LossKind, LossWeight, NoiseLevels, Per};
pub use json_map::JsonMap;
pub use lora::Lora;
pub use media_limits::{ImageLimits, Take, VideoLimits};
pub use memory::{ActivationBudget, Memory, WeightBudget};
pub use model::{FrozenPrecision, Model, Moe, Mtp, Part, Recompute, TextTower, Weights};
pub use pack::{Pack, PackMode, TooLong};
pub use policy::{Augment, Embodiment, Normalization, Policy, Statistics};
pub use pools::{
    Balance, ContextAttention, DataPool, Edge, Edges, EncoderPool, FoundationPool, Placement, Pools, Scheduler,
};
pub use preference::{Preference, PreferenceLoss};
pub use run::{Eval, Level, Log, Products, Run, RunConfig, Watch};
pub use sample::{SampleReader, Sampler, Sampling};
pub use score::{Expect, Normalize, Score};
pub use security::{SandboxMode, Security};
pub use template::Template;
pub use tracking::{LogFormat, Mlflow, Otlp, ProfiledSteps, Wandb};
pub use train::{
    AdjustLr, Learn, LossWeighting, Muon, NonFinite, OffloadTo, Optimizer, OptimizerOffload, OptimizerType, Phase,
    Precision, Schedule, Train,
};
pub use train_file::{Format, Paths, Select, TrainFile};
