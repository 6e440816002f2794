//! Hunyuan 0.5B to 7B (`HunYuanDenseV1ForCausalLM`): LLaMA whose heads of queries and keys are normed behind the rotation, with a
//! larger base of dynamic rotary embeddings.

use serde_json::json;

use super::common::{NamePrefix, attention, dense, only_full_attention, uniform};
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::{read_rope, section};
use crate::nn::{AttentionConfig, QkNorm, RopeScaling};

pub(super) const FAMILY: TextFamily = TextFamily::new("hunyuan_v1_dense", read);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let filled = keys.filled(&json!({"rms_norm_eps": 1e-5, "pad_token_id": 0}));
    let keys = &keys.instead(&filled);
    only_full_attention(keys)?;
    // Keys of published configs that transformers' own has not.
    keys.only("use_qk_norm", &[json!(true)])?;
    keys.only("use_cla", &[json!(false)])?;
    keys.only("mlp_bias", &[json!(false)])?;
    let bias = keys.flag_or("attention_bias")?.unwrap_or(false);
    let attention = AttentionConfig {
        qkv_bias: bias,
        o_bias: bias,
        qk_norm: QkNorm::TurnedHead,
        qk_norm_names: ["query_layernorm", "key_layernorm"],
        ..attention(keys)?
    };
    let mut rope = read_rope(keys, attention.head_dim, 10_000.0)?;
    if let (RopeScaling::Dynamic { alpha, .. }, Some(section)) = (&mut rope.scaling, section(keys)?) {
        // A 0 is none.
        *alpha = section.number_or("alpha")?.filter(|alpha| *alpha != 0.0);
    }
    uniform(keys, place, MixerConfig::Attention(attention), dense(keys)?, rope)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::family::decoder_of::decoder_of;
    use crate::nn::RopeScaling;

    fn scaling(changes: Value) -> Result<RopeScaling, String> {
        let config = json!({
            "model_type": "hunyuan_v1_dense", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16, "max_position_embeddings": 64
        });
        Ok(decoder_of(config, &changes)?.layers[0].rope.scaling.clone())
    }

    #[test]
    fn dynamic_embeddings_have_an_alpha() {
        let dynamic = |alpha| RopeScaling::Dynamic { factor: 1.0, max_position_embeddings: 64, alpha };
        let published = json!({"rope_scaling": {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0,
            "mscale": 1.0, "mscale_all_dim": 1.0, "type": "dynamic"}});
        assert_eq!(scaling(published), Ok(dynamic(Some(1000.0))));
        for alpha in [json!(0), json!(null)] {
            let section = json!({"alpha": alpha, "factor": 1.0, "type": "dynamic"});
            assert_eq!(scaling(json!({"rope_scaling": section})), Ok(dynamic(None)));
        }
        assert_eq!(scaling(json!({"rope_parameters": {"rope_theta": 1e4, "alpha": 9.0}})), Ok(RopeScaling::Default));
    }

    #[test]
    fn what_is_not_implemented_is_refused_by_name() {
        for (changes, expected) in [
            (json!({"use_qk_norm": false}), "use_qk_norm is false"),
            (json!({"use_cla": true}), "use_cla is true"),
            (json!({"mlp_bias": true}), "mlp_bias is true"),
        ] {
            let message = scaling(changes).unwrap_err();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
