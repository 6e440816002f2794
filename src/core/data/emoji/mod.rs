//! Pictures of emoji with dialogues about them: a few thousand real samples in the `sharegpt` layout, from the npm packages
//! `emoji-datasource-*`, and a small model to learn them.

mod compose;
mod merges;
mod package;
mod picture;

pub use compose::{Composed, compose};
pub(super) use merges::learn_merges;

use super::digits::{MODEL, ModelSize};

/// The number of merges of the tokenizer, beyond bytes: whole words of most captions.
const NUM_MERGES: usize = 1784;

/// A Qwen3-VL of 1.3 M parameters, for pictures of 64 × 64 on white: 16 patches, 4 features.
pub const EMOJI_MODEL: ModelSize = ModelSize {
    hidden_size: 128,
    intermediate_size: 256,
    num_hidden_layers: 2,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    head_dim: 32,
    mrope_section: [6, 5, 5],
    vision_hidden_size: 112,
    vision_intermediate_size: 224,
    deepstack_visual_indexes: &[],
    num_position_embeddings: 16,
    patch_size: 16,
    image_mean: 1.0,
    image_std: 0.35,
    ..MODEL
};
