//! Models: single-device code, cut into the segments of a tape. No communicator comes in here.
//!
//! `family/` has one short file a family, which reads its `config.json`; `decoder/` is what all language models share.

mod decoder;
mod family;
mod interface;
mod keys;
mod loss;
mod qwen3_vl;
mod registry;
mod rope_config;
mod vision_config;

pub use decoder::{
    Balance, Decoder, DecoderConfig, Decoding, FeedForwardConfig, LayerConfig, MixerConfig, MtpConfig, MtpNames, MtpPlace,
    Names, Prompt, RoutedExperts, RouterLosses, Routing, Sampling, Targets, TextBatch, TextOptions, TextTape, generate,
};
pub use interface::{
    EncoderFamily, EncoderModel, EncoderTape, FoundationFamily, FoundationModel, FoundationTape, MicroBatch,
};
pub use keys::ModelConfigError;
pub use registry::ModelConfig;
