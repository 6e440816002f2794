//! Gated delta nets (Yang, Kautz and Hatamizadeh 2024), the linear attention of Qwen3-Next and Qwen3.5, over packed
//! sequences: neither the convolution nor the state passes from one document to the next.

mod block;
mod config;
mod conv;
mod documents;
mod rule;

pub use block::GatedDelta;
pub use config::{GatedDeltaConfig, GatedDeltaLayout};
pub use documents::DeltaDocuments;
