//! The quick start's model folder, without weights: a tiny Qwen3-VL as Hugging Face would lay it out.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value as Json, json};

use crate::data::error::DataError;
use crate::data::template::QWEN;
use crate::data::tiktoken::byte_letters;

/// Every size of the model, in one place.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSize {
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    /// Pairs of a head's dimensions for frames, rows, columns: half of `head_dim` together.
    pub mrope_section: [usize; 3],
    /// Small, for positions of a few dozen tokens: adjacent columns must look different.
    pub rope_theta: f64,
    /// About one over the root of the width, which learns sooner at this size than the usual 0.02.
    pub initializer_range: f64,
    pub vision_depth: usize,
    pub vision_hidden_size: usize,
    pub vision_intermediate_size: usize,
    pub vision_num_heads: usize,
    pub deepstack_visual_indexes: &'static [usize],
    /// A square table of positions, interpolated to a picture's grid.
    pub num_position_embeddings: usize,
    pub patch_size: usize,
    pub spatial_merge_size: usize,
    pub min_pixels: usize,
    pub max_pixels: usize,
    /// The paper's brightness, so that paper is nothing and ink stands out: with 0.5 it learns many times slower.
    pub image_mean: f64,
    pub image_std: f64,
}

/// The quick start's sizes.
pub const MODEL: ModelSize = ModelSize {
    hidden_size: 96,
    intermediate_size: 256,
    num_hidden_layers: 3,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    head_dim: 24,
    mrope_section: [4, 4, 4],
    rope_theta: 100.0,
    initializer_range: 0.05,
    vision_depth: 3,
    vision_hidden_size: 64,
    vision_intermediate_size: 128,
    vision_num_heads: 4,
    deepstack_visual_indexes: &[1],
    num_position_embeddings: 256,
    patch_size: 8,
    spatial_merge_size: 2,
    min_pixels: 16 * 16,
    max_pixels: 256 * 256,
    image_mean: 0.95,
    image_std: 0.3,
};

const TEMPORAL_PATCH_SIZE: usize = 2;
pub(in crate::data) const MAX_POSITION_EMBEDDINGS: usize = 4096;

/// Tokens behind the 256 bytes, in the order of their ids.
const SPECIAL_TOKENS: [&str; 8] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
];

/// Writes configuration, tokenizer and processor files into `dir`; files that are there are overwritten. A byte is a token.
///
/// # Errors
/// A file cannot be written.
pub fn write_model(dir: &Path, size: &ModelSize) -> Result<(), DataError> {
    write_model_with(dir, size, &[])
}

/// Works like [`write_model`], with a tokenizer of these merges, in the letters of [`byte_letters`].
///
/// # Errors
/// A file cannot be written.
pub fn write_model_with(dir: &Path, size: &ModelSize, merges: &[[String; 2]]) -> Result<(), DataError> {
    let tokens = Tokens { merges, special: &SPECIAL_TOKENS };
    let files = [
        ("config.json", config(size, &tokens)),
        ("generation_config.json", generation_config(&tokens)),
        ("tokenizer.json", tokenizer(&tokens)),
        ("tokenizer_config.json", tokenizer_config(&tokens, "Qwen3VLProcessor")),
        ("preprocessor_config.json", preprocessor_config(size, "Qwen2VLImageProcessor")),
        ("video_preprocessor_config.json", preprocessor_config(size, "Qwen3VLVideoProcessor")),
    ];
    write_model_files(dir, Some(QWEN), &files)
}

/// Writes the chat template, if there is one, and files of JSON into a model's folder; files that are there are overwritten.
pub(crate) fn write_model_files(dir: &Path, template: Option<&str>, files: &[(&str, Json)]) -> Result<(), DataError> {
    fs::create_dir_all(dir).map_err(|error| DataError::write(dir, error))?;
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        fs::write(&path, text).map_err(|error| DataError::write(&path, error))
    };
    template.map_or(Ok(()), |template| write("chat_template.jinja", template))?;
    files.iter().try_for_each(|(name, json)| write(name, &format!("{json:#}\n")))
}

/// Bytes, what they are merged to, special tokens.
pub(crate) struct Tokens<'a> {
    pub merges: &'a [[String; 2]],
    /// The order is that of their ids; `<|endoftext|>` and `<|im_end|>` are among them.
    pub special: &'a [&'a str],
}

impl Tokens<'_> {
    /// Returns the id of a special token.
    pub fn id(&self, token: &str) -> usize {
        let place = self.special.iter().position(|&special| special == token).expect("one of ours");
        256 + self.merges.len() + place
    }

    /// Returns the size of the vocabulary: bytes, merges and special tokens.
    pub fn len(&self) -> usize {
        256 + self.merges.len() + self.special.len()
    }
}

fn config(size: &ModelSize, tokens: &Tokens<'_>) -> Json {
    let id = |token| tokens.id(token);
    json!({
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "dtype": "float32",
        "image_token_id": id("<|image_pad|>"),
        "video_token_id": id("<|video_pad|>"),
        "vision_start_token_id": id("<|vision_start|>"),
        "vision_end_token_id": id("<|vision_end|>"),
        "tie_word_embeddings": true,
        "text_config": {
            "model_type": "qwen3_vl_text",
            "dtype": "float32",
            "vocab_size": tokens.len(),
            "hidden_size": size.hidden_size,
            "intermediate_size": size.intermediate_size,
            "num_hidden_layers": size.num_hidden_layers,
            "num_attention_heads": size.num_attention_heads,
            "num_key_value_heads": size.num_key_value_heads,
            "head_dim": size.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "attention_bias": false,
            "attention_dropout": 0.0,
            "initializer_range": size.initializer_range,
            "max_position_embeddings": MAX_POSITION_EMBEDDINGS,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": size.rope_theta,
                "mrope_section": size.mrope_section,
                "mrope_interleaved": true,
            },
            "use_cache": true,
            "tie_word_embeddings": true,
            "bos_token_id": id("<|endoftext|>"),
            "eos_token_id": id("<|im_end|>"),
            "pad_token_id": id("<|endoftext|>"),
        },
        "vision_config": {
            "model_type": "qwen3_vl_vision",
            "depth": size.vision_depth,
            "hidden_size": size.vision_hidden_size,
            "intermediate_size": size.vision_intermediate_size,
            "num_heads": size.vision_num_heads,
            "hidden_act": "gelu_pytorch_tanh",
            "in_channels": 3,
            "patch_size": size.patch_size,
            "spatial_merge_size": size.spatial_merge_size,
            "temporal_patch_size": TEMPORAL_PATCH_SIZE,
            "out_hidden_size": size.hidden_size,
            "num_position_embeddings": size.num_position_embeddings,
            "deepstack_visual_indexes": size.deepstack_visual_indexes,
            "initializer_range": size.initializer_range,
        },
    })
}

/// Returns the `generation_config.json`: greedy, until a turn or a text ends.
pub(in crate::data) fn generation_config(tokens: &Tokens<'_>) -> Json {
    let id = |token| tokens.id(token);
    json!({
        "bos_token_id": id("<|endoftext|>"),
        "eos_token_id": [id("<|im_end|>"), id("<|endoftext|>")],
        "pad_token_id": id("<|endoftext|>"),
        "do_sample": false,
    })
}

/// Returns a tokenizer of byte-level BPE: a byte's value is its id, merges follow in their order. Without merges words need not be told
/// apart.
pub(crate) fn tokenizer(tokens: &Tokens<'_>) -> Json {
    let spelled = byte_letters().into_iter().map(String::from).chain(tokens.merges.iter().map(|pair| pair.concat()));
    let vocab: Map<String, Json> = spelled.zip(0..).map(|(token, id): (String, u32)| (token, json!(id))).collect();
    let added: Vec<Json> = tokens
        .special
        .iter()
        .map(|&token| {
            json!({
                "id": tokens.id(token), "content": token, "special": true,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            })
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": !tokens.merges.is_empty()});
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": tokens.merges,
        },
    })
}

/// Returns the `tokenizer_config.json` of a Qwen2 tokenizer with these tokens; `processor` is the class of transformers that
/// reads pictures.
pub(crate) fn tokenizer_config(tokens: &Tokens<'_>, processor: &str) -> Json {
    json!({
        "tokenizer_class": "Qwen2Tokenizer",
        "processor_class": processor,
        "add_bos_token": false,
        "add_prefix_space": false,
        "bos_token": null,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": null,
        "additional_special_tokens": tokens.special[1..],
        "clean_up_tokenization_spaces": false,
        "split_special_tokens": false,
        "errors": "replace",
        "model_max_length": MAX_POSITION_EMBEDDINGS,
    })
}

/// Returns the keys of a picture or video processor of this `class`.
pub(in crate::data) fn preprocessor_config(size: &ModelSize, class: &str) -> Json {
    let kind = if class.contains("Video") { "video_processor_type" } else { "image_processor_type" };
    json!({
        kind: class,
        "processor_class": "Qwen3VLProcessor",
        "patch_size": size.patch_size,
        "merge_size": size.spatial_merge_size,
        "temporal_patch_size": TEMPORAL_PATCH_SIZE,
        "size": {"shortest_edge": size.min_pixels, "longest_edge": size.max_pixels},
        "image_mean": vec![size.image_mean; 3],
        "image_std": vec![size.image_std; 3],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::digits::{Digits, compose};

    /// Writes the input of `goldens/make.py`: `DIGITS_DIR=… cargo test write_for_goldens -- --ignored`.
    #[test]
    #[ignore = "writes the input of goldens/make.py"]
    fn write_for_goldens() {
        let dir = std::path::PathBuf::from(std::env::var_os("DIGITS_DIR").expect("DIGITS_DIR"));
        write_model(&dir.join("model"), &MODEL).unwrap();
        compose(&dir.join("data"), &Digits { seed: 3, num_train: 8, num_held_out: 8 }).unwrap();
    }
}
