//! Qwen3-Next (`Qwen3NextForCausalLM`), and what Qwen3.5 shares with it: layers of gated delta nets with one of gated
//! attention after every few, norms whose factor is one plus the weight, and a quarter of every head's channels turned.

use super::common::{NamePrefix, attention_or, dense, layered, layers_of};
use super::experts::{balance, checked, num_experts, qwen_layers};
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, FeedForwardConfig, MixerConfig, MtpNames, MtpPlace, MtpProjection};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_partial_rope;
use crate::nn::moe::{MoeConfig, MoeNames, Normalize, RouterConfig, SharedExpertsConfig};
use crate::nn::{Activation, AttentionConfig, GatedDeltaConfig, GatedDeltaLayout, NormConfig, QkNorm};

type Result<T> = std::result::Result<T, ModelConfigError>;

pub(super) const FAMILY: TextFamily = TextFamily::new("qwen3_next", read).with_kv_heads(2);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig> {
    let experts = experts(keys, keys.flag_or("norm_topk_prob")?.unwrap_or(true))?;
    let feed_forwards = qwen_layers(keys, &dense(keys)?, &experts)?;
    let decoder = hybrid(keys, place, GatedDeltaLayout::Grouped, feed_forwards)?;
    Ok(DecoderConfig { balance: balance(keys, 0.001)?, ..decoder })
}

/// Returns the decoder with these feed-forwards.
pub(super) fn hybrid(
    keys: &Keys<'_>,
    place: &NamePrefix,
    layout: GatedDeltaLayout,
    feed_forwards: Vec<FeedForwardConfig>,
) -> Result<DecoderConfig> {
    let attention = gated_attention(keys)?;
    let rope = read_partial_rope(keys, attention.head_dim, 10_000.0, 0.25)?;
    let delta = gated_delta(keys, layout)?;
    let mixers = full_attention(keys)?.into_iter().map(|full| match full {
        true => MixerConfig::Attention(attention.clone()),
        false => MixerConfig::GatedDelta(delta.clone()),
    });
    let config = layered(keys, place, mixers.zip(feed_forwards).collect(), rope)?;
    let norm = NormConfig { zero_centered: true, ..config.norm };
    let mut config = config.with_norm(norm);
    config.mtp_names = Some(MtpNames {
        heads: MtpPlace::Single("mtp".to_owned()),
        embedding_norm: "pre_fc_norm_embedding",
        hidden_norm: "pre_fc_norm_hidden",
        project: MtpProjection::Joined("fc"),
        last_norm: "norm",
        hidden_first: false,
        repeats: None,
        layer: None,
    });
    Ok(config)
}

/// Returns routed experts and a shared one behind a gate; `normalized`: whether the chosen ones' weights are divided by their sum.
pub(super) fn experts(keys: &Keys<'_>, normalized: bool) -> Result<FeedForwardConfig> {
    let router = RouterConfig::softmax(num_experts(keys, &["num_experts"])?, keys.size("num_experts_per_tok")?);
    let normalize = if normalized { router.normalize } else { Normalize::No };
    let shared = keys.size("shared_expert_intermediate_size")?;
    Ok(FeedForwardConfig::Moe(MoeConfig {
        router: checked(keys, RouterConfig { normalize, ..router })?,
        intermediate_size: keys.size("moe_intermediate_size")?,
        bias: false,
        shared: Some(SharedExpertsConfig { intermediate_size: shared, gated: true, bias: false }),
        names: MoeNames { shared: "shared_expert", ..MoeNames::default() },
        media: None,
    }))
}

fn gated_attention(keys: &Keys<'_>) -> Result<AttentionConfig> {
    let bias = keys.flag_or("attention_bias")?.unwrap_or(false);
    let attention = attention_or(keys, Some(256))?;
    Ok(AttentionConfig { qkv_bias: bias, o_bias: bias, qk_norm: QkNorm::Head, output_gate: true, ..attention })
}

fn gated_delta(keys: &Keys<'_>, layout: GatedDeltaLayout) -> Result<GatedDeltaConfig> {
    let size = |key: &str, default: i64| Ok(keys.size_or(key)?.unwrap_or(default));
    let config = GatedDeltaConfig {
        hidden_size: keys.size("hidden_size")?,
        num_key_heads: size("linear_num_key_heads", 16)?,
        num_value_heads: size("linear_num_value_heads", 32)?,
        key_head_dim: size("linear_key_head_dim", 128)?,
        value_head_dim: size("linear_value_head_dim", 128)?,
        conv_kernel_dim: size("linear_conv_kernel_dim", 4)?,
        rms_norm_eps: keys.number_or("rms_norm_eps")?.unwrap_or(1e-6),
        act: keys.activation_or("hidden_act")?.unwrap_or(Activation::Silu),
        layout,
    };
    if config.num_value_heads % config.num_key_heads != 0 {
        let must = format!("must be a multiple of linear_num_key_heads ({})", config.num_key_heads);
        return Err(keys.inconsistent("linear_num_value_heads", config.num_value_heads, must));
    }
    if config.conv_kernel_dim < 2 {
        return Err(keys.inconsistent("linear_conv_kernel_dim", config.conv_kernel_dim, "must be at least 2"));
    }
    Ok(config)
}

/// Returns for each layer whether it attends to all tokens: by `layer_types`, or every `full_attention_interval`th.
fn full_attention(keys: &Keys<'_>) -> Result<Vec<bool>> {
    if let Some(full) = layers_of(keys, ["linear_attention", "full_attention"])? {
        return Ok(full);
    }
    let interval = keys.size_or("full_attention_interval")?.unwrap_or(4);
    Ok((1..=keys.size("num_hidden_layers")?).map(|number| number % interval == 0).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::decoder::MixerConfig;
    use crate::model::family::{NamePrefix, qwen3_5_text};
    use crate::model::keys::Keys;

    fn read(change: (&str, Value)) -> Result<(Vec<bool>, i64), String> {
        let mut config = json!({
            "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "head_dim": 32,
            "num_attention_heads": 4, "num_key_value_heads": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7}
        });
        config[change.0] = change.1;
        let decoder =
            qwen3_5_text::FAMILY.read(&Keys::new(&config), &NamePrefix::alone()).map_err(|error| error.to_string())?;
        let full = |mixer: &MixerConfig| matches!(mixer, MixerConfig::Attention(_));
        Ok((decoder.layers.iter().map(|layer| full(&layer.mixer)).collect(), decoder.layers[0].rope.rotary_dim))
    }

    #[test]
    fn every_fourth_layer_attends_and_a_quarter_turns_unless_the_config_says_otherwise() {
        let fourth = vec![false, false, false, true, false];
        assert_eq!(read(("use_cache", json!(true))), Ok((fourth.clone(), 8)));
        assert_eq!(read(("partial_rotary_factor", json!(0.5))), Ok((fourth, 16)));
        let second = vec![false, true, false, true, false];
        assert_eq!(read(("full_attention_interval", json!(2))), Ok((second, 8)));
        let kinds = ["full_attention", "linear_attention"].repeat(3);
        assert_eq!(read(("layer_types", json!(kinds[..5]))), Ok((vec![true, false, true, false, true], 8)));
    }

    #[test]
    fn errors_name_the_key_and_what_it_must_be() {
        let cases = [
            ("layer_types", json!(["linear_attention"]), "layer_types is a list of 1, but num_hidden_layers is 5"),
            ("layer_types", json!(vec!["chunked_attention"; 5]), r#"supported: "linear_attention", "full_attention""#),
            ("linear_num_value_heads", json!(3), "must be a multiple of linear_num_key_heads (2)"),
            ("linear_conv_kernel_dim", json!(1), "must be at least 2"),
            ("linear_key_head_dim", json!(0), "linear_key_head_dim must be a positive integer"),
        ];
        for (key, value, expected) in cases {
            let message = read((key, value)).unwrap_err();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
