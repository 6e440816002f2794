//! Folders of the tiny models, without weights: a transformer, no autoencoder but the pixels, a text tower, and a tokenizer
//! that has the words of the data set.

use std::path::Path;

use serde_json::{Value as Json, json};

use crate::data::digits::{MAX_POSITION_EMBEDDINGS, Tokens, tokenizer, tokenizer_config, write_model_files};
use crate::data::error::DataError;

/// Rows of text that Wan's attention sees. With the 512 of the published models a word would be lost among equal rows of
/// padding, and be learned slowly.
const TEXT_ROWS: usize = 4;
/// Width of a row of text.
const TEXT: usize = 32;
const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// Returns the config of a small Qwen-Image: 4 layers of 4 heads, 16 wide.
pub fn qwen_image() -> Json {
    json!({
        "_class_name": "QwenImageTransformer2DModel",
        "patch_size": 2,
        "in_channels": 4,
        "out_channels": 1,
        "num_layers": 4,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "joint_attention_dim": TEXT,
        "guidance_embeds": false,
        "axes_dims_rope": [4, 6, 6],
    })
}

/// Returns the config of Wan's picture to video in small: 4 layers of 3 heads, 24 wide. Channels are the noisy one, a mask and the
/// condition.
pub fn wan() -> Json {
    json!({
        "_class_name": "WanTransformer3DModel",
        "patch_size": [1, 2, 2],
        "num_attention_heads": 3,
        "attention_head_dim": 24,
        "in_channels": 3,
        "out_channels": 1,
        "text_dim": TEXT,
        "freq_dim": 256,
        "ffn_dim": 192,
        "num_layers": 4,
        "cross_attn_norm": true,
        "qk_norm": "rms_norm_across_heads",
        "eps": 1e-6,
        "rope_max_seq_len": 64,
    })
}

/// Writes the config of a model with this transformer, and its tokenizer. Each word is one token, with and without a space
/// before it; all else is bytes.
///
/// # Errors
/// A file cannot be written.
pub fn write_model(
    dir: &Path,
    transformer: &Json,
    pipeline: &str,
    shift: f64,
    words: &[&str],
) -> Result<(), DataError> {
    let merges = merges(words);
    let tokens = Tokens { merges: &merges, special: &SPECIAL };
    let config = json!({
        "model_type": "loongforge_diffusion",
        "pipeline": pipeline,
        "text_rows": TEXT_ROWS,
        "transformer": transformer,
        "vae": {"_class_name": "PixelLatents", "channels": 1},
        "text_encoder": {
            "model_type": "umt5",
            "vocab_size": tokens.len(),
            "d_model": TEXT,
            "d_kv": 8,
            "d_ff": 2 * TEXT,
            "num_layers": 2,
            "num_heads": 4,
            "relative_attention_num_buckets": 32,
            "relative_attention_max_distance": 128,
            "feed_forward_proj": "gated-gelu",
            "layer_norm_epsilon": 1e-6,
            "eos_token_id": tokens.id("<|im_end|>"),
            "max_position_embeddings": MAX_POSITION_EMBEDDINGS,
        },
        "scheduler": {
            "_class_name": "FlowMatchEulerDiscreteScheduler",
            "num_train_timesteps": 1000,
            "shift": shift,
            "use_dynamic_shifting": false,
        },
    });
    let files = [
        ("config.json", config),
        ("tokenizer.json", tokenizer(&tokens)),
        ("tokenizer_config.json", tokenizer_config(&tokens, "QwenImageProcessor")),
    ];
    write_model_files(dir, None, &files)
}

/// Returns the merges that make a token of each word, letter by letter, and one with the space before it.
pub fn merges(words: &[&str]) -> Vec<[String; 2]> {
    let mut merges: Vec<[String; 2]> = Vec::new();
    for word in words {
        for end in 1..word.len() {
            let merge = [word[..end].to_owned(), word[end..=end].to_owned()];
            if !merges.contains(&merge) {
                merges.push(merge);
            }
        }
    }
    // A space is written so.
    merges.extend(words.iter().map(|word| ["\u{120}".to_owned(), (*word).to_owned()]));
    merges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::tokenizer::Tokenizer;

    #[test]
    fn every_word_is_one_token() {
        let dir = tempfile::tempdir().unwrap();
        let words = [super::super::digits::WORDS.as_slice(), super::super::motion::WORDS.as_slice()].concat();
        write_model(dir.path(), &qwen_image(), "QwenImagePipeline", 1.0, &words).unwrap();
        let tokenizer = Tokenizer::open(dir.path(), &json!({"vocab_size": 1000}), &Json::Null).unwrap();
        for word in words {
            for text in [word.to_owned(), format!(" {word}")] {
                assert_eq!(tokenizer.encode(&text).unwrap().len(), 1, "{text:?}");
            }
        }
        assert_eq!(tokenizer.encode("four zero seven").unwrap().len(), 3);
        assert_eq!(tokenizer.encode("407").unwrap().len(), 3);
    }
}
