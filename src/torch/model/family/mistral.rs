//! Mistral 7B, Nemo, Small and Large (`MistralForCausalLM`): LLaMA, in which all layers may have a window.

use serde_json::json;

use super::common::{NamePrefix, attention, dense, sliding_layers, uniform};
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;
use crate::nn::AttentionConfig;

type Result<T> = std::result::Result<T, ModelConfigError>;

pub(super) const FAMILY: TextFamily = TextFamily::new("mistral", read).with_kv_heads(8);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig> {
    let attention = heads(keys, keys.size_or_null("sliding_window", 4096)?)?;
    let rope = read_rope(keys, attention.head_dim, 10_000.0)?;
    uniform(keys, place, MixerConfig::Attention(attention), dense(keys)?, rope)
}

/// Returns Mistral's attention with this window in every layer. The reference reads neither `use_sliding_window` nor `layer_types`:
/// configs in which these say something else are refused.
pub(super) fn heads(keys: &Keys<'_>, window: Option<i64>) -> Result<AttentionConfig> {
    keys.only("use_sliding_window", &[json!(window.is_some())])?;
    if let Some(slides) = sliding_layers(keys)?
        && slides.contains(&window.is_none())
    {
        let must = match window {
            Some(window) => format!("all layers must have sliding_attention, since sliding_window is {window}"),
            None => "no layer can have sliding_attention, since sliding_window is null".to_owned(),
        };
        return Err(keys.inconsistent("layer_types", "a list with the other kind", must));
    }
    Ok(AttentionConfig { window, ..attention(keys)? })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::decoder::MixerConfig;
    use crate::model::family::decoder_of::decoder_of;

    fn windows(model_type: &str, changes: Value) -> Result<Vec<Option<i64>>, String> {
        let config = json!({
            "model_type": model_type, "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
            "num_experts_per_tok": 2
        });
        let decoder = decoder_of(config, &changes)?;
        let window = |mixer: &MixerConfig| match mixer {
            MixerConfig::Attention(attention) => attention.window,
            _ => unreachable!("Mistral attends"),
        };
        Ok(decoder.layers.iter().map(|layer| window(&layer.mixer)).collect())
    }

    #[test]
    fn all_layers_slide_or_none() {
        let full = json!({"sliding_window": null, "layer_types": ["full_attention", "full_attention"]});
        assert_eq!(windows("mistral", json!({})), Ok(vec![Some(4096); 2]));
        assert_eq!(windows("mistral", json!({"sliding_window": 8})), Ok(vec![Some(8); 2]));
        assert_eq!(windows("mistral", full), Ok(vec![None; 2]));
        assert_eq!(windows("mixtral", json!({})), Ok(vec![None; 2]));
        assert_eq!(windows("mixtral", json!({"sliding_window": 8})), Ok(vec![Some(8); 2]));
    }

    #[test]
    fn what_is_not_implemented_is_refused_by_name() {
        for (model_type, changes, expected) in [
            ("mistral", json!({"layer_types": ["sliding_attention", "full_attention"]}), "layer_types is a list"),
            ("mistral", json!({"use_sliding_window": false}), "use_sliding_window is false"),
            ("mixtral", json!({"router_jitter_noise": 0.1}), "router_jitter_noise is 0.1"),
            ("mixtral", json!({"num_experts_per_tok": 5}), "num_experts_per_tok is 5, but there are only 4 experts"),
        ] {
            let message = windows(model_type, changes).unwrap_err();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
