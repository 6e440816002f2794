//! The model folder, without weights: a Qwen2.5-Omni thinker as Hugging Face would lay it out.

use std::path::Path;

use serde_json::{Value as Json, json};

use crate::data::digits::{
    MAX_POSITION_EMBEDDINGS, MODEL, Tokens, generation_config, preprocessor_config, tokenizer, tokenizer_config,
    write_model_files,
};
use crate::data::error::DataError;
use crate::data::template::qwen_with_sound;

const SPECIAL_TOKENS: [&str; 10] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_bos|>",
    "<|AUDIO|>",
    "<|audio_eos|>",
];
const PROCESSOR: &str = "Qwen2_5OmniProcessor";
const NUM_MELS: usize = 80;
/// Seconds that a recording may last.
const CHUNK_LENGTH: usize = 2;
const WIDTH: usize = 96;

/// Writes configuration, tokenizer and processor files into `dir`. A byte is a token.
pub(super) fn write_model(dir: &Path) -> Result<(), DataError> {
    let tokens = Tokens { merges: &[], special: &SPECIAL_TOKENS };
    let mut preprocessor = preprocessor_config(&MODEL, "Qwen2VLImageProcessor");
    let sound = json!({"feature_extractor_type": "WhisperFeatureExtractor", "processor_class": PROCESSOR,
        "feature_size": NUM_MELS, "sampling_rate": 16_000, "hop_length": 160, "n_fft": 400, "chunk_length": CHUNK_LENGTH,
        "padding_value": 0.0, "dither": 0.0, "return_attention_mask": true});
    let (Json::Object(all), Json::Object(sound)) = (&mut preprocessor, sound) else { unreachable!("both are objects") };
    all.extend(sound);
    let files = [
        ("config.json", config(&tokens)),
        ("generation_config.json", generation_config(&tokens)),
        ("tokenizer.json", tokenizer(&tokens)),
        ("tokenizer_config.json", named(tokenizer_config(&tokens, PROCESSOR))),
        ("preprocessor_config.json", preprocessor),
        ("video_preprocessor_config.json", preprocessor_config(&MODEL, "Qwen2VLVideoProcessor")),
    ];
    write_model_files(dir, Some(&qwen_with_sound()), &files)
}

/// Adds the names by which transformers' processor asks its tokenizer for placeholders.
fn named(mut tokenizer_config: Json) -> Json {
    for (name, token) in [
        ("image_token", "<|image_pad|>"),
        ("video_token", "<|video_pad|>"),
        ("audio_token", "<|AUDIO|>"),
        ("vision_bos_token", "<|vision_start|>"),
        ("vision_eos_token", "<|vision_end|>"),
        ("audio_bos_token", "<|audio_bos|>"),
        ("audio_eos_token", "<|audio_eos|>"),
    ] {
        tokenizer_config[name] = token.into();
    }
    tokenizer_config
}

fn config(tokens: &Tokens<'_>) -> Json {
    let id = |token| tokens.id(token);
    json!({
        "architectures": ["Qwen2_5OmniThinkerForConditionalGeneration"],
        "model_type": "qwen2_5_omni_thinker",
        "dtype": "float32",
        "tie_word_embeddings": false,
        "audio_start_token_id": id("<|audio_bos|>"),
        "audio_token_index": id("<|AUDIO|>"),
        "audio_end_token_id": id("<|audio_eos|>"),
        "image_token_index": id("<|image_pad|>"),
        "video_token_index": id("<|video_pad|>"),
        "vision_start_token_id": id("<|vision_start|>"),
        "vision_end_token_id": id("<|vision_end|>"),
        "position_id_per_seconds": 25,
        "seconds_per_chunk": 2,
        "initializer_range": 0.05,
        "audio_config": {
            "model_type": "qwen2_5_omni_audio_encoder",
            "num_mel_bins": NUM_MELS,
            "d_model": WIDTH,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 192,
            "max_source_positions": CHUNK_LENGTH * 50,
            "n_window": CHUNK_LENGTH * 50,
            "output_dim": WIDTH,
            "activation_function": "gelu",
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
            "scale_embedding": false,
            "initializer_range": 0.05,
        },
        "vision_config": {
            "model_type": "qwen2_5_omni_vision_encoder",
            "depth": 2,
            "hidden_act": "silu",
            "hidden_size": MODEL.vision_hidden_size,
            "intermediate_size": MODEL.vision_intermediate_size,
            "num_heads": MODEL.vision_num_heads,
            "in_channels": 3,
            "patch_size": MODEL.patch_size,
            "spatial_merge_size": MODEL.spatial_merge_size,
            "temporal_patch_size": 2,
            "window_size": 32,
            "out_hidden_size": WIDTH,
            "fullatt_block_indexes": [1],
            "initializer_range": 0.05,
        },
        "text_config": {
            "model_type": "qwen2_5_omni_text",
            "dtype": "float32",
            "vocab_size": tokens.len(),
            "hidden_size": WIDTH,
            "intermediate_size": 192,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "attention_dropout": 0.0,
            "initializer_range": 0.05,
            "max_position_embeddings": MAX_POSITION_EMBEDDINGS,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [4, 4, 4]},
            "use_cache": true,
            "use_sliding_window": false,
            "tie_word_embeddings": false,
            "bos_token_id": id("<|endoftext|>"),
            "eos_token_id": id("<|im_end|>"),
            "pad_token_id": id("<|endoftext|>"),
        },
    })
}
