//! Phi-3, Phi-3.5, Phi-4 and Phi-4-mini (`Phi3ForCausalLM`): one projection makes queries, keys and values, and one gates and
//! ups; a part of every head may turn.

use serde_json::{Value, json};

use super::common::{NamePrefix, dense, uniform};
use super::mistral::heads;
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::{read_partial_rope, section};
use crate::nn::{AttentionConfig, GateUp, Qkv};

pub(super) const FAMILY: TextFamily = TextFamily::new("phi3", read);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let filled = filled(keys);
    let keys = &keys.instead(&filled);
    ["resid_pdrop", "embd_pdrop"].iter().try_for_each(|key| keys.no_dropout(key))?;
    // Keys of published configs that transformers' own has not.
    for key in ["attention_bias", "mlp_bias", "lm_head_bias"] {
        keys.only(key, &[json!(false)])?;
    }
    let attention = AttentionConfig { qkv: Qkv::Joint("qkv_proj"), ..heads(keys, keys.size_or("sliding_window")?)? };
    if let Some(section) = section(keys)? {
        ["rope_type", "type"].iter().try_for_each(|key| section.only(key, &[json!("default"), json!("longrope")]))?;
    }
    let rope = read_partial_rope(keys, attention.head_dim, 10_000.0, 1.0)?;
    let mut decoder = uniform(keys, place, MixerConfig::Attention(attention), dense(keys)?, rope)?;
    decoder.names.gate_up = GateUp::Joint("gate_up_proj");
    Ok(decoder)
}

/// Returns the config with the defaults of its class, in which `su` and `yarn` are older names of `longrope`.
fn filled(keys: &Keys<'_>) -> Value {
    let defaults = json!({"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096, "pad_token_id": 32000});
    let mut filled = keys.filled(&defaults);
    for place in
        ["/rope_scaling/type", "/rope_scaling/rope_type", "/rope_parameters/type", "/rope_parameters/rope_type"]
    {
        if let Some(kind) = filled.pointer_mut(place)
            && matches!(kind.as_str(), Some("su" | "yarn"))
        {
            *kind = json!("longrope");
        }
    }
    filled
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::family::decoder_of::decoder_of;
    use crate::nn::{RopeConfig, RopeScaling};

    fn rope(changes: Value) -> Result<RopeConfig, String> {
        let config = json!({
            "model_type": "phi3", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "pad_token_id": 0,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 8192
        });
        Ok(decoder_of(config, &changes)?.layers[0].rope.clone())
    }

    #[test]
    fn older_names_and_defaults_are_those_of_the_class() {
        let factors = |kind: &str| {
            json!({"rope_scaling": {"type": kind, "short_factor": [1, 2, 3, 4, 5, 6],
            "long_factor": [2, 2, 3, 4, 5, 6]}, "partial_rotary_factor": 0.75})
        };
        let expected = rope(factors("longrope")).unwrap();
        let RopeScaling::LongRope { original_max_position_embeddings, attention_factor, .. } = &expected.scaling else {
            unreachable!("it was asked for")
        };
        assert_eq!((expected.rotary_dim, *original_max_position_embeddings), (12, 4096));
        assert!((attention_factor - (1.0 + 2f64.ln() / 4096f64.ln()).sqrt()).abs() < 1e-12);
        assert_eq!(rope(factors("su")), Ok(expected.clone()));
        assert_eq!(rope(factors("yarn")), Ok(expected));
    }

    #[test]
    fn what_is_not_implemented_is_refused_by_name() {
        for (changes, expected) in [
            (json!({"resid_pdrop": 0.1}), "resid_pdrop is 0.1"),
            (json!({"attention_bias": true}), "attention_bias is true"),
            (json!({"rope_scaling": {"type": "linear", "factor": 2}}), "rope_scaling.type is \"linear\""),
            (json!({"rope_scaling": {"type": "longrope", "long_factor": [1]}}), "rope_scaling.short_factor is missing"),
            (json!({"pad_token_id": 320}), "pad_token_id is 320"),
        ] {
            let message = rope(changes).unwrap_err();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
