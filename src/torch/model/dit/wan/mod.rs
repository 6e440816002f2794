//! Wan 2.1 and 2.2: text, pictures and first or last frames to clips.

mod attention;
mod block;
mod conditions;
mod config;
mod embed;
mod layout;
mod model;
#[cfg(test)]
mod tests;

pub(in crate::model) use block::{FeedForward, PromptAttention, SelfAttention, specs as block_specs};
pub use config::{ImageTokens, WanConfig};
pub(in crate::model) use embed::{Head, Patches, Time, TwoMaps};
pub(in crate::model) use layout::Tables;
pub(super) use model::Wan;
