//! Wan 2.1 and 2.2: text, pictures and first or last frames to clips.

mod block;
mod conditions;
mod config;
mod model;

pub use config::{ImageTokens, WanConfig};
pub(super) use model::Wan;

impl WanConfig {
    pub(super) fn specs(&self) -> Vec<crate::params::ParamSpec> {
        model::specs(self)
    }
}
