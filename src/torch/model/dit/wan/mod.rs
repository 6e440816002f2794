//! Wan 2.1 and 2.2: text, pictures and first or last frames to clips.

mod attention;
mod block;
mod conditions;
mod config;
mod embed;
mod layout;
mod model;

pub use config::{ImageTokens, WanConfig};
pub(super) use model::Wan;
