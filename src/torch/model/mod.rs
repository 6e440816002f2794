//! Models: single-device code, one file a family, cut into the segments of a tape. No communicator comes in here.

mod generate;
mod keys;
mod loss;
mod qwen3;
mod qwen3_vl;
mod registry;
mod rope_config;
mod text_config;
mod vision_config;

pub use generate::{Prompt, generate};
pub use keys::ModelConfigError;
pub use qwen3::{Targets, TextBatch, TextModel, TextOptions, TextTape};
pub use qwen3_vl::{EncoderTape, VisionEncoder};
pub use registry::ModelConfig;
pub use text_config::TextConfig;
pub use vision_config::VisionConfig;
