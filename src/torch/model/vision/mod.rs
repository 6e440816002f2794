//! Vision towers and projectors. One computation serves every tower (`tower.rs`, as `tower_config.rs` says); a file for each published
//! tower reads its config. The files in `family/` say which families have which encoder.

pub(super) mod clip;
pub(super) mod dinov2;
pub(super) mod eagle;
mod embed;
mod encoder;
pub(super) mod ernie;
mod halving;
pub(super) mod intern;
pub(super) mod keys;
mod layout;
pub(super) mod minicpm;
pub(super) mod moon;
pub(super) mod parts;
mod projector;
pub(super) mod qwen2;
pub(super) mod qwen2_5;
pub(super) mod qwen3;
mod resampler;
pub(super) mod rice;
pub(super) mod siglip;
mod tower;
mod tower_config;

pub use encoder::VisionConfig;
pub(super) use encoder::VisionEncoder;
pub use layout::{PatchOrder, Span};
pub use projector::{MergeNorm, ProjectorConfig, ProjectorKind};
pub use tower_config::{ClassToken, PatchEmbed, PositionTable, TowerConfig, Windows};
