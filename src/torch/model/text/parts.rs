//! A text tower and a projector chosen one by one, for models that are put together from parts.

use serde_json::json;

use super::encoder::{TextConfig, TextTowerConfig};
use super::{clip, t5};
use crate::model::audio::{AudioProjectorConfig, ProjectorMap};
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::Activation;

type Result<T> = std::result::Result<T, ModelConfigError>;

const PROJECTOR: &str = "text_projector.";
/// The standard deviation of a projector's random weights.
const INITIALIZER_RANGE: f64 = 0.02;

/// Reads the encoder of these configs, with features of `width`. Names are under `text_encoder.` and `text_projector.`, after that as in
/// the tower's own checkpoint. `read_decoder` reads a language model's config; `text` says which states are taken. Without `projector` a
/// linear map makes features of them.
pub(in crate::model) fn read(
    encoder: &Keys<'_>,
    projector: Option<&Keys<'_>>,
    text: Option<&Keys<'_>>,
    width: i64,
    read_decoder: impl FnOnce(&Keys<'_>) -> Result<DecoderConfig>,
) -> Result<TextConfig> {
    let config = read_states(encoder, text, read_decoder)?;
    let projector = Some(read_projector(projector, config.width(), width)?);
    Ok(TextConfig { projector, ..config })
}

/// Works like [`read`] without a projector: features are the states.
pub(in crate::model) fn read_states(
    encoder: &Keys<'_>,
    text: Option<&Keys<'_>>,
    read_decoder: impl FnOnce(&Keys<'_>) -> Result<DecoderConfig>,
) -> Result<TextConfig> {
    let tower = match encoder.text_or("model_type")?.ok_or_else(|| encoder.missing("model_type"))? {
        "t5" => TextTowerConfig::T5(t5::read(encoder, "text_encoder.", true)?),
        "umt5" => TextTowerConfig::T5(t5::read(encoder, "text_encoder.", false)?),
        "clip_text_model" => TextTowerConfig::Clip(clip::read(encoder, "text_encoder.")?),
        _ => TextTowerConfig::Decoder(read_decoder(encoder)?),
    };
    if let Some(keys) = text {
        keys.only_keys(&["template", "max_tokens", "drop_tokens", "layers"])?;
    }
    let layers = match text {
        Some(keys) => layers(keys, tower.num_layers())?,
        None => vec![tower.num_layers()],
    };
    let drop_tokens = text.map_or(Ok(None), |keys| keys.index_or("drop_tokens"))?.unwrap_or(0) as usize;
    Ok(TextConfig { tower, layers, normed: true, drop_tokens, pictures: None, projector: None })
}

/// `layers`, counted as `hidden_states` of transformers are: from 0, or from the end.
fn layers(keys: &Keys<'_>, num_layers: usize) -> Result<Vec<usize>> {
    let Some(value) = keys.value("layers") else { return Ok(vec![num_layers]) };
    let count = num_layers as i64 + 1;
    let place = |value: &serde_json::Value| {
        let index = value.as_i64()?;
        let index = if index < 0 { index + count } else { index };
        (0..count).contains(&index).then_some(index as usize)
    };
    let places: Option<Vec<usize>> = value.as_array().and_then(|list| list.iter().map(place).collect());
    places.filter(|places| !places.is_empty()).ok_or_else(|| {
        let must = format!("must be a list of numbers from {} to {num_layers}, at least one", -count);
        keys.inconsistent("layers", value, must)
    })
}

/// Returns the projector that `keys` describe: `linear`, or `mlp` of two maps.
fn read_projector(keys: Option<&Keys<'_>>, inputs: i64, width: i64) -> Result<AudioProjectorConfig> {
    let (mut maps, mut activation, mut bias) = (vec![("linear", width)], Activation::Gelu, true);
    if let Some(keys) = keys {
        keys.only_keys(&["model_type", "hidden_size", "hidden_act", "bias"])?;
        let inner = keys.size_or("hidden_size")?.unwrap_or(width);
        activation = keys.activation_or("hidden_act")?.unwrap_or(activation);
        bias = keys.flag_or("bias")?.unwrap_or(true);
        match keys.text_or("model_type")? {
            None | Some("linear") => (),
            Some("mlp") => maps = vec![("linear_1", inner), ("linear_2", width)],
            Some(other) => {
                return Err(keys.unsupported("model_type", &json!(other), &["linear", "mlp"].map(|name| json!(name))));
            }
        }
    }
    let map = |(name, outputs)| ProjectorMap { name, outputs, bias };
    Ok(AudioProjectorConfig {
        prefix: PROJECTOR.into(),
        inputs,
        stack: 1,
        maps: maps.into_iter().map(map).collect(),
        activation,
        initializer_range: INITIALIZER_RANGE,
    })
}
