//! The decoder-only transformer that all language models here are: what differs between families is data.
//!
//! A family's file in `family/` reads its `config.json` into a [`DecoderConfig`]; everything else is here.
//!
//! How a layer of Qwen3 runs, file by file:
//!
//! 1. `family/qwen3.rs` and `family/common.rs` read the config: sizes, norms of queries and keys, RoPE.
//! 2. `config.rs` has what they come to: a [`LayerConfig`] with a mixer and a feed-forward.
//! 3. `transformer.rs` makes a [`Decoder`] of it on the parameters of a store; `layer.rs` makes each layer.
//! 4. `record.rs`: `Decoder::tape` puts a micro-batch on the tape: embedding, features of towers, layers; `record_ends.rs` puts the
//!    norm and the loss behind them.
//! 5. `layer.rs`: `Layer::record` puts two segments on the tape, mixer and feed-forward, each with its norm before it and its
//!    residual behind it.
//! 6. The mixer's segment runs `nn/self_attention.rs`: queries, keys and values, `nn/rope.rs`, then `nn/attention.rs`, which
//!    goes over the documents of a pack and calls `nn/attend.rs` for each batch of documents of like length.
//!
//! Where ranks share a layer, `regions.rs` and `recording.rs` put what goes between them around the segments, and `cut.rs` takes
//! the mixer apart where they share a row. Nothing of that is on the tape of one rank.

mod batch;
mod branch;
mod config;
mod cut;
mod decoding_ranks;
mod divided;
mod family;
mod generate;
mod layer;
#[cfg(test)]
mod memory_tests;
mod moe;
mod mtp;
mod names;
mod neftune;
mod record;
mod record_ends;
mod record_mtp;
mod recording;
mod regions;
mod router_losses;
mod rows;
mod score;
mod sees;
mod shape;
mod shared;
#[cfg(test)]
mod shared_tests;
mod stage;
mod states;
mod streams;
mod transformer;

pub use batch::{Targets, TextBatch, TextOptions, TextTape};
pub use config::{
    Balance, DecoderConfig, FeedForwardConfig, LayerConfig, MixerConfig, MtpConfig, MtpNames, MtpPlace, MtpProjection,
};
pub use decoding_ranks::DecodingRanks;
pub use family::DecoderFamily;
pub use generate::{Prompt, generate, generate_among, generate_each};
pub use names::Names;
pub use neftune::{EmbeddingNoise, Neftune};
pub use score::TokenScores;
pub use sees::Sees;
pub(super) use states::Interleaved;
pub use transformer::Decoder;
