//! Models: single-device code, cut into the segments of a tape. No communicator comes in here.
//!
//! `family/` has one short file a family, which reads its `config.json`; `decoder/` is what all language models share,
//! `vision/` what all vision towers and projectors do.

mod decoder;
mod family;
mod interface;
mod keys;
mod loss;
mod registry;
mod rope_config;
mod target_scores;
mod tree_names;
mod vision;
mod vocab_scores;

pub use decoder::{
    Balance, Decoder, DecoderConfig, Decoding, DivisionError, ExpertSet, FeedForwardConfig, LayerConfig, MixerConfig,
    MtpConfig, MtpNames, MtpPlace, Names, NotSplit, Prompt, RoutedExperts, RouterLosses, Routing, Sampling, Stage,
    StageError, Targets, TextBatch, TextOptions, TextTape, TokenScores, generate,
};
pub use family::custom::parts_config;
pub use interface::{
    EncoderFamily, EncoderModel, EncoderTape, FoundationFamily, FoundationModel, FoundationTape, MicroBatch,
};
pub use keys::ModelConfigError;
pub use registry::{ModelConfig, Tokens};
pub use tree_names::{TreeNames, TreePart};
pub use vision::{
    AxialOrder, AxialRope, BlockConfig, ClassToken, MergeNorm, MlpNames, PatchEmbed, PatchOrder, PositionTable,
    ProjectorConfig, ProjectorKind, Span, TowerConfig, VisionConfig, VisionNorm, Windows,
};
