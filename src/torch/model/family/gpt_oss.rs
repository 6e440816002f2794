//! gpt-oss (`GptOssForCausalLM`): a learned sink in the softmax of each head, a window in every other layer, and experts with
//! biases and a clamped SwiGLU.

use serde_json::json;

use super::common::{NamePrefix, attention_or, layered, windows_of};
use super::experts::{balance, checked, num_experts};
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, FeedForwardConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;
use crate::nn::moe::{ExpertNames, MoeConfig, MoeNames, Normalize, RouterConfig, RouterScores};
use crate::nn::{Activation, AttentionConfig, SWIGLU_LIMIT};

pub(super) const FAMILY: TextFamily = TextFamily::new("gpt_oss", read).with_kv_heads(8);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let mut filled = keys.filled(&json!({"rms_norm_eps": 1e-5, "attention_bias": true}));
    if keys.value("rope_parameters").is_none() && keys.value("rope_scaling").is_none() {
        filled["rope_scaling"] = json!({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": false, "original_max_position_embeddings": 4096});
    }
    let keys = &keys.instead(&filled);
    keys.only("hidden_act", &[json!("silu")])?;
    // The published key of what transformers has as a constant.
    keys.only("swiglu_limit", &[json!(SWIGLU_LIMIT), json!(7)])?;
    let bias = keys.flag_or("attention_bias")?.unwrap_or(true);
    let attention = AttentionConfig { qkv_bias: bias, o_bias: bias, sinks: true, ..attention_or(keys, Some(64))? };
    let rope = read_rope(keys, attention.head_dim, 150_000.0)?;
    let windows = windows_of(keys, keys.size_or_null("sliding_window", 128)?, |layer| layer % 2 == 0)?;
    // Some of the published configs call it `experts_per_token`.
    let top_k = match keys.size_or("num_experts_per_tok")? {
        Some(top_k) => top_k,
        None => keys.size_or("experts_per_token")?.unwrap_or(4),
    };
    let router = RouterConfig {
        scores: RouterScores::SoftmaxOfChosen,
        logit_bias: true,
        normalize: Normalize::No,
        ..RouterConfig::softmax(num_experts(keys, &["num_local_experts"])?, top_k)
    };
    let experts = FeedForwardConfig::Moe(MoeConfig {
        router: checked(keys, router)?,
        intermediate_size: keys.size("intermediate_size")?,
        bias: true,
        shared: None,
        names: MoeNames { router: "router.weight", experts: ExpertNames::Interleaved, ..MoeNames::default() },
        media: None,
    });
    let layer = |window| (AttentionConfig { window, ..attention.clone() }.into(), experts.clone());
    let mut decoder = layered(keys, place, windows.into_iter().map(layer).collect(), rope)?;
    decoder.layers.iter_mut().for_each(|layer| layer.act = Activation::ClampedSwiGlu);
    Ok(DecoderConfig { balance: balance(keys, 0.001)?, ..decoder })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::decoder::{DecoderConfig, MixerConfig};
    use crate::model::family::decoder_of::decoder_of;
    use crate::nn::RopeScaling;
    use crate::params::ParallelRank;

    fn read(changes: Value) -> Result<DecoderConfig, String> {
        let config = json!({
            "model_type": "gpt_oss", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 32,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4
        });
        decoder_of(config, &changes)
    }

    #[test]
    fn defaults_are_those_of_the_class() {
        let decoder = read(json!({})).unwrap();
        let window = |layer: usize| match &decoder.layers[layer].mixer {
            MixerConfig::Attention(attention) => attention.window,
            _ => unreachable!("it attends"),
        };
        assert_eq!([window(0), window(1), window(2)], [Some(128), None, Some(128)]);
        let RopeScaling::Yarn(yarn) = &decoder.layers[0].rope.scaling else { unreachable!("it is scaled") };
        assert_eq!((yarn.factor, yarn.original_max_position_embeddings, yarn.truncate), (32.0, 4096, false));
        assert_eq!((decoder.layers[0].rope.theta, decoder.norm.eps), (150_000.0, 1e-5));
    }

    #[test]
    fn gates_and_ups_are_split_evenly_or_not_at_all() {
        let place = ParallelRank { tp: 2, ..ParallelRank::default() };
        assert!(read(json!({})).unwrap().divided(&place).is_ok());
        let error = read(json!({"intermediate_size": 33})).unwrap().divided(&place).unwrap_err().to_string();
        assert_eq!(error, "intermediate_size is 33, which tensor_parallel=2 does not divide");
    }

    #[test]
    fn what_is_not_implemented_is_refused_by_name() {
        for (changes, expected) in [
            (json!({"hidden_act": "gelu"}), "hidden_act is \"gelu\""),
            (json!({"swiglu_limit": 5.0}), "swiglu_limit is 5.0"),
            (json!({"num_experts_per_tok": 5}), "num_experts_per_tok is 5, but there are only 4 experts"),
            (json!({"sliding_window": null, "layer_types": vec!["sliding_attention"; 3]}), "sliding attention needs"),
        ] {
            let message = read(changes).unwrap_err();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
