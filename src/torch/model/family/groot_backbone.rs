//! The vision-language model of a GR00T: its tower, and the first layers of its decoder.

use loongforge_core::data::GrootVersion;
use serde_json::json;

use super::common::NamePrefix;
use super::{qwen3, qwen3_vl_text, vision};
use crate::model::config::Tokens;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::towers::ModelTower;
use crate::model::vision::{VisionConfig, eagle, qwen3 as qwen3_tower};

type Result<T> = std::result::Result<T, ModelConfigError>;

/// Returns the first layers of the decoder, and the tower.
pub(super) fn backbone_of(
    version: GrootVersion,
    keys: &Keys<'_>,
    backbone: &Keys<'_>,
    prefix: &str,
) -> Result<(DecoderConfig, ModelTower)> {
    let (mut decoder, encoder) = match version {
        GrootVersion::N1_6 => eagle_of(backbone, &format!("{prefix}backbone.model."))?,
        GrootVersion::N1_7 => qwen3_vl_of(backbone, &format!("{prefix}backbone.model.model."))?,
    };
    // The head is the table, and unused.
    decoder.tie_word_embeddings = true;
    let select = keys.size_or("select_layer")?.unwrap_or(16);
    if select > decoder.num_layers() as i64 {
        let must = format!("must be at most text_config.num_hidden_layers ({})", decoder.num_layers());
        return Err(keys.inconsistent("select_layer", select, must));
    }
    decoder.layers.truncate(select as usize);
    if encoder.deepstack.len() >= decoder.num_layers() {
        // The state is taken before the last layer's level is added.
        let must = format!("must be more than the levels of deepstack_visual_indexes ({})", encoder.deepstack.len());
        return Err(keys.inconsistent("select_layer", select, must));
    }
    let tokens = match version {
        GrootVersion::N1_6 => Tokens::with_image(backbone, "image_token_index", decoder.vocab_size)?,
        GrootVersion::N1_7 => Tokens::read(backbone, decoder.vocab_size)?,
    };
    let tokens = Tokens { video: None, ..tokens };
    let tower = vision::tower(backbone, decoder.num_deepstack_layers(), encoder, tokens)?;
    Ok((decoder, tower))
}

/// Returns Qwen3-VL's decoder and tower, whose names begin with `prefix`.
fn qwen3_vl_of(backbone: &Keys<'_>, prefix: &str) -> Result<(DecoderConfig, VisionConfig)> {
    backbone.only("model_type", &[json!("qwen3_vl")])?;
    let place = NamePrefix::new(&format!("{prefix}language_model."), "");
    let decoder = qwen3_vl_text::FAMILY.read(&backbone.section("text_config")?, &place)?;
    let vision_keys = backbone.section("vision_config")?;
    vision::check_width(&vision_keys, "out_hidden_size", &decoder)?;
    let visual = format!("{prefix}visual.");
    let encoder = qwen3_tower::read(&vision_keys, &visual, &format!("{visual}merger."), decoder.hidden_size)?;
    Ok((decoder, encoder))
}

/// Returns Eagle 3's decoder (Qwen3) and tower, whose names begin with `prefix`. Its `select_layer` is of the tower.
fn eagle_of(backbone: &Keys<'_>, prefix: &str) -> Result<(DecoderConfig, VisionConfig)> {
    backbone.only("model_type", &[json!("eagle_3_vl")])?;
    backbone.only("select_layer", &[json!(-1)])?;
    for key in ["use_backbone_lora", "use_llm_lora"] {
        backbone.only(key, &[json!(0)])?;
    }
    let text_keys = backbone.section("text_config")?;
    text_keys.only("model_type", &[json!("qwen3")])?;
    text_keys.only("architectures", &[json!(["Qwen3ForCausalLM"])])?;
    let place = NamePrefix::new(&format!("{prefix}language_model.model."), "");
    let decoder = qwen3::FAMILY.read(&text_keys, &place)?;
    let (tower, projector) = (format!("{prefix}vision_model."), format!("{prefix}mlp1."));
    let vision_keys = backbone.section("vision_config")?;
    let encoder = eagle::read(&vision_keys, backbone, &tower, &projector, decoder.hidden_size)?;
    Ok((decoder, encoder))
}
