//! The folder of the tiny policy, without weights: Pi0.5 in small, in lerobot's layout, and a tokenizer that has the words of the
//! instructions.

use super::picture::SIDE;
use super::players::{CAMERA, CHUNK_SIZE, NUM_EXECUTED};
use super::scene::COLORS;
use crate::data::DataError;
use crate::data::diffusion_sets::merges;
use crate::data::digits::{Tokens, tokenizer, tokenizer_config, write_model_files};
use crate::robot::replay::{ACTION, STATE};
use serde_json::{Value as Json, json};
use std::path::Path;

/// Width of the picture tower, of the prefix and of the action expert.
const WIDTH: usize = 48;
const NUM_LAYERS: usize = 3;
/// Small, so that a pad is seen by several patches.
const PATCH: u32 = 4;
const BOS: &str = "<bos>";
const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_end|>", BOS];

/// Writes config and tokenizer.
///
/// # Errors
/// A file cannot be written.
pub fn write_model(dir: &Path) -> Result<(), DataError> {
    let words = [&["go", "to", "the", "pad"][..], &COLORS].concat();
    let merges = merges(&words);
    let tokens = Tokens { merges: &merges, special: &SPECIAL };
    let mut about = tokenizer_config(&tokens, "");
    about["bos_token"] = json!(BOS);
    about["add_bos_token"] = json!(true);
    let files = [
        ("config.json", config(tokens.len())),
        ("tokenizer.json", tokenizer(&tokens)),
        ("tokenizer_config.json", about),
    ];
    write_model_files(dir, None, &files)
}

fn config(vocabulary: usize) -> Json {
    let stream = |mlp_dim: usize| json!({"width": WIDTH, "depth": NUM_LAYERS, "mlp_dim": mlp_dim, "num_heads": 4, "num_kv_heads": 4, "head_dim": 16});
    json!({
        "type": "pi05",
        "n_obs_steps": 1,
        // The token that features of pictures replace: one more than the tokenizer has.
        "image_token_id": vocabulary,
        "chunk_size": CHUNK_SIZE,
        "n_action_steps": NUM_EXECUTED,
        "max_state_dim": 2,
        "max_action_dim": 2,
        "num_inference_steps": 5,
        "time_sampling_beta_alpha": 1.5,
        "time_sampling_beta_beta": 1.0,
        "time_sampling_scale": 0.999,
        "time_sampling_offset": 0.001,
        "min_period": 4e-3,
        "max_period": 4.0,
        "image_resolution": [SIDE, SIDE],
        "empty_cameras": 0,
        "tokenizer_max_length": 48,
        "use_relative_actions": false,
        // Actions are divided by their deviation.
        "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"},
        "input_features": {
            CAMERA: {"type": "VISUAL", "shape": [3, SIDE, SIDE]},
            STATE: {"type": "STATE", "shape": [2]},
        },
        "output_features": {ACTION: {"type": "ACTION", "shape": [2]}},
        "sizes": {
            "vocab_size": vocabulary + 1,
            "vision": {
                "hidden_size": WIDTH,
                "intermediate_size": 2 * WIDTH,
                "num_hidden_layers": 1,
                "num_attention_heads": 4,
                "num_channels": 3,
                "image_size": SIDE,
                "patch_size": PATCH,
                "hidden_act": "gelu_pytorch_tanh",
                "layer_norm_eps": 1e-6,
                "attention_dropout": 0.0,
            },
            "text": stream(2 * WIDTH),
            "expert": stream(3 * WIDTH),
            "state_token": true,
            // A tiny policy that is trained from nothing looks at no picture without it.
            "initialization": "visual",
        },
    })
}
