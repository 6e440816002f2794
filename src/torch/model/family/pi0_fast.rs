//! Pi0-FAST (`PI0FastPolicy` of lerobot): PaliGemma, which writes actions as tokens. Its `config.json` is lerobot's; small policies
//! have their widths under `sizes`. Head and table of tokens are one, as in PaliGemma and openpi.

use std::sync::Arc;

use loongforge_core::message::Tower;
use serde_json::json;

use super::common::NamePrefix;
use super::gemma;
use super::pi::{self, PaliGemma};
use crate::model::config::ModelConfig;
use crate::model::decoder::{DecoderConfig, Sees};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::policy::{WritingFamily, WritingSizes};
use crate::model::towers::{ModelTower, Towers};
use crate::model::tree_names::TreeNames;

type Result<T> = std::result::Result<T, ModelConfigError>;

const BASE: &str = "model.paligemma_with_expert.paligemma.model.language_model.";
const HEAD: &str = "model.paligemma_with_expert.paligemma.";

/// Reads the `config.json` of `PI0FastPolicy` of lerobot.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    pi::refuse_others(keys)?;
    // Other than the most likely token would depend on what else is drawn.
    keys.only("temperature", &[json!(0.0), json!(0)])?;
    let sizes = keys.section_or("sizes")?;
    if let Some(sizes) = &sizes {
        sizes.only_keys(&["vocab_size", "vision", "text"])?;
    }
    let PaliGemma { text, vision, vocab_size, image_token } = pi::paligemma(keys, &sizes)?;
    let sizes_of_text = json!({
        "vocab_size": vocab_size, "hidden_size": text.width, "intermediate_size": text.mlp_dim, "num_hidden_layers": text.depth,
        "num_attention_heads": text.num_heads, "num_key_value_heads": text.num_kv_heads, "head_dim": text.head_dim,
    });
    let place = NamePrefix::new(BASE, HEAD);
    let decoder = gemma::FAMILY.read(&keys.instead(&sizes_of_text), &place)?;
    let decoder = DecoderConfig { sees: Sees::Before, tie_word_embeddings: true, ..decoder };
    let size = |key: &str, default: i64| keys.size_or(key).map(|value| value.unwrap_or(default));
    let chunk = WritingSizes { horizon: size("chunk_size", 50)?, action_dim: size("max_action_dim", 32)?, image_token };
    let encoder = pi::encoder(keys, &sizes, &vision, text.width, false)?;
    let towers = Towers::new(vec![ModelTower {
        tower: Tower::Vision,
        family: Arc::new(encoder),
        placeholders: vec![image_token],
    }]);
    let inputs = towers.inputs(text.width);
    Ok(ModelConfig {
        model_type: "pi0_fast".into(),
        foundation: Arc::new(WritingFamily::new(decoder, inputs, chunk, format!("{HEAD}lm_head.weight"))),
        low_noise: None,
        towers,
        tree: TreeNames::default(),
        carried: Default::default(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::model::config::ModelConfig;

    #[test]
    fn published_configs_have_published_names_and_sizes() {
        let model = ModelConfig::from_hf(&json!({"type": "pi0_fast"})).unwrap();
        let specs = model.specs();
        let find = |name: &str| specs.iter().find(|spec| spec.name == name).unwrap_or_else(|| panic!("no {name}"));
        let table = find("model.paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight");
        assert_eq!(table.shape, [257_152, 2048]);
        assert_eq!(table.pieces[1].name, "model.paligemma_with_expert.paligemma.lm_head.weight");
        let name = "model.paligemma_with_expert.paligemma.model.language_model.layers.17.mlp.down_proj.weight";
        assert_eq!(find(name).shape, [2048, 16_384]);
        find("model.paligemma_with_expert.paligemma.model.language_model.norm.weight");
        find("model.paligemma_with_expert.paligemma.model.multi_modal_projector.linear.bias");
        assert!(!specs.iter().any(|spec| spec.name.contains("gemma_expert")));
        let chunk = model.foundation.as_policy().unwrap().chunk();
        assert!(chunk.writes && chunk.image_token == 257_151);
    }

    #[test]
    fn what_is_not_implemented_is_named() {
        for (key, value, expected) in [
            ("temperature", json!(0.5), "temperature is 0.5"),
            ("rtc_config", json!({"enabled": true}), "rtc_config.enabled is true"),
            ("paligemma_variant", json!("gemma_7b"), r#"paligemma_variant is "gemma_7b""#),
            ("sizes", json!({"expert": {}}), "sizes.expert"),
        ] {
            let mut config = json!({"type": "pi0_fast"});
            config[key] = value;
            let message = ModelConfig::from_hf(&config).unwrap_err().to_string();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
