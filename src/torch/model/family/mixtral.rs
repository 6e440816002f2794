//! Mixtral (`MixtralForCausalLM`): Mistral with experts in every layer.

use serde_json::json;

use super::common::{NamePrefix, uniform};
use super::experts::{balance, checked, num_experts};
use super::mistral::heads;
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, FeedForwardConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;
use crate::nn::moe::{ExpertNames, MoeConfig, MoeNames, RouterConfig};

pub(super) const FAMILY: TextFamily = TextFamily::new("mixtral", read).with_kv_heads(8);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let filled = keys.filled(&json!({"rms_norm_eps": 1e-5}));
    let keys = &keys.instead(&filled);
    keys.only("router_jitter_noise", &[json!(0.0), json!(0)])?;
    let attention = heads(keys, keys.size_or("sliding_window")?)?;
    let rope = read_rope(keys, attention.head_dim, 1_000_000.0)?;
    let router = RouterConfig::softmax(
        num_experts(keys, &["num_local_experts"])?,
        keys.size_or("num_experts_per_tok")?.unwrap_or(2),
    );
    let experts = FeedForwardConfig::Moe(MoeConfig {
        router: checked(keys, router)?,
        intermediate_size: keys.size("intermediate_size")?,
        bias: false,
        shared: None,
        names: MoeNames {
            experts: ExpertNames::Each { gate_up_down: ["w1", "w3", "w2"], first: 0 },
            ..MoeNames::default()
        },
        media: None,
    });
    let mut decoder = uniform(keys, place, MixerConfig::Attention(attention), experts, rope)?;
    decoder.names.mlp = "block_sparse_moe";
    Ok(DecoderConfig { balance: balance(keys, 0.001)?, ..decoder })
}
