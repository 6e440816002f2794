//! DaViT, the vision tower of Florence-2, with its projector (Ding et al. 2022; `Florence2VisionBackbone` and
//! `Florence2MultiModalProjector` of transformers).
//!
//! 1. `config.rs` is a tower as data.
//! 2. `embed.rs` convolves between stages, `block.rs` is a block of windows or of channels.
//! 3. `projector.rs` adds positions and maps to the width of the language model.
//! 4. `tower.rs` puts them on a tape.

mod block;
mod config;
mod embed;
mod projector;
mod tower;

pub use config::{DavitConfig, StageConfig};
