//! DeepSeek-V4 (`DeepseekV4ForCausalLM`): attention to a window of tokens and to compressed entries of what came before, a
//! residual of several streams, and experts that the first layers look up by token.
//!
//! Parameters are called as transformers' modules; files have the published names. transformers leaves the published
//! prediction head (`mtp.`) out; it is DeepSeek's: a layer on all streams before the last mix, with a last mix of its own.

use serde_json::{Value, json};

use super::common::{NamePrefix, layered};
use super::experts::{balance, checked, num_experts};
use super::text_family::TextFamily;
use crate::model::decoder::{
    DecoderConfig, FeedForwardConfig, LayerConfig, MixerConfig, MtpNames, MtpPlace, MtpProjection,
};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope_by_compression;
use crate::nn::moe::{ExpertNames, MoeConfig, MoeNames, Normalize, RouterConfig, RouterScores, SharedExpertsConfig};
use crate::nn::{Activation, CompressedConfig, Compression, EntryIndexer, Limit, StreamsConfig};

type Result<T> = std::result::Result<T, ModelConfigError>;

/// `layer_types`: a window alone, entries that an indexer chooses among, and all entries.
const KINDS: [&str; 3] = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"];

/// `compress_ratios` of the same.
const RATIOS: [i64; 3] = [0, 4, 128];

/// The parts of names that published files write otherwise than the modules are called.
const RENAMES: &[(&str, &str)] = &[
    ("model.embed_tokens.", "embed."),
    ("lm_head.", "head."),
    ("model.hc_head.hc_", "hc_head_"),
    ("model.mtp.", "mtp."),
    (".hc_head.hc_", ".hc_head_"),
    ("model.norm.", "norm."),
    ("model.layers.", "layers."),
    (".attn_hc.", ".hc_attn_"),
    (".ffn_hc.", ".hc_ffn_"),
    (".input_layernorm.", ".attn_norm."),
    (".post_attention_layernorm.", ".ffn_norm."),
    (".self_attn.", ".attn."),
    (".mlp.", ".ffn."),
    (".compressor.indexer.scorer.weights_proj.", ".indexer.weights_proj."),
    (".compressor.indexer.q_b_proj.", ".indexer.wq_b."),
    (".compressor.indexer.", ".indexer.compressor."),
    (".compressor.kv_norm.", ".compressor.norm."),
    (".compressor.gate_proj.", ".compressor.wgate."),
    (".position_bias", ".ape"),
    (".sinks", ".attn_sink"),
    (".q_a_norm.", ".q_norm."),
    (".q_a_proj.", ".wq_a."),
    (".q_b_proj.", ".wq_b."),
    (".kv_proj.", ".wkv."),
    (".o_a_proj.", ".wo_a."),
    (".o_b_proj.", ".wo_b."),
    (".shared_experts.gate_proj.", ".shared_experts.w1."),
    (".shared_experts.down_proj.", ".shared_experts.w2."),
    (".shared_experts.up_proj.", ".shared_experts.w3."),
    (".gate.e_score_correction_bias", ".gate.bias"),
];

/// The most streams and iterations that are taken: time and memory grow with them whatever the width.
const MOST_STREAMS: i64 = 64;
const MOST_ITERATIONS: i64 = 1000;

pub(super) const FAMILY: TextFamily = TextFamily::new("deepseek_v4", read);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig> {
    if !["model.", "foundation.model."].contains(&place.base.as_str()) {
        let must = "it is only supported as a language model on its own, or as model.foundation of a composed model";
        return Err(keys.inconsistent("model_type", "deepseek_v4", must));
    }
    let filled = keys.filled(&defaults());
    let keys = &keys.instead(&filled);
    refuse_others(keys)?;
    let (head_dim, norm_eps) = (keys.size("head_dim")?, keys.number_or("rms_norm_eps")?.unwrap_or(1e-6));
    let [main, compress] = read_rope_by_compression(keys, head_dim, [1e4, 1.6e5], 0.125)?;
    let indexer = EntryIndexer {
        num_heads: keys.size("index_n_heads")?,
        head_dim: keys.size("index_head_dim")?,
        topk: keys.size("index_topk")?,
    };
    if indexer.head_dim < compress.rotary_dim {
        let must = format!("must be at least the {} channels with rotary embeddings", compress.rotary_dim);
        return Err(keys.inconsistent("index_head_dim", indexer.head_dim, must));
    }
    let attention = CompressedConfig {
        num_heads: keys.size("num_attention_heads")?,
        head_dim,
        q_lora_rank: keys.size("q_lora_rank")?,
        o_groups: keys.size("o_groups")?,
        o_lora_rank: keys.size("o_lora_rank")?,
        window: keys.size("sliding_window")?,
        compression: None,
        norm_eps,
    };
    if attention.num_heads * head_dim % attention.o_groups != 0 {
        let must = format!("must divide the {} channels of all heads", attention.num_heads * head_dim);
        return Err(keys.inconsistent("o_groups", attention.o_groups, must));
    }
    let [sparse_rate, heavy_rate] = rates(keys)?;
    let kinds = kinds(keys)?;
    let mixer = |kind: usize| {
        let compression = match kind {
            0 => None,
            1 => Some(Compression { rate: sparse_rate, indexer: Some(indexer.clone()) }),
            _ => Some(Compression { rate: heavy_rate, indexer: None }),
        };
        MixerConfig::Compressed(CompressedConfig { compression, ..attention.clone() })
    };
    let by_token = hashed(keys, kinds.len())?;
    let layers = kinds.iter().zip(by_token).map(|(kind, by_token)| Ok((mixer(*kind), experts(keys, by_token)?)));
    let mut decoder = layered(keys, place, layers.collect::<Result<_>>()?, compress)?;
    let limit = Activation::LimitedSilu(Limit::new(positive(keys, "swiglu_limit")?));
    for (layer, kind) in decoder.layers.iter_mut().zip(&kinds) {
        layer.act = limit;
        if *kind == 0 {
            layer.rope = main.clone();
        }
    }
    decoder.streams = Some(StreamsConfig {
        count: at_most(keys, "hc_mult", MOST_STREAMS)?,
        sinkhorn_iters: at_most(keys, "hc_sinkhorn_iters", MOST_ITERATIONS)?,
        eps: positive(keys, "hc_eps")?,
        norm_eps,
    });
    decoder.names.renames = RENAMES;
    // A published head sees its window alone, and its experts have scores.
    let last = decoder.layers.last().ok_or_else(|| keys.missing("num_hidden_layers"))?;
    let head = LayerConfig { mixer: mixer(0), feed_forward: experts(keys, false)?, rope: main, ..last.clone() };
    decoder.mtp_names = Some(MtpNames {
        heads: MtpPlace::Numbered(format!("{}mtp", place.base), 0),
        embedding_norm: "enorm",
        hidden_norm: "hnorm",
        project: MtpProjection::Apart(["e_proj", "h_proj"]),
        last_norm: "norm",
        hidden_first: false,
        repeats: None,
        layer: Some(Box::new(head)),
    });
    Ok(DecoderConfig { balance: balance(keys, 0.001)?, ..decoder })
}

/// Returns the defaults of transformers' class, except for the sizes of the model.
fn defaults() -> Value {
    json!({"head_dim": 512, "q_lora_rank": 1024, "o_groups": 8, "o_lora_rank": 1024, "sliding_window": 128,
        "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512, "hc_mult": 4, "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6, "swiglu_limit": 10.0, "num_experts_per_tok": 6, "routed_scaling_factor": 1.5})
}

/// Refuses what the reference has no computation for, or what no published model has.
fn refuse_others(keys: &Keys<'_>) -> Result<()> {
    keys.only("hidden_act", &[json!("silu")])?;
    keys.only("num_key_value_heads", &[json!(1)])?;
    keys.only("n_shared_experts", &[json!(1)])?;
    keys.only("norm_topk_prob", &[json!(true)])?;
    keys.only("topk_method", &[json!("noaux_tc")])?;
    for key in ["attention_bias", "mlp_bias"] {
        keys.only(key, &[json!(false)])?;
    }
    keys.no_dropout("attention_dropout")?;
    keys.only("router_jitter_noise", &[json!(0.0), json!(0)])
}

/// Returns the number of each layer's kind: by `layer_types`, or by `compress_ratios`, whose last entries are those of prediction heads,
/// or by the class's default.
fn kinds(keys: &Keys<'_>) -> Result<Vec<usize>> {
    let num_layers = keys.size("num_hidden_layers")? as usize;
    let alternating = |layer: usize| if layer > 1 && layer % 2 == 1 { 1 } else { 2 };
    let (key, found) = match (keys.value("layer_types"), keys.value("compress_ratios")) {
        (Some(types), _) => ("layer_types", listed(keys, "layer_types", types, &KINDS.map(|kind| json!(kind)))?),
        (None, Some(ratios)) => {
            ("compress_ratios", listed(keys, "compress_ratios", ratios, &RATIOS.map(|ratio| json!(ratio)))?)
        }
        (None, None) => return Ok((0..num_layers).map(alternating).collect()),
    };
    enough(keys, key, found, num_layers)
}

/// Returns for each layer whether its experts are looked up by token: by `mlp_layer_types`, or the first `num_hash_layers`.
fn hashed(keys: &Keys<'_>, num_layers: usize) -> Result<Vec<bool>> {
    let Some(types) = keys.value("mlp_layer_types") else {
        let first = keys.index_or("num_hash_layers")?.unwrap_or(3);
        return Ok((0..num_layers as i64).map(|layer| layer < first).collect());
    };
    let found = listed(keys, "mlp_layer_types", types, &[json!("moe"), json!("hash_moe")])?;
    Ok(enough(keys, "mlp_layer_types", found, num_layers)?.into_iter().map(|kind| kind == 1).collect())
}

/// Returns the place of each entry of a list among those that are known.
fn listed(keys: &Keys<'_>, key: &str, list: &Value, known: &[Value]) -> Result<Vec<usize>> {
    let place = |entry: &Value| known.iter().position(|known| known == entry);
    let found: Option<Vec<usize>> = list.as_array().and_then(|list| list.iter().map(place).collect());
    found.ok_or_else(|| keys.unsupported(key, list, known))
}

/// Returns the first entries, one a layer.
fn enough(keys: &Keys<'_>, key: &str, mut found: Vec<usize>, num_layers: usize) -> Result<Vec<usize>> {
    if found.len() < num_layers {
        let must = format!("num_hidden_layers is {num_layers}");
        return Err(keys.inconsistent(key, format!("a list of {}", found.len()), must));
    }
    found.truncate(num_layers);
    Ok(found)
}

/// Returns the tokens of an entry with an indexer, and without.
fn rates(keys: &Keys<'_>) -> Result<[i64; 2]> {
    let section = keys.section_or("compress_rates")?;
    let of = |kind: &str, single: &str, default: i64| {
        let listed = section.as_ref().map(|section| section.size_or(kind)).transpose()?.flatten();
        Ok::<_, ModelConfigError>(keys.size_or(single)?.or(listed).unwrap_or(default))
    };
    Ok([of(KINDS[1], "compress_rate_csa", RATIOS[1])?, of(KINDS[2], "compress_rate_hca", RATIOS[2])?])
}

fn experts(keys: &Keys<'_>, by_token: bool) -> Result<FeedForwardConfig> {
    let scores = match keys.text_or("scoring_func")?.unwrap_or("sqrtsoftplus") {
        "sqrtsoftplus" => RouterScores::SqrtSoftplus,
        "sigmoid" => RouterScores::Sigmoid,
        other => {
            return Err(keys.unsupported("scoring_func", &json!(other), &[json!("sqrtsoftplus"), json!("sigmoid")]));
        }
    };
    let experts = num_experts(keys, &["n_routed_experts"])?;
    let router = RouterConfig {
        scores,
        bias: !by_token,
        by_token: by_token.then_some(keys.size("vocab_size")?),
        normalize: Normalize::Sum(1e-20),
        scaling_factor: keys.number_or("routed_scaling_factor")?.unwrap_or(1.5),
        ..RouterConfig::sigmoid(experts, keys.size("num_experts_per_tok")?)
    };
    let intermediate_size = keys.size("moe_intermediate_size")?;
    Ok(FeedForwardConfig::Moe(MoeConfig {
        router: checked(keys, router)?,
        intermediate_size,
        bias: false,
        shared: Some(SharedExpertsConfig { intermediate_size, bias: false, gated: false }),
        names: MoeNames {
            experts: ExpertNames::Each { gate_up_down: ["w1", "w3", "w2"], first: 0 },
            ..MoeNames::default()
        },
        media: None,
    }))
}

fn positive(keys: &Keys<'_>, key: &str) -> Result<f64> {
    match keys.number_or(key)?.ok_or_else(|| keys.missing(key))? {
        number if number > 0.0 => Ok(number),
        number => Err(keys.inconsistent(key, number, "must be above 0")),
    }
}

fn at_most(keys: &Keys<'_>, key: &str, most: i64) -> Result<i64> {
    match keys.size(key)? {
        size if size <= most => Ok(size),
        size => Err(keys.inconsistent(key, size, format!("must be at most {most}"))),
    }
}

#[cfg(test)]
mod tests {
    use loongforge_core::config::ContextAttention;
    use serde_json::{Value, json};

    use crate::model::ModelConfig;
    use crate::model::decoder::{Decoder, DecoderConfig, FeedForwardConfig, LayerConfig, MixerConfig};

    fn config(changes: Value) -> Value {
        let mut config = json!({
            "model_type": "deepseek_v4", "vocab_size": 320, "hidden_size": 64, "moe_intermediate_size": 24,
            "num_hidden_layers": 4, "num_attention_heads": 4, "n_routed_experts": 8
        });
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        config
    }

    fn read(changes: Value) -> Result<DecoderConfig, String> {
        let model = ModelConfig::from_hf(&config(changes)).map_err(|error| error.to_string())?;
        Ok(model.decoder().unwrap().clone())
    }

    /// Returns for each layer the tokens of an entry, whether an indexer chooses, the base of its rotations, and whether it has a table
    /// of experts.
    fn layers(changes: Value) -> Vec<(i64, bool, f64, bool)> {
        let decoder = read(changes).unwrap();
        let of = |layer: &LayerConfig| {
            let MixerConfig::Compressed(mixer) = &layer.mixer else { unreachable!("compressed attention") };
            let FeedForwardConfig::Moe(experts) = &layer.feed_forward else { unreachable!("experts") };
            let compression = mixer.compression.as_ref();
            let rate = compression.map_or(0, |it| it.rate);
            (
                rate,
                compression.is_some_and(|it| it.indexer.is_some()),
                layer.rope.theta,
                experts.router.by_token.is_some(),
            )
        };
        decoder.layers.iter().map(of).collect()
    }

    #[test]
    fn configs_as_published_and_as_transformers_writes_them() {
        let [heavy, sparse] = [(128, false, 1.6e5), (4, true, 1.6e5)]
            .map(|(rate, indexed, theta)| move |by_token: bool| (rate, indexed, theta, by_token));
        assert_eq!(layers(json!({})), [heavy(true), heavy(true), heavy(true), sparse(false)]);
        let published = json!({"compress_ratios": [0, 0, 4, 128, 0], "num_hash_layers": 1, "qk_rope_head_dim": 64,
            "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}});
        let main = |by_token| (0, false, 1e4, by_token);
        let expected = [main(true), main(false), sparse(false), heavy(false)];
        assert_eq!(layers(published.clone()), expected);
        let [kinds, mlps] = [
            json!([
                "sliding_attention",
                "sliding_attention",
                "compressed_sparse_attention",
                "heavily_compressed_attention"
            ]),
            json!(["hash_moe", "moe", "moe", "moe"]),
        ];
        let yarn = json!({"rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 65536,
            "rope_theta": 1.6e5, "partial_rotary_factor": 0.125, "attention_factor": 1.0});
        let plain = json!({"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.125});
        let written = json!({"layer_types": kinds, "mlp_layer_types": mlps,
            "rope_parameters": {"main": plain, "compress": yarn}});
        assert_eq!(read(published), read(written));
    }

    #[test]
    fn files_have_the_published_names() {
        let mut decoder = read(json!({"compress_ratios": [0, 4, 128, 0], "num_hash_layers": 1})).unwrap();
        assert!(decoder.enable_mtp(1, 0.3));
        let specs = Decoder::specs(&decoder);
        let names: Vec<&str> = specs.iter().flat_map(|spec| &spec.pieces).map(|piece| piece.name.as_str()).collect();
        for name in [
            "embed.weight",
            "head.weight",
            "norm.weight",
            "hc_head_fn",
            "hc_head_base",
            "hc_head_scale",
            "layers.0.hc_attn_fn",
            "layers.0.hc_ffn_scale",
            "layers.0.attn_norm.weight",
            "layers.0.ffn_norm.weight",
            "layers.0.attn.wq_a.weight",
            "layers.0.attn.q_norm.weight",
            "layers.0.attn.wq_b.weight",
            "layers.0.attn.wkv.weight",
            "layers.0.attn.kv_norm.weight",
            "layers.0.attn.wo_a.weight",
            "layers.0.attn.wo_b.weight",
            "layers.0.attn.attn_sink",
            "layers.0.ffn.gate.weight",
            "layers.0.ffn.gate.tid2eid",
            "layers.1.ffn.gate.bias",
            "layers.1.attn.compressor.wkv.weight",
            "layers.1.attn.compressor.wgate.weight",
            "layers.1.attn.compressor.ape",
            "layers.1.attn.compressor.norm.weight",
            "layers.1.attn.indexer.wq_b.weight",
            "layers.1.attn.indexer.weights_proj.weight",
            "layers.1.attn.indexer.compressor.wkv.weight",
            "layers.1.attn.indexer.compressor.wgate.weight",
            "layers.1.attn.indexer.compressor.ape",
            "layers.1.attn.indexer.compressor.norm.weight",
            "layers.2.attn.compressor.ape",
            "layers.3.ffn.experts.7.w1.weight",
            "layers.3.ffn.experts.7.w2.weight",
            "layers.3.ffn.experts.7.w3.weight",
            "layers.3.ffn.shared_experts.w1.weight",
            "layers.3.ffn.shared_experts.w2.weight",
            "layers.3.ffn.shared_experts.w3.weight",
            "mtp.0.e_proj.weight",
            "mtp.0.h_proj.weight",
            "mtp.0.enorm.weight",
            "mtp.0.norm.weight",
            "mtp.0.hc_head_fn",
            "mtp.0.hc_attn_base",
            "mtp.0.attn.wq_a.weight",
            "mtp.0.ffn.gate.bias",
            "mtp.0.ffn.experts.0.w2.weight",
        ] {
            assert!(names.contains(&name), "{name} is not among {names:#?}");
        }
        let known = ["weights_proj", ".e_proj", ".h_proj"];
        let is_known = |name: &&str| !name.contains("_proj") || known.iter().any(|known| name.contains(known));
        assert!(names.iter().all(is_known), "{names:?}");
        assert!(specs.iter().any(|spec| spec.name == "model.layers.1.self_attn.compressor.indexer.q_b_proj.weight"));
    }

    #[test]
    fn what_is_not_implemented_is_refused_by_name() {
        for (changes, expected) in [
            (json!({"compress_ratios": [0, 4, 8, 0]}), "compress_ratios is [0,4,8,0]; supported: 0, 4, 128"),
            (json!({"compress_ratios": [0, 4]}), "compress_ratios is a list of 2, but num_hidden_layers is 4"),
            (json!({"layer_types": ["full_attention"]}), "supported: \"sliding_attention\""),
            (json!({"mlp_layer_types": ["dense"]}), "mlp_layer_types is [\"dense\"]"),
            (json!({"num_key_value_heads": 2}), "num_key_value_heads is 2"),
            (json!({"n_shared_experts": 2}), "n_shared_experts is 2"),
            (json!({"attention_dropout": 0.1}), "attention_dropout is 0.1, but dropout is not computed here"),
            (json!({"scoring_func": "softmax"}), "scoring_func is \"softmax\""),
            (json!({"o_groups": 3}), "o_groups is 3, but must divide the 2048 channels of all heads"),
            (
                json!({"index_head_dim": 32}),
                "index_head_dim is 32, but must be at least the 64 channels with rotary embeddings",
            ),
            (json!({"hc_mult": 65}), "hc_mult is 65, but must be at most 64"),
            (json!({"swiglu_limit": 0}), "swiglu_limit is 0, but must be above 0"),
            (json!({"partial_rotary_factor": 1.5}), "partial_rotary_factor is 1.5"),
            (json!({"num_experts_per_tok": 9}), "num_experts_per_tok is 9, but there are only 8 experts"),
        ] {
            let message = read(changes).unwrap_err();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
        let decoder = read(json!({})).unwrap();
        let error = decoder.check_context(2, ContextAttention::Ring).unwrap_err().to_string();
        assert!(error.contains("compressed attention"), "{error}");
        let tower = json!({"model_type": "loongforge_vlm", "foundation": config(json!({})),
            "text_encoder": config(json!({})), "text_token_id": 5});
        let message = ModelConfig::from_hf(&tower).unwrap_err().to_string();
        assert!(message.contains("it is only supported as a language model on its own"), "{message}");
    }
}
