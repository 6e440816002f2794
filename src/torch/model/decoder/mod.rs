//! The decoder-only transformer that all language models here are: what differs between families is data.
//!
//! A family's file in `family/` reads its `config.json` into a [`DecoderConfig`]; everything else is here.

mod batch;
mod branch;
mod config;
mod cut;
mod divided;
mod family;
mod generate;
mod layer;
#[cfg(test)]
mod memory_tests;
mod moe;
mod mtp;
mod names;
mod record;
mod record_mtp;
mod recording;
mod regions;
mod router_losses;
mod rows;
mod score;
mod shape;
mod stage;
mod states;
mod transformer;

pub use batch::{Targets, TextBatch, TextOptions, TextTape};
pub use config::{Balance, DecoderConfig, FeedForwardConfig, LayerConfig, MixerConfig, MtpConfig, MtpNames, MtpPlace};
pub use family::DecoderFamily;
pub use generate::{Prompt, generate};
pub use names::Names;
pub use score::TokenScores;
pub use transformer::Decoder;
