//! Ministral 3, its language model (`Ministral3ForCausalLM`): Mistral, whose queries are longer at later positions.

use serde_json::json;

use super::common::{NamePrefix, dense, uniform};
use super::mistral::heads;
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::{read_rope, section};
use crate::nn::{QueryScale, RopeConfig};

type Result<T> = std::result::Result<T, ModelConfigError>;

pub(super) const FAMILY: TextFamily = TextFamily::new("ministral3", read).with_kv_heads(8);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig> {
    let mut filled = keys.filled(&json!({"rms_norm_eps": 1e-5, "pad_token_id": 11, "head_dim": 128}));
    if section(keys)?.is_none() {
        filled["rope_parameters"] = json!({"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0,
            "original_max_position_embeddings": 16_384, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
            "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1});
    }
    let keys = &keys.instead(&filled);
    let attention = heads(keys, keys.size_or("sliding_window")?)?;
    let rope = read_rope(keys, attention.head_dim, 10_000.0)?;
    let rope = RopeConfig { query_scale: Some(query_scale(keys)?), ..rope };
    uniform(keys, place, MixerConfig::Attention(attention), dense(keys)?, rope)
}

/// Both numbers stand beside the rotary embeddings' own. Laws of a scaled context take the original one from elsewhere as well.
fn query_scale(keys: &Keys<'_>) -> Result<QueryScale> {
    const ORIGINAL: &str = "original_max_position_embeddings";
    let Some(section) = section(keys)? else { return Err(keys.missing("rope_parameters")) };
    let beta = section.number_or("llama_4_scaling_beta")?.ok_or_else(|| section.missing("llama_4_scaling_beta"))?;
    let kind = section.text_or("rope_type")?.or(section.text_or("type")?).unwrap_or("default");
    let own = section.size_or(ORIGINAL)?;
    let original = match kind {
        "yarn" | "llama3" | "longrope" => keys.size_or(ORIGINAL)?.or(own).or(keys.size_or("max_position_embeddings")?),
        _ => own,
    };
    let original_max_position_embeddings = original.ok_or_else(|| section.missing(ORIGINAL))?;
    Ok(QueryScale { beta, original_max_position_embeddings })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::decoder::LayerConfig;
    use crate::model::family::decoder_of::decoder_of;
    use crate::nn::{QueryScale, RopeScaling};

    fn read(changes: Value) -> Result<LayerConfig, String> {
        let config = json!({
            "model_type": "ministral3", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 8
        });
        Ok(decoder_of(config, &changes)?.layers[0].clone())
    }

    fn scale(beta: f64, original_max_position_embeddings: i64) -> Option<QueryScale> {
        Some(QueryScale { beta, original_max_position_embeddings })
    }

    #[test]
    fn queries_are_scaled_by_the_original_context() {
        let published = read(json!({})).unwrap();
        assert_eq!(published.rope.query_scale, scale(0.1, 16_384));
        assert!(matches!(&published.rope.scaling, RopeScaling::Yarn(yarn) if yarn.factor == 16.0));
        let plain = json!({"rope_theta": 1e4, "llama_4_scaling_beta": 0.5, "original_max_position_embeddings": 8});
        assert_eq!(read(json!({"rope_parameters": plain})).unwrap().rope.query_scale, scale(0.5, 8));
        let yarn = json!({"type": "yarn", "factor": 4.0, "llama_4_scaling_beta": 0.5});
        let context = json!({"rope_scaling": yarn, "max_position_embeddings": 64});
        assert_eq!(read(context).unwrap().rope.query_scale, scale(0.5, 64));
    }

    #[test]
    fn what_the_reference_needs_is_named() {
        for (changes, expected) in [
            (json!({"rope_parameters": {"rope_theta": 1e4}}), "rope_parameters.llama_4_scaling_beta is missing"),
            (
                json!({"rope_parameters": {"llama_4_scaling_beta": 0.1}}),
                "rope_parameters.original_max_position_embeddings is missing",
            ),
            (json!({"layer_types": ["sliding_attention", "full_attention"]}), "layer_types is a list"),
        ] {
            let message = read(changes).unwrap_err();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
