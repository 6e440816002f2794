//! An audio tower and a projector chosen one by one, for models that are put together from parts.

use serde_json::json;

use super::encoder::AudioConfig;
use super::projector::AudioProjectorConfig;
use super::{keys, qwen2_5, qwen3, whisper};
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::Activation;

type Result<T> = std::result::Result<T, ModelConfigError>;
type Read = fn(&Keys<'_>, &str, &str, i64) -> Result<AudioConfig>;

/// Towers with the projectors that they come with, by the `model_type` of an `audio_config`.
const TOWERS: &[(&str, Read)] = &[
    ("qwen2_5_omni_audio_encoder", qwen2_5::read),
    ("qwen2_audio_encoder", whisper::read_qwen2),
    ("qwen3_asr_encoder", |keys, tower, projector, width| {
        qwen3::read(keys, tower, projector, ["linear_1", "linear_2"], width)
    }),
    ("qwen3_omni_moe_audio_encoder", |keys, tower, projector, width| {
        qwen3::read(keys, tower, projector, ["proj1", "proj2"], width)
    }),
    ("voxtral_encoder", |keys, tower, projector, width| {
        whisper::read_voxtral(keys, tower, projector, width, Activation::Gelu)
    }),
    ("whisper", whisper::read),
];

/// Returns the encoder of these two configs, with features of `width`. Names are under `audio_encoder.` and `audio_projector.`, after
/// that as in the tower's own checkpoint. A projector without `model_type` is the one that the tower comes with.
pub(in crate::model) fn read(encoder: &Keys<'_>, projector: Option<&Keys<'_>>, width: i64) -> Result<AudioConfig> {
    let model_type = encoder.text_or("model_type")?.ok_or_else(|| encoder.missing("model_type"))?;
    let Some((_, read)) = TOWERS.iter().find(|(name, _)| *name == model_type) else {
        let supported: Vec<_> = TOWERS.iter().map(|(name, _)| json!(name)).collect();
        return Err(encoder.unsupported("model_type", &json!(model_type), &supported));
    };
    let audio = read(encoder, "audio_encoder.", "audio_projector.", width)?;
    match projector {
        Some(keys) => Ok(AudioConfig { projector: read_projector(keys, &audio, width)?, ..audio }),
        None => Ok(audio),
    }
}

/// Returns the projector that `keys` describe: `linear`, or `mlp` of two maps, of `stack_factor` states side by side.
fn read_projector(keys: &Keys<'_>, audio: &AudioConfig, width: i64) -> Result<AudioProjectorConfig> {
    let inner = keys.size_or("hidden_size")?.unwrap_or(width);
    let activation = keys.activation_or("hidden_act")?.unwrap_or(Activation::Gelu);
    let maps: &[(&'static str, i64)] = match keys.text_or("model_type")? {
        None => return Ok(audio.projector.clone()),
        Some("linear") => &[("linear", width)],
        Some("mlp") => &[("linear_1", inner), ("linear_2", width)],
        Some(other) => {
            return Err(keys.unsupported("model_type", &json!(other), &["linear", "mlp"].map(|name| json!(name))));
        }
    };
    let mut chosen = keys::projector(&audio.tower, "audio_projector.", maps, activation);
    chosen.stack = keys.size_or("stack_factor")?.unwrap_or(1);
    if !keys.flag_or("bias")?.unwrap_or(true) {
        chosen.maps.iter_mut().for_each(|map| map.bias = false);
    }
    Ok(chosen)
}
