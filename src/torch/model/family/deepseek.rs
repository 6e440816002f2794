//! The readers that the families which follow DeepSeek-V2 have in common: latent attention (but GLM-4.5), and experts in all but the
//! first layers.

use serde_json::json;

use super::common::{NamePrefix, deepseek_mtp, layered};
use super::experts::{checked, num_experts, sparse_layers};
use crate::model::decoder::{DecoderConfig, FeedForwardConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::{read_rope, section};
use crate::nn::moe::{ExpertGroups, GroupScore, MoeConfig, MoeNames, Normalize, RouterConfig, SharedExpertsConfig};
use crate::nn::{IndexerConfig, IndexerTraining, KeyChoice, MlaConfig, RopeConfig, RopeLayout, RopeScaling};

type Result<T> = std::result::Result<T, ModelConfigError>;

/// The defaults of a family's config class.
pub(super) struct Defaults {
    /// Groups of experts, and how many of them a token chooses from.
    pub groups: [i64; 2],
    pub n_shared_experts: i64,
    pub first_k_dense_replace: i64,
}

/// The defaults of DeepSeek-V3 and V3.2.
pub(super) const V3: Defaults = Defaults { groups: [8, 4], n_shared_experts: 1, first_k_dense_replace: 3 };

/// Returns rotary embeddings of the channels with positions.
pub(super) fn rope(keys: &Keys<'_>, layout: RopeLayout) -> Result<RopeConfig> {
    let head_dim = keys.size("qk_rope_head_dim")?;
    if head_dim % 2 != 0 {
        return Err(keys.inconsistent("qk_rope_head_dim", head_dim, "rotary embeddings need an even width"));
    }
    let rope = RopeConfig { layout, ..read_rope(keys, head_dim, 10_000.0)? };
    // With other laws the reference multiplies the scores by it as well; no published model has it.
    if let (false, Some(section)) = (matches!(rope.scaling, RopeScaling::Yarn(_)), section(keys)?) {
        section.only("mscale_all_dim", &[json!(0.0), json!(0)])?;
    }
    Ok(rope)
}

/// Returns attention to all keys.
pub(super) fn attention(keys: &Keys<'_>, rope: &RopeConfig) -> Result<MlaConfig> {
    keys.no_dropout("attention_dropout")?;
    let num_heads = keys.size("num_attention_heads")?;
    keys.only("num_key_value_heads", &[json!(num_heads)])?;
    let (qk_nope_head_dim, qk_rope_head_dim) = (keys.size("qk_nope_head_dim")?, keys.size("qk_rope_head_dim")?);
    Ok(MlaConfig {
        num_heads,
        q_lora_rank: keys.size_or_null("q_lora_rank", 1536)?,
        kv_lora_rank: keys.size("kv_lora_rank")?,
        qk_nope_head_dim,
        qk_rope_head_dim,
        v_head_dim: keys.size("v_head_dim")?,
        attention_bias: keys.flag_or("attention_bias")?.unwrap_or(false),
        softmax_scale: ((qk_nope_head_dim + qk_rope_head_dim) as f64).powf(-0.5) * rope.scaling.softmax_scale(),
        keys: KeyChoice::All,
    })
}

/// Returns the indexer of sparse attention, whose own pairs are laid out as `layout`.
pub(super) fn indexer(keys: &Keys<'_>, layout: RopeLayout) -> Result<IndexerConfig> {
    keys.only("indexer_rope_interleave", &[json!(layout == RopeLayout::Interleaved)])?;
    if keys.size_or("q_lora_rank")?.is_none() {
        return Err(keys.missing("q_lora_rank"));
    }
    let head_dim = keys.size("index_head_dim")?;
    let turning = keys.size("qk_rope_head_dim")?;
    if head_dim < turning {
        return Err(keys.inconsistent(
            "index_head_dim",
            head_dim,
            format!("must be at least qk_rope_head_dim ({turning})"),
        ));
    }
    let (num_heads, topk) = (keys.size("index_n_heads")?, keys.size("index_topk")?);
    Ok(IndexerConfig { num_heads, head_dim, topk, layout, training: IndexerTraining::Frozen })
}

/// Returns the feed-forward of the first layers, and experts behind this router with shared ones for the others. `bias`: of the former
/// and of shared experts.
pub(super) fn feed_forwards(
    keys: &Keys<'_>,
    defaults: &Defaults,
    router: RouterConfig,
    bias: bool,
) -> Result<[FeedForwardConfig; 2]> {
    keys.only("moe_layer_freq", &[json!(1)])?;
    let intermediate_size = keys.size("moe_intermediate_size")?;
    let num_shared = match keys.has("n_shared_experts") {
        true => keys.index_or("n_shared_experts")?.unwrap_or(0),
        false => defaults.n_shared_experts,
    };
    let shared = SharedExpertsConfig { intermediate_size: num_shared * intermediate_size, bias, gated: false };
    let experts = MoeConfig {
        router: checked(keys, router)?,
        intermediate_size,
        bias: false,
        shared: (num_shared > 0).then_some(shared),
        names: MoeNames::default(),
        media: None,
    };
    let dense = FeedForwardConfig::Dense { intermediate_size: keys.size("intermediate_size")?, bias };
    Ok([dense, FeedForwardConfig::Moe(experts)])
}

/// Returns DeepSeek-V3's router: sigmoids with a balancing bias, and the two best experts of a group for its score.
pub(super) fn biased_router(keys: &Keys<'_>, defaults: &Defaults) -> Result<RouterConfig> {
    keys.only("scoring_func", &[json!("sigmoid")])?;
    keys.only("topk_method", &[json!("noaux_tc")])?;
    let router = RouterConfig::sigmoid(num_experts(keys, &["n_routed_experts"])?, keys.size("num_experts_per_tok")?);
    let normalized = keys.flag_or("norm_topk_prob")?.unwrap_or(true);
    Ok(RouterConfig {
        groups: groups(keys, GroupScore::BestTwo, defaults)?,
        normalize: if normalized { Normalize::Sum(1e-20) } else { Normalize::No },
        scaling_factor: keys.number_or("routed_scaling_factor")?.unwrap_or(2.5),
        ..router
    })
}

/// Reads the groups of experts; `None` where there is one group.
pub(super) fn groups(keys: &Keys<'_>, score: GroupScore, defaults: &Defaults) -> Result<Option<ExpertGroups>> {
    let [num, kept] = defaults.groups;
    let num = keys.size_or("n_group")?.unwrap_or(num);
    let kept = keys.size_or("topk_group")?.unwrap_or(kept);
    Ok((num > 1).then_some(ExpertGroups { num, kept, score }))
}

/// Returns the decoder: one layer for each of `mixers`, the first `first_k_dense_replace` without experts.
pub(super) fn decoder(
    keys: &Keys<'_>,
    place: &NamePrefix,
    defaults: &Defaults,
    mixers: Vec<impl Into<MixerConfig>>,
    [dense, experts]: [FeedForwardConfig; 2],
    rope: RopeConfig,
) -> Result<DecoderConfig> {
    let num_layers = mixers.len();
    let sparse = match sparse_layers(keys)? {
        Some(sparse) => sparse,
        None => {
            let num_dense = keys.index_or("first_k_dense_replace")?.unwrap_or(defaults.first_k_dense_replace);
            (0..num_layers as i64).map(|layer| layer >= num_dense).collect()
        }
    };
    let feed_forward = |sparse: bool| if sparse { experts.clone() } else { dense.clone() };
    let layers = mixers.into_iter().map(Into::into).zip(sparse.into_iter().map(feed_forward)).collect();
    let mtp_names = Some(deepseek_mtp(num_layers, &format!("{}layers", place.base)));
    Ok(DecoderConfig { mtp_names, ..layered(keys, place, layers, rope)? })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::decoder::{DecoderConfig, FeedForwardConfig, MixerConfig};
    use crate::model::family::decoder_of::decoder_of;

    fn read(model_type: &str, changes: &Value) -> DecoderConfig {
        let config = json!({
            "model_type": model_type, "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
            "moe_intermediate_size": 24, "num_hidden_layers": 5, "num_attention_heads": 4, "n_routed_experts": 16,
            "num_experts_per_tok": 4, "kv_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8
        });
        decoder_of(config, changes).unwrap()
    }

    /// Returns the layers without experts, the width of the shared ones, and the queries' rank.
    fn shape(model_type: &str, changes: Value) -> (usize, Option<i64>, Option<i64>) {
        let decoder = read(model_type, &changes);
        let num_dense =
            decoder.layers.iter().take_while(|layer| !matches!(layer.feed_forward, FeedForwardConfig::Moe(_)));
        let last = decoder.layers.last().unwrap();
        let FeedForwardConfig::Moe(experts) = &last.feed_forward else { unreachable!("the last layer has experts") };
        let MixerConfig::Mla(mixer) = &last.mixer else { unreachable!("latent attention") };
        (num_dense.count(), experts.shared.as_ref().map(|shared| shared.intermediate_size), mixer.q_lora_rank)
    }

    #[test]
    fn defaults_are_those_of_the_classes() {
        assert_eq!(shape("deepseek_v2", json!({})), (0, Some(48), Some(1536)));
        assert_eq!(shape("deepseek_v3", json!({})), (3, Some(24), Some(1536)));
        let none = json!({"first_k_dense_replace": 1, "n_shared_experts": null, "q_lora_rank": null});
        assert_eq!(shape("deepseek_v3", none), (1, None, None));
    }
}
