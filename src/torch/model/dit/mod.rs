//! Diffusion transformers: Wan and Qwen-Image. A micro-batch is samples of any size end to end; each has its target, at a
//! noise level of its own, and its conditions as features of towers.
//!
//! 1. `sample.rs` finds each sample's latents, prompt and pictures among the features of a micro-batch.
//! 2. `record.rs` noises the targets, and puts the loss behind what the transformer predicts; `family.rs` is its foundation.
//! 3. `wan/` and `qwen_image/` are the transformers, which record their segments between the two.
//! 4. `share.rs` tells which tokens a rank has where several share them.
//! 5. `segments.rs` modulates tokens by their noise level, `rope.rs` turns heads by places, `time.rs` embeds noise levels.

#[cfg(test)]
mod drawn_tests;
#[cfg(test)]
mod dropped_tests;
mod family;
mod maps;
mod network;
#[cfg(test)]
mod parallel_tests;
mod qwen_image;
mod record;
mod rope;
mod sample;
mod segments;
mod share;
#[cfg(test)]
pub(crate) mod tests;
mod time;
mod wan;

pub use family::{DitFamily, TransformerConfig};
pub(super) use maps::outer_map;
pub use qwen_image::QwenImageConfig;
pub(super) use rope::{TokenPosition, places, rotation};
pub(super) use segments::Segments;
pub(super) use time::{TimeEmbedder, exact_sinusoids};
pub(super) use wan::{FeedForward, Head, Patches, PromptAttention, SelfAttention, Tables, Time, TwoMaps, block_specs};
pub use wan::{ImageTokens, WanConfig};
