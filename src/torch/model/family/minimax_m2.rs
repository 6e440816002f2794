//! MiniMax-M2, M2.1 and M2.5 (`MiniMaxM2ForCausalLM`): queries and keys are normed over all heads together, a part of
//! every head turns, and sigmoid routers with a balancing bias choose among small experts.

use serde_json::json;

use super::common::{NamePrefix, attention_or, only_full_attention, uniform};
use super::experts::{balance, checked, num_experts};
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, FeedForwardConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_partial_rope;
use crate::nn::moe::{BiasName, ExpertNames, MoeConfig, MoeNames, RouterConfig};
use crate::nn::{AttentionConfig, QkNorm};

pub(super) const FAMILY: TextFamily = TextFamily::new("minimax_m2", read).with_kv_heads(8);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    keys.only("router_jitter_noise", &[json!(0.0), json!(0)])?;
    only_full_attention(keys)?;
    // Keys of the published config that transformers' own has not.
    keys.only("scoring_func", &[json!("sigmoid")])?;
    keys.only("use_routing_bias", &[json!(true)])?;
    keys.only("use_qk_norm", &[json!(true)])?;
    keys.only("qk_norm_type", &[json!("per_layer")])?;
    keys.only("shared_intermediate_size", &[json!(0)])?;
    if let Some(kinds) = keys.value("attn_type_list") {
        let softmax = kinds.as_array().is_some_and(|kinds| kinds.iter().all(|kind| *kind == 1));
        if !softmax {
            return Err(keys.inconsistent("attn_type_list", kinds, "all layers must have softmax attention (1)"));
        }
    }
    let attention = AttentionConfig { qk_norm: QkNorm::Full, ..attention_or(keys, Some(128))? };
    let rope = read_partial_rope(keys, attention.head_dim, 5_000_000.0, 1.0)?;
    let router = RouterConfig::sigmoid(num_experts(keys, &["num_local_experts"])?, keys.size("num_experts_per_tok")?);
    let experts = FeedForwardConfig::Moe(MoeConfig {
        router: checked(keys, router)?,
        intermediate_size: keys.size("intermediate_size")?,
        bias: false,
        shared: None,
        names: MoeNames {
            bias: BiasName { name: "e_score_correction_bias", rows: None, row: 0 },
            experts: ExpertNames::Each { gate_up_down: ["w1", "w3", "w2"], first: 0 },
            ..MoeNames::default()
        },
        media: None,
    });
    let mut decoder = uniform(keys, place, MixerConfig::Attention(attention), experts, rope)?;
    decoder.names.mlp = "block_sparse_moe";
    Ok(DecoderConfig { balance: balance(keys, 0.001)?, ..decoder })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::ModelConfig;

    /// Returns the published config, but smaller.
    fn published() -> Value {
        json!({
            "model_type": "minimax_m2", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 32,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
            "rotary_dim": 16, "rope_theta": 5e6, "num_local_experts": 8, "num_experts_per_tok": 2,
            "scoring_func": "sigmoid", "use_routing_bias": true, "use_qk_norm": true, "qk_norm_type": "per_layer",
            "attn_type_list": [1, 1], "shared_intermediate_size": 0, "use_mtp": true, "num_mtp_modules": 3
        })
    }

    #[test]
    fn the_published_keys_are_read_or_refused() {
        let config = ModelConfig::from_hf(&published()).unwrap();
        assert_eq!(config.decoder().unwrap().layers[0].rope.rotary_dim, 16);
        for (key, value) in [
            ("scoring_func", json!("softmax")),
            ("use_routing_bias", json!(false)),
            ("qk_norm_type", json!("per_head")),
            ("attn_type_list", json!([1, 0])),
            ("shared_intermediate_size", json!(8)),
        ] {
            let mut config = published();
            config[key] = value;
            let error = ModelConfig::from_hf(&config).unwrap_err().to_string();
            assert!(error.contains(key), "{error} lacks {key}");
        }
    }
}
