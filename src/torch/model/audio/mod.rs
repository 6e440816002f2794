//! Audio towers and projectors. One computation serves every tower (`tower.rs`, as `tower_config.rs` says); a file for each kind reads
//! its config. The files in `family/` say which families have which encoder.

mod encoder;
mod keys;
mod layout;
pub(super) mod parts;
mod projector;
pub(super) mod qwen2_5;
pub(super) mod qwen3;
mod stem;
mod tower;
mod tower_config;
pub(super) mod whisper;

pub use encoder::AudioConfig;
pub(super) use projector::AudioProjector;
pub use projector::{AudioProjectorConfig, ProjectorMap};
pub use tower_config::{AudioPositions, AudioTowerConfig, StemConfig};
