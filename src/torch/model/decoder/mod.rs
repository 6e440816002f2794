//! The decoder-only transformer that all language models here are: what differs between families is data.
//!
//! A family's file in `family/` reads its `config.json` into a [`DecoderConfig`]; everything else is here.

mod batch;
mod config;
mod cut;
mod divided;
mod generate;
mod layer;
#[cfg(test)]
mod memory_tests;
mod moe;
mod mtp;
mod names;
mod record;
mod regions;
mod router_losses;
mod sampling;
mod score;
mod stage;
mod transformer;

pub use batch::{ExpertSet, RoutedExperts, RouterLosses, Routing, Targets, TextBatch, TextOptions, TextTape};
pub use config::{Balance, DecoderConfig, FeedForwardConfig, LayerConfig, MixerConfig};
pub use cut::NotSplit;
pub use divided::DivisionError;
pub use generate::{Decoding, Prompt, generate};
pub use mtp::{MtpConfig, MtpNames, MtpPlace};
pub use names::Names;
pub use sampling::Sampling;
pub use score::TokenScores;
pub use stage::{Stage, StageError};
pub use transformer::Decoder;
