//! Qwen3.5 and Qwen3.6, dense (`Qwen3_5ForConditionalGeneration`): Qwen3-VL's vision transformer without DeepStack before
//! a decoder of gated delta nets and gated attention, whose positions have three axes; and the decoder alone.

use serde_json::json;

use super::common::NamePrefix;
use super::experts::unbalanced;
use super::qwen3_5_text;
use super::qwen3_vl::with_tower;
use super::text_family::TextFamily;
use crate::model::config::ModelConfig;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_mrope;

type Result<T> = std::result::Result<T, ModelConfigError>;

/// Reads the `config.json` of `Qwen3_5ForConditionalGeneration`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    no_deepstack(keys)?;
    with_tower("qwen3_5", keys, with_axes(&keys.section("text_config")?, &qwen3_5_text::FAMILY)?)
}

/// Its tower has the keys of Qwen3-VL's, published configs with an empty list.
pub(super) fn no_deepstack(keys: &Keys<'_>) -> Result<()> {
    keys.section("vision_config")?.only("deepstack_visual_indexes", &[json!([])])
}

/// Returns a decoder of `family`, inside of a model with pictures: a token has three positions, and transformers adds no load-balancing
/// loss.
pub(super) fn with_axes(keys: &Keys<'_>, family: &TextFamily) -> Result<DecoderConfig> {
    let mut decoder = family.read(keys, &NamePrefix::new("model.language_model.", ""))?;
    for layer in &mut decoder.layers {
        layer.rope.axes = read_mrope(keys, &layer.rope, [11, 11, 10], true)?;
    }
    Ok(unbalanced(decoder))
}
