//! ERNIE-4.5 with experts (`Ernie4_5_MoeForCausalLM`): softmax routers with a balancing bias, and shared experts.

use super::common::NamePrefix;
use super::ernie4_5::{decoder, dense};
use super::experts::{balance, checked, num_experts};
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, FeedForwardConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::moe::{BiasName, MoeConfig, MoeNames, Normalize, RouterConfig, SharedExpertsConfig};

pub(super) const FAMILY: TextFamily = TextFamily::new("ernie4_5_moe", read).with_kv_heads(4);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let num_layers = keys.size("num_hidden_layers")?;
    let first = keys.index_or("moe_layer_start_index")?.unwrap_or(1);
    // transformers takes -1 for the last one.
    let last = match keys.value("moe_layer_end_index").and_then(|value| value.as_i64()) {
        Some(-1) | None => num_layers - 1,
        Some(last) => last,
    };
    let interval = keys.size_or("moe_layer_interval")?.unwrap_or(1);
    let experts = FeedForwardConfig::Moe(experts(
        keys,
        num_experts(keys, &NUM_EXPERTS)?,
        keys.size("moe_intermediate_size")?,
        1,
    )?);
    let dense = dense(keys)?;
    let is_sparse = |layer: i64| (layer + 1) % interval == 0 && (first..=last).contains(&layer);
    let feed_forward = |layer| if is_sparse(layer) { experts.clone() } else { dense.clone() };
    let decoder = decoder(keys, place, None, (0..num_layers).map(feed_forward).collect())?;
    // Unlike ERNIE's other classes, this one has the bias in its head as well.
    let head_bias = keys.flag_or("use_bias")?.unwrap_or(false);
    Ok(DecoderConfig { balance: balance(keys, 0.001)?, head_bias, ..decoder })
}

/// The keys that say how many experts there are.
pub(super) const NUM_EXPERTS: [&str; 2] = ["moe_num_experts", "num_experts"];

/// Reads the config of `num_experts` experts of this width; the checkpoint's balancing bias is `[bias_rows, E]`.
pub(super) fn experts(
    keys: &Keys<'_>,
    num_experts: i64,
    intermediate_size: i64,
    bias_rows: i64,
) -> Result<MoeConfig, ModelConfigError> {
    let top_k = match keys.size_or("moe_k")? {
        Some(top_k) => top_k,
        None => keys.size_or("num_experts_per_tok")?.unwrap_or(6),
    };
    let norm_min = keys.number_or("moe_norm_min")?.unwrap_or(1e-12);
    let router = RouterConfig {
        bias: true,
        normalize: Normalize::ClampedSum(norm_min),
        ..RouterConfig::softmax(num_experts, top_k)
    };
    let num_shared = keys.index_or("moe_num_shared_experts")?.unwrap_or(2);
    let shared = SharedExpertsConfig {
        intermediate_size: intermediate_size * num_shared,
        bias: keys.flag_or("use_bias")?.unwrap_or(false),
        gated: false,
    };
    Ok(MoeConfig {
        router: checked(keys, router)?,
        intermediate_size,
        bias: false,
        shared: (num_shared > 0).then_some(shared),
        names: MoeNames {
            bias: BiasName { name: "moe_statics.e_score_correction_bias", rows: Some(bias_rows), row: 0 },
            ..MoeNames::default()
        },
        media: None,
    })
}
