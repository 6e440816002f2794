//! DeepSeek-V2 and V2-Lite (`DeepseekV2ForCausalLM`).

use serde_json::json;

use super::common::NamePrefix;
use super::deepseek::{Defaults, attention, decoder, feed_forwards, groups, rope};
use super::experts::num_experts;
use super::text_family::TextFamily;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::RopeLayout;
use crate::nn::moe::{GroupScore, Normalize, RouterConfig};

/// The defaults of its config class.
const DEFAULTS: Defaults = Defaults { groups: [1, 1], n_shared_experts: 2, first_k_dense_replace: 0 };

pub(super) const FAMILY: TextFamily = TextFamily::new("deepseek_v2", read);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    keys.only("scoring_func", &[json!("softmax")])?;
    keys.only("topk_method", &[json!("greedy"), json!("group_limited_greedy")])?;
    let limited = keys.text_or("topk_method")? == Some("group_limited_greedy");
    // As transformers, whatever `norm_topk_prob` says: all published checkpoints say false.
    let router = RouterConfig {
        groups: if limited { groups(keys, GroupScore::Best, &DEFAULTS)? } else { None },
        normalize: Normalize::No,
        scaling_factor: keys.number_or("routed_scaling_factor")?.unwrap_or(1.0),
        ..RouterConfig::softmax(num_experts(keys, &["n_routed_experts"])?, keys.size("num_experts_per_tok")?)
    };
    let rope = rope(keys, RopeLayout::Interleaved)?;
    let mixers = vec![attention(keys, &rope)?; keys.size("num_hidden_layers")? as usize];
    let feed_forwards = feed_forwards(keys, &DEFAULTS, router, keys.flag_or("mlp_bias")?.unwrap_or(false))?;
    Ok(DecoderConfig { mtp_names: None, ..decoder(keys, place, &DEFAULTS, mixers, feed_forwards, rope)? })
}
