//! Pictures of emoji with dialogues about them: a few thousand real samples in the `sharegpt` layout, from the npm packages
//! `emoji-datasource-*`, and a small model to learn them.

mod compose;
mod package;

pub use compose::{Composed, compose};

use super::digits::{MODEL, ModelSize};

/// A Qwen3-VL of 1.5 M parameters, for pictures of 64 × 64.
pub const EMOJI_MODEL: ModelSize = ModelSize {
    hidden_size: 128,
    intermediate_size: 384,
    num_hidden_layers: 4,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    head_dim: 32,
    mrope_section: [6, 5, 5],
    vision_hidden_size: 96,
    vision_intermediate_size: 192,
    image_mean: 0.5,
    image_std: 0.5,
    ..MODEL
};
