//! The model folder, without weights: a Qwen2-Audio of 0.4 M parameters as Hugging Face would lay it out.

use std::path::Path;

use serde_json::{Value as Json, json};

use crate::data::digits::{
    MAX_POSITION_EMBEDDINGS, Tokens, generation_config, tokenizer, tokenizer_config, write_model_files,
};
use crate::data::error::DataError;
use crate::data::template::qwen_with_sound;

const SPECIAL_TOKENS: [&str; 6] =
    ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"];
const PROCESSOR: &str = "Qwen2AudioProcessor";
const NUM_MELS: usize = 80;
/// Positions of the tower for a second of sound.
const POSITIONS: usize = 50;

/// Writes configuration, tokenizer and processor files into `dir`; files that are there are overwritten. A recording lasts
/// `seconds` at most; the tokens are bytes and what `merges` make of them.
///
/// # Errors
/// A file cannot be written.
pub fn write_model(dir: &Path, seconds: usize, merges: &[[String; 2]]) -> Result<(), DataError> {
    let tokens = Tokens { merges, special: &SPECIAL_TOKENS };
    let files = [
        ("config.json", config(&tokens, seconds)),
        ("generation_config.json", generation_config(&tokens)),
        ("tokenizer.json", tokenizer(&tokens)),
        ("tokenizer_config.json", tokenizer_config(&tokens, PROCESSOR)),
        ("preprocessor_config.json", preprocessor_config(seconds)),
    ];
    write_model_files(dir, Some(&qwen_with_sound()), &files)
}

fn config(tokens: &Tokens<'_>, seconds: usize) -> Json {
    let id = |token| tokens.id(token);
    json!({
        "architectures": ["Qwen2AudioForConditionalGeneration"],
        "model_type": "qwen2_audio",
        "dtype": "float32",
        "audio_token_index": id("<|AUDIO|>"),
        "audio_config": {
            "model_type": "qwen2_audio_encoder",
            "num_mel_bins": NUM_MELS,
            "d_model": 96,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 192,
            "encoder_layerdrop": 0.0,
            "max_source_positions": seconds * POSITIONS,
            "activation_function": "gelu",
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
            "scale_embedding": false,
            "initializer_range": 0.05,
        },
        "text_config": {
            "model_type": "qwen2",
            "vocab_size": tokens.len(),
            "hidden_size": 96,
            "intermediate_size": 192,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "attention_dropout": 0.0,
            "initializer_range": 0.05,
            "max_position_embeddings": MAX_POSITION_EMBEDDINGS,
            // Small, for positions of a few dozen tokens.
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
            "use_cache": true,
            "use_sliding_window": false,
            "tie_word_embeddings": false,
            "bos_token_id": id("<|endoftext|>"),
            "eos_token_id": id("<|im_end|>"),
            "pad_token_id": id("<|endoftext|>"),
        },
    })
}

fn preprocessor_config(seconds: usize) -> Json {
    json!({
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": PROCESSOR,
        "feature_size": NUM_MELS,
        "sampling_rate": 16_000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": seconds,
        "n_samples": seconds * 16_000,
        "nb_max_frames": seconds * 100,
        "padding_side": "right",
        "padding_value": 0.0,
        "dither": 0.0,
        "return_attention_mask": true,
    })
}
