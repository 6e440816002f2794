//! The decoder-only transformer that all language models here are: what differs between families is data.
//!
//! A family's file in `family/` reads its `config.json` into a [`DecoderConfig`]; everything else is here.

mod batch;
mod config;
mod divided;
mod generate;
mod layer;
mod moe;
mod mtp;
mod names;
mod record;
mod regions;
mod router_losses;
mod sampling;
mod transformer;

pub use batch::{ExpertSet, RoutedExperts, RouterLosses, Routing, Targets, TextBatch, TextOptions, TextTape};
pub use config::{Balance, DecoderConfig, FeedForwardConfig, LayerConfig, MixerConfig};
pub use generate::{Decoding, Prompt, generate};
pub use divided::DivisionError;
pub use mtp::{MtpConfig, MtpNames, MtpPlace};
pub use names::Names;
pub use sampling::Sampling;
pub use transformer::Decoder;
