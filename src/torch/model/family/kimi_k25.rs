//! Kimi-K2.5 and K2.6 (`Kimi_K25ForConditionalGeneration`): MoonViT-3D before a DeepSeek-V3 decoder.

use super::common::NamePrefix;
use super::decoders::read_decoder;
use super::{deepseek_v3, vision};
use crate::model::config::{ModelConfig, Tokens};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::vision::moon;

/// Reads the `config.json` of `Kimi_K25ForConditionalGeneration`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    let (text_keys, vision_keys) = (keys.section("text_config")?, keys.section("vision_config")?);
    let place = NamePrefix::new("language_model.model.", "language_model.");
    // Published configs name their own copy of DeepSeek-V3.
    let decoder = match text_keys.text_or("model_type")? {
        None | Some("kimi_k2") => deepseek_v3::FAMILY.read(&text_keys, &place)?,
        Some(_) => read_decoder(&text_keys, &place)?,
    };
    let decoder = vision::tied(keys, decoder)?;
    vision::check_width(&vision_keys, "text_hidden_size", &decoder)?;
    let eps = match keys.number_or("projection_layer_norm_eps")? {
        Some(eps) => eps,
        None => vision_keys.number_or("projector_ln_eps")?.unwrap_or(1e-5),
    };
    let encoder = moon::read(&vision_keys, "vision_tower.", "mm_projector.", eps, decoder.hidden_size)?;
    if let Some(width) = keys.size_or("projection_hidden_size")?.filter(|width| *width != encoder.tower.width()) {
        let must = format!("must equal vision_config.hidden_size ({})", encoder.tower.width());
        return Err(keys.inconsistent("projection_hidden_size", width, must));
    }
    let tokens = match keys.value("media_placeholder_token_id") {
        Some(_) => Tokens::with_image(keys, "media_placeholder_token_id", decoder.vocab_size)?,
        None => Tokens::read(keys, decoder.vocab_size)?,
    };
    vision::model("kimi_k25", keys, decoder, encoder, tokens)
}
