//! MiniMax-M2, M2.1 and M2.5 (`MiniMaxM2ForCausalLM`): queries and keys are normed over all heads together, a part of
//! every head turns, and sigmoid routers with a balancing bias choose among small experts.

use serde_json::json;

use super::common::{Place, attention, only_full_attention, uniform};
use super::experts::{balance, checked, num_experts};
use crate::model::decoder::{DecoderConfig, FeedForwardConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;
use crate::nn::moe::{BiasName, ExpertNames, MoeConfig, MoeNames, RouterConfig};
use crate::nn::{AttentionConfig, QkNorm};

pub(in crate::model) fn read(keys: &Keys<'_>, place: &Place) -> Result<DecoderConfig, ModelConfigError> {
    keys.only("router_jitter_noise", &[json!(0.0), json!(0)])?;
    only_full_attention(keys)?;
    let attention = AttentionConfig { qk_norm: QkNorm::Full, ..attention(keys)? };
    let rope = read_rope(keys, attention.head_dim, 5_000_000.0)?;
    let router = RouterConfig::sigmoid(num_experts(keys, &["num_local_experts"])?, keys.size("num_experts_per_tok")?);
    let experts = FeedForwardConfig::Moe(MoeConfig {
        router: checked(keys, router)?,
        intermediate_size: keys.size("intermediate_size")?,
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
