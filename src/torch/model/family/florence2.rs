//! Florence-2 (`Florence2ForConditionalGeneration`): DaViT's tower before BART, whose encoder reads a picture and a prompt and whose
//! decoder writes the answer.

use std::sync::Arc;

use loongforge_core::message::Tower;
use serde_json::json;

use super::{bart, davit};
use crate::model::bart::EncoderDecoderFamily;
use crate::model::config::{CarriedParts, ModelConfig, Tokens};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::towers::{ModelTower, Towers};
use crate::model::tree_names::TreeNames;

const TOWER: &str = "model.vision_tower.";
const PROJECTOR: &str = "model.multi_modal_projector.";
const LANGUAGE: &str = "model.language_model.";

/// The first release has a config of its own, no token that stands for pictures, and code beside it that puts these first.
fn refuse_first_release(keys: &Keys<'_>) -> Result<(), ModelConfigError> {
    let text = keys.section("text_config")?;
    let own = "florence2_language";
    match text.text_or("model_type")? {
        Some(model_type) if model_type == own && !keys.has("image_token_id") => {
            let must = "must be \"bart\": this is the first release (microsoft/Florence-2-base and -large), which only its own \
                        code reads; use florence-community/Florence-2-base, -large, -base-ft or -large-ft, which have the same \
                        weights";
            Err(text.inconsistent("model_type", json!(own), must))
        }
        _ => Ok(()),
    }
}

/// Reads the `config.json` of `Florence2ForConditionalGeneration`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    keys.only("tie_word_embeddings", &[json!(true)])?;
    refuse_first_release(keys)?;
    let tower = davit::read(&keys.section("vision_config")?, [TOWER, PROJECTOR], false)?;
    let text = keys.section("text_config")?;
    let both = bart::read(&text, LANGUAGE, tower.outputs)?;
    // The class's.
    let filled = keys.filled(&json!({"image_token_id": 51_289}));
    let image_token = Tokens::id(&keys.instead(&filled), "image_token_id", both.vocab_size)?;
    let both = bart::read_both(&text, both, Some(image_token))?;
    let encoder = ModelTower { tower: Tower::Vision, family: Arc::new(tower), placeholders: vec![image_token] };
    Ok(ModelConfig {
        model_type: "florence2".into(),
        foundation: Arc::new(EncoderDecoderFamily::new(both)),
        low_noise: None,
        towers: Towers::new(vec![encoder]),
        tree: TreeNames::default(),
        carried: CarriedParts::default(),
    })
}
