//! Models: single-device code, cut into the segments of a tape. No communicator comes in here.
//!
//! `family/` has one short file a family, which reads its `config.json`; `decoder/` is what all language models share,
//! `policy/` what robot policies of two streams are and what all offer, `vision/` what all vision towers and projectors do, `audio/` what
//! all audio towers do, `tower_blocks/` what both kinds have, `text/` what makes a language model or an encoder of text a tower.

mod alike;
mod audio;
mod bart;
mod batch;
mod columns;
mod config;
mod davit;
mod decoder;
mod decoding;
mod dit;
mod encoder;
mod family;
mod fixture;
mod fixtures;
mod foundation;
mod groot;
mod keys;
mod objective;
mod original_names;
mod own;
mod parallel_errors;
mod policy;
mod reference;
mod reference_items;
mod registry;
mod rope_config;
mod rope_scaling;
mod routing;
mod sampler;
mod sampling;
mod stage;
mod text;
mod tower_blocks;
mod towers;
mod tree_names;
mod vae;
mod vision;
mod wam;
mod xvla;

pub use alike::Alike;
pub use audio::{AudioConfig, AudioPositions, AudioProjectorConfig, AudioTowerConfig, ProjectorMap, StemConfig};
pub use bart::{
    AnswerTokens, AnsweredSamples, BartConfig, EncoderDecoder, EncoderDecoderConfig, EncoderDecoderFamily, StackConfig,
};
pub use batch::{MicroBatch, SampleRow};
pub use columns::{Column, Columns, INPUT_IDS, POSITION_IDS, RowCount, TARGETS, token_columns};
pub use config::{CarriedParts, ModelConfig, Tokens};
pub use decoder::{
    Balance, Decoder, DecoderConfig, DecoderFamily, DecodingRanks, EmbeddingNoise, FeedForwardConfig, LayerConfig,
    MixerConfig, MtpConfig, MtpNames, MtpPlace, Names, Neftune, Prompt, Sees, Targets, TextBatch, TextOptions,
    TextTape, TokenScores, generate, generate_among, generate_each,
};
pub use decoding::{Continued, Decoding, Likelihood};
#[cfg(test)]
pub(crate) use dit::tests as dit_tests;
pub use dit::{DitFamily, ImageTokens, QwenImageConfig, TransformerConfig, WanConfig};
pub use encoder::{EncoderFamily, EncoderModel, EncoderTape};
pub use family::custom::parts_config;
pub use fixture::{
    Comparison, Comparisons, FixtureError, ReferenceFixture, json as fixture_json, tensors as fixture_tensors,
};
pub use fixtures::open_fixture;
pub use foundation::{FoundationFamily, FoundationModel, FoundationShape, FoundationTape, Noised, VelocityTape};
pub use groot::{GrootConfig, TransformerSizes, Tuned};
pub use keys::ModelConfigError;
pub use objective::{
    Draw, FlowSettings, Kto, LossKind, NoisePurpose, Preference, PreferenceLoss, Smoothing, TimeWeight,
};
pub use original_names::{
    COMFY_PREFIX, DeepseekV4Names, FastwamNames, FlorenceNames, FreshNames, GrootNames, ModuleNames, Naming,
    PolicyNames,
};
pub use own::{EncoderPart, FoundationPart, OwnFamilies, ReadEncoder, ReadFoundation, register_families};
pub use parallel_errors::{ContextParallelError, TensorParallelError};
pub use policy::{
    Acting, ActionChunk, Denoising, Observed, PolicyConfig, PolicyOptions, RobotPolicy, StateToken, StreamConfig,
    TimeUse,
};
pub use reference::{AnswersError, REFERENCE_PREFIX};
pub use routing::{ExpertSet, RoutedExperts, RouterLosses, Routing};
pub use sampler::{
    Guidance, GuidanceScales, Levels, MakeSettings, Method, Sampler, Schedule, ScheduleError, Shift, Underway, velocity,
};
pub use sampling::Sampling;
pub use stage::{Stage, StageError};
pub use text::{T5Config, TextConfig, TextTowerConfig};
pub use tower_blocks::{AxialOrder, AxialRope, BlockConfig, MlpNames, TowerNorm};
pub use towers::{FeatureInput, ModelTower, Towers, with_values};
pub use tree_names::{TreeNames, TreePart};
pub use vae::{Autoencoder, LatentPatch, PixelLatents, Tiles, VaeConfig, VaeDecoder, VaeLatents};
pub use vision::{
    ClassToken, MergeNorm, PatchEmbed, PatchOrder, PositionTable, ProjectorConfig, ProjectorKind, Span, TowerConfig,
    VisionConfig, Windows,
};
pub use wam::WamConfig;
