//! The readers that families with an audio tower have in common.

use std::sync::Arc;

use loongforge_core::message::Tower;

use super::vision;
use crate::model::audio::AudioConfig;
use crate::model::config::{ModelConfig, Tokens};
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::towers::ModelTower;
use crate::model::vision::VisionConfig;

type Result<T> = std::result::Result<T, ModelConfigError>;

/// Returns the model of these parts, whose token of audio is that of `token_key`.
pub(super) fn model(
    model_type: &str,
    keys: &Keys<'_>,
    decoder: DecoderConfig,
    audio: AudioConfig,
    token_key: &str,
) -> Result<ModelConfig> {
    beside(model_type, keys, decoder, Vec::new(), (audio, token_key))
}

/// Returns the model of this decoder with an audio tower beside these.
pub(super) fn beside(
    model_type: &str,
    keys: &Keys<'_>,
    decoder: DecoderConfig,
    mut towers: Vec<ModelTower>,
    (audio, token_key): (AudioConfig, &str),
) -> Result<ModelConfig> {
    let placeholders = vec![Tokens::id(keys, token_key, decoder.vocab_size)?];
    towers.push(ModelTower { tower: Tower::Audio, family: Arc::new(audio), placeholders });
    Ok(ModelConfig::new(model_type, decoder, towers))
}

/// Returns a thinker's decoder. Its config's `tie_word_embeddings` counts, not the decoder's.
pub(super) fn thinker_decoder(keys: &Keys<'_>, decoder: DecoderConfig) -> Result<DecoderConfig> {
    let tie_word_embeddings = keys.flag_or("tie_word_embeddings")?.unwrap_or(false);
    Ok(DecoderConfig { tie_word_embeddings, ..decoder })
}

/// Returns the configs of a thinker's vision and audio tower, whose features have the decoder's width.
pub(super) fn thinker_towers<'a>(keys: &Keys<'a>, decoder: &DecoderConfig) -> Result<[Keys<'a>; 2]> {
    let towers = [keys.section("vision_config")?, keys.section("audio_config")?];
    vision::check_width(&towers[0], "out_hidden_size", decoder)?;
    vision::check_width(&towers[1], "output_dim", decoder)?;
    Ok(towers)
}

/// Returns the thinker of these parts. `token_keys` are those of pictures, videos and clips.
pub(super) fn thinker(
    model_type: &str,
    keys: &Keys<'_>,
    decoder: DecoderConfig,
    (vision, audio): (VisionConfig, AudioConfig),
    token_keys: [&str; 3],
) -> Result<ModelConfig> {
    let [image, video, sound] = token_keys;
    let id = |key: &str| Tokens::id(keys, key, decoder.vocab_size).map(Some);
    let tokens = Tokens { image: id(image)?, video: id(video)?, ..Tokens::default() };
    let towers = vec![vision::tower(keys, decoder.num_deepstack_layers(), vision, tokens)?];
    beside(model_type, keys, decoder, towers, (audio, sound))
}

#[cfg(test)]
mod tests {
    use loongforge_core::message::{Grid, Tower};
    use serde_json::{Value, json};

    use crate::model::config::ModelConfig;

    fn config(model_type: &str) -> Value {
        let audio = json!({"num_mel_bins": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64,
            "d_model": 32, "max_source_positions": 50});
        let text = json!({"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16});
        // Two states of Voxtral side by side.
        json!({"model_type": model_type, "audio_config": audio, "text_config": text, "audio_token_index": 301,
            "audio_token_id": 301})
    }

    fn error(model_type: &str, pointer: &str, value: Value) -> String {
        let mut config = config(model_type);
        let (object, key) = pointer.rsplit_once('/').unwrap();
        config.pointer_mut(object).unwrap()[key] = value;
        ModelConfig::from_hf(&config).unwrap_err().to_string()
    }

    #[test]
    fn what_is_not_implemented_or_does_not_fit_is_named() {
        let cases = [
            ("qwen2_audio", "/audio_config/dropout", json!(0.1), "audio_config.dropout is 0.1, but dropout is not"),
            (
                "qwen2_audio",
                "/audio_config/encoder_attention_heads",
                json!(3),
                "audio_config.d_model is 32, but must be",
            ),
            ("qwen2_audio", "/text_config/model_type", json!("llama"), r#"text_config.model_type is "llama""#),
            ("qwen2_audio", "/text_config/tie_word_embeddings", json!(true), "text_config.tie_word_embeddings is true"),
            ("qwen2_audio", "/audio_token_index", json!(320), "audio_token_index is 320, but must be below"),
            ("qwen2_audio", "/audio_token_index", json!(null), "audio_token_index is missing"),
            (
                "voxtral",
                "/audio_config/encoder_ffn_dim",
                json!(100),
                "audio_config.intermediate_size is 100, but must be",
            ),
            ("qwen3_asr", "/audio_config/n_window", json!(100), "audio_config.n_window is 100; supported: 50"),
            (
                "qwen3_asr",
                "/audio_config/n_window_infer",
                json!(150),
                "audio_config.n_window_infer is 150, but must be",
            ),
            (
                "qwen3_asr",
                "/audio_config/output_dim",
                json!(32),
                "output_dim is 32, but must equal text_config.hidden_size",
            ),
        ];
        for (model_type, pointer, value, expected) in cases {
            let message = error(model_type, pointer, value);
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }

    /// Published configs of Qwen2-Audio leave out the decoder's sizes.
    #[test]
    fn sizes_that_a_config_leaves_out_are_the_classes_own() {
        let mut config = config("qwen2_audio");
        config["text_config"] = json!({"model_type": "qwen2", "intermediate_size": 11008, "vocab_size": 156_032});
        let decoder = ModelConfig::from_hf(&config).unwrap().decoder().unwrap().clone();
        assert_eq!([decoder.hidden_size, decoder.num_layers() as i64, decoder.vocab_size], [4096, 32, 156_032]);
    }

    #[test]
    fn a_clip_has_the_features_that_the_formulas_say() {
        let features = |model_type: &str, frames: u32| {
            let family = ModelConfig::from_hf(&config(model_type)).unwrap().towers.get(Tower::Audio).unwrap().clone();
            family.num_features(Grid { t: frames, h: 1, w: 1 })
        };
        // Two frames of a clip of Qwen2-Audio are the padding's.
        assert_eq!([2, 4, 5, 63, 102].map(|frames| features("qwen2_audio", frames)), [0, 0, 1, 15, 25]);
        assert_eq!([1, 9, 100, 101, 3000].map(|frames| features("qwen3_asr", frames)), [1, 2, 13, 14, 390]);
        assert_eq!([100, 200].map(|frames| features("voxtral", frames)), [25, 50]);
    }

    /// A thinker in a whole model has the same parts under other names.
    #[test]
    fn a_whole_models_thinker_is_read() {
        let fixtures = [
            ("qwen2_5_omni", include_str!("../../tests/fixtures/qwen2.5_omni-seed1/config.json")),
            ("qwen3_omni_moe", include_str!("../../tests/fixtures/qwen3_omni-seed1/config.json")),
        ];
        for (model_type, config) in fixtures {
            let thinker: Value = serde_json::from_str(config).unwrap();
            let names = |config: &Value| {
                let model = ModelConfig::from_hf(config).unwrap();
                let specs = model.specs();
                let of = |name: &str| model.towers.part_of(name).map(|(tower, _)| tower);
                let named = |name: &str, tower| (name.to_owned(), tower);
                specs.iter().map(|spec| named(&spec.name, of(&spec.name))).collect::<Vec<_>>()
            };
            let alone = names(&thinker);
            let whole = names(&json!({"model_type": model_type, "thinker_config": thinker, "talker_config": {}}));
            let expected: Vec<_> = alone.into_iter().map(|(name, tower)| (format!("thinker.{name}"), tower)).collect();
            assert_eq!(whole, expected);
            let towers = [Some(Tower::Vision), Some(Tower::Audio), None];
            assert!(towers.iter().all(|tower| whole.iter().any(|(_, found)| found == tower)));
        }
    }
}
