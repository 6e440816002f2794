//! The memory that is predicted before a run against what the run's own allocation record tells.

use crate::fixture::{Fixture, Pictures};
use crate::soak::{self, Cell};
use loongforge::compose::Composition;
use loongforge::core::data::digits::{ModelSize, write_model};
use loongforge::core::data::{Dataset, Processor, ProcessorOptions};
use loongforge::core::message::{ActorId, MemoryReport, SampleMeta};
use loongforge::estimate::memory::{ActorMemory, forecast, show};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;

/// The tolerance, as a share of the bytes that were counted.
const TOLERANCE: f64 = 0.1;

/// A line that is less than this share of the whole is not compared by itself.
const SMALL: f64 = 0.05;

/// Describes how large a model and its packs are.
#[derive(Clone, Copy)]
struct Size {
    width: u64,
    layers: u64,
    vocab: u64,
    tokens: usize,
    pictures: usize,
}

const TINY: Size = Size { width: 64, layers: 3, vocab: 2048, tokens: 256, pictures: 2 };

/// Activations of one pack are more than 200 MB.
const LARGE: Size = Size { width: 256, layers: 6, vocab: 8192, tokens: 2048, pictures: 12 };

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Dense,
    Experts,
    Latent,
    Hybrid,
    Pictures,
}

fn language(kind: Kind, size: Size) -> Value {
    let Size { width, layers, vocab, .. } = size;
    let common = json!({
        "vocab_size": vocab, "hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": width / 4, "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6, "initializer_range": 0.02, "tie_word_embeddings": true, "hidden_act": "silu",
        "max_position_embeddings": 8192,
    });
    let own = match kind {
        Kind::Dense => json!({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}),
        Kind::Experts => json!({
            "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "moe_intermediate_size": width,
            "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": true, "decoder_sparse_step": 1,
        }),
        Kind::Latent => json!({
            "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "moe_intermediate_size": width,
            "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2,
            "norm_topk_prob": true, "routed_scaling_factor": 1.5, "scoring_func": "sigmoid",
            "topk_method": "noaux_tc", "first_k_dense_replace": 1, "num_key_value_heads": 4,
            "q_lora_rank": width / 2, "kv_lora_rank": width / 4, "qk_nope_head_dim": width / 4,
            "qk_rope_head_dim": width / 8, "v_head_dim": width / 4,
        }),
        Kind::Hybrid => json!({
            "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "moe_intermediate_size": width,
            "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": true, "decoder_sparse_step": 1,
            "shared_expert_intermediate_size": width, "full_attention_interval": 2, "linear_conv_kernel_dim": 4,
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": width / 4,
            "linear_value_head_dim": width / 4, "partial_rotary_factor": 0.25,
        }),
        Kind::Pictures => unreachable!("it has a model folder of its own"),
    };
    let (Value::Object(mut config), Value::Object(own)) = (common, own) else { unreachable!("two objects") };
    config.extend(own);
    Value::Object(config)
}

/// Samples of about `size.tokens` tokens each, all of them equally long.
fn fixture_of(kind: Kind, size: Size) -> Fixture {
    let fixture = Fixture::new(if kind == Kind::Pictures { Pictures::All } else { Pictures::None });
    if kind == Kind::Pictures {
        let model = ModelSize {
            hidden_size: size.width as usize,
            intermediate_size: 4 * size.width as usize,
            num_hidden_layers: size.layers as usize,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: size.width as usize / 4,
            mrope_section: [size.width as usize / 16, size.width as usize / 32, size.width as usize / 32],
            vision_depth: size.layers as usize,
            vision_hidden_size: size.width as usize,
            vision_intermediate_size: 4 * size.width as usize,
            vision_num_heads: 4,
            deepstack_visual_indexes: &[0],
            ..loongforge::core::data::digits::MODEL
        };
        write_model(&fixture.path().join("model"), &model).unwrap();
    } else {
        fixture.replace_model(language(kind, size));
    }
    let line = |index: usize| {
        let mut content = vec![json!({"type": "text", "text": "Say it."})];
        let pictures = if kind == Kind::Pictures { size.pictures } else { 0 };
        // Each step has the same ones: the samples of the first step are what is predicted.
        content.extend((0..pictures).map(|at| {
            let picture = format!("images/train/000/{:06}.png", at % 96);
            json!({"type": "image", "image": picture})
        }));
        // All kinds of tokens: routers send equal ones to the same experts, and evenly is what is predicted.
        let letter = |at: usize| char::from(b'!' + ((at * at + 31 * at + index) % 93) as u8);
        let answer: String = (0..size.tokens).map(letter).collect();
        let messages = json!([{"role": "user", "content": content}, {"role": "assistant", "content": answer}]);
        json!({"messages": messages}).to_string()
    };
    let lines: Vec<String> = (0..8).map(line).collect();
    fs::write(fixture.path().join("data/train.jsonl"), lines.join("\n")).unwrap();
    fixture
}

/// Returns the predicted memory, and that which a run of two steps counts.
fn both(fixture: &Fixture, overrides: &[&str]) -> Result<(Vec<ActorMemory>, BTreeMap<ActorId, MemoryReport>), String> {
    let composition = Composition::new(fixture.load(overrides).config).map_err(|error| error.to_string())?;
    let (config, folder) = (composition.config(), composition.folder());
    let options = ProcessorOptions::new(&config.data, &config.train);
    let processor = Processor::open(&folder.path, &folder.json, &options).map_err(|error| error.to_string())?;
    let dataset = Dataset::open(&config.data, processor, config.run.seed).map_err(|error| error.to_string())?;
    let positions = 0..config.train.global_batch_size as u64;
    let samples: Vec<SampleMeta> = positions.map(|at| dataset.sample(at).unwrap().meta).collect();
    let predicted = forecast(config, folder, &samples).map_err(|error| error.to_string())?;
    let steps = fixture.run(overrides, None);
    let counted = &steps.last().ok_or("no step was run")?.timings;
    Ok((predicted, counted.iter().map(|(actor, timings)| (*actor, timings.memory)).collect()))
}

/// Returns how far what was predicted is from what was counted, in percent of that; an error where it is too far.
fn compare(kind: Kind, size: Size, overrides: &[&str]) -> Result<String, String> {
    let fixture = fixture_of(kind, size);
    let max_tokens = format!("data.pack.max_tokens={}", 2 * size.tokens - 1);
    // What is predicted is what the CPU's operators keep.
    let common = ["device=cpu", "train.steps=2", "train.global_batch_size=2", "train.warmup_steps=0", &max_tokens];
    let (predicted, counted) = both(&fixture, &[&common[..], overrides].concat())?;
    let mut figures = Vec::new();
    for ActorMemory { kind, actor, memory } in predicted {
        let counted = counted.get(&actor).ok_or(format!("{actor} has told nothing"))?;
        let lines = |memory: &MemoryReport| {
            let MemoryReport { parameters, gradients, optimizer, activations, buffers, .. } = *memory;
            [parameters, gradients, optimizer, activations, buffers, memory.total()]
        };
        let whole = counted.total() as f64;
        let figure = format!("{kind}: predicted {}, counted {}", show(&memory), show(counted));
        for (predicted, counted) in lines(&memory).into_iter().zip(lines(counted)) {
            let (predicted, counted) = (predicted as f64, counted as f64);
            let is_small = predicted.max(counted) < SMALL * whole;
            if !is_small && (predicted - counted).abs() > TOLERANCE * counted {
                return Err(figure);
            }
        }
        if memory.offloaded != counted.offloaded {
            return Err(figure);
        }
        let percent = 100.0 * (memory.total() as f64 / whole - 1.0);
        figures.push(format!("{figure}, {percent:+.1} %"));
    }
    Ok(figures.join("; "))
}

/// Name and overrides of what a model is run with.
const LAYOUTS: [(&str, &[&str]); 12] = [
    ("one rank", &[]),
    ("bf16", &["train.precision=bf16"]),
    ("tensor parallel 2", &["pools.foundation.tensor_parallel=2"]),
    ("pipeline parallel 2", &["pools.foundation.pipeline_parallel=2"]),
    // Two packs in turns on each replica.
    (
        "expert parallel 2",
        &["pools.foundation.replicas=2", "pools.foundation.expert_parallel=2", "train.global_batch_size=4"],
    ),
    ("zero 0", &["pools.foundation.replicas=2"]),
    ("zero 1", &["pools.foundation.replicas=2", "pools.foundation.zero=1"]),
    ("zero 2", &["pools.foundation.replicas=2", "pools.foundation.zero=2"]),
    ("zero 3", &["pools.foundation.replicas=2", "pools.foundation.zero=3"]),
    ("recompute", &["model.foundation.recompute=all"]),
    ("offload", &["memory.activation_budget.foundation=128MiB", "memory.offload=true", "train.steps=4"]),
    (
        "float8 on the host",
        &[
            "model.foundation.lora={r: 8}",
            "model.foundation.frozen_precision=fp8_e4m3fn",
            "memory.weight_budget.foundation=1000KiB",
        ],
    ),
];

/// The settings that the tests run besides.
const OTHERS: [(&str, &[&str]); 4] = [
    ("nf4", &["model.foundation.lora={r: 8}", "model.foundation.frozen_precision=nf4", "train.precision=bf16"]),
    (
        "moments in bytes",
        &["train.optimizer.type=adamw_8bit", "pools.foundation.replicas=2", "pools.foundation.zero=1"],
    ),
    ("muon", &["train.optimizer.type=muon", "train.precision=bf16"]),
    (
        "state off the device",
        &[
            "train.optimizer.offload={fraction: 0.5}",
            "train.precision=bf16",
            "train.ema=0.9",
            "pools.foundation.replicas=2",
            "pools.foundation.zero=1",
        ],
    ),
];

fn layout(name: &str) -> &'static [&'static str] {
    LAYOUTS.iter().chain(&OTHERS).find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no layout {name}")).1
}

#[test]
fn what_a_run_will_hold_is_predicted() {
    let cells = [
        (Kind::Dense, "one rank"),
        (Kind::Dense, "tensor parallel 2"),
        (Kind::Dense, "zero 3"),
        (Kind::Dense, "offload"),
        (Kind::Dense, "float8 on the host"),
        (Kind::Dense, "nf4"),
        (Kind::Dense, "moments in bytes"),
        (Kind::Dense, "muon"),
        (Kind::Dense, "state off the device"),
        (Kind::Experts, "expert parallel 2"),
        (Kind::Latent, "recompute"),
        (Kind::Hybrid, "zero 1"),
        (Kind::Pictures, "pipeline parallel 2"),
    ];
    let mut found = cells.map(|(kind, name)| (kind, name, compare(kind, TINY, layout(name)))).to_vec();
    // A budget that is reached: rows of experts go to the host and come back, also in the dry run.
    let small = ["memory.activation_budget.foundation=2500KiB", "memory.offload=true", "train.steps=4"];
    found.push((Kind::Experts, "small budget", compare(Kind::Experts, TINY, &small)));
    // More parameters than activations: encoders that come and go sum a copy of their gradients.
    let wide = Size { width: 256, layers: 6, tokens: 128, pictures: 1, ..TINY };
    found.push((Kind::Pictures, "wide encoder", compare(Kind::Pictures, wide, &[])));
    found.iter().for_each(|found| println!("{found:?}"));
    let failed: Vec<_> = found.iter().filter(|(.., found)| found.is_err()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Compares with the smallest budget for weights that the model can have, where that of the layout is too small for it.
fn compare_within(kind: Kind, size: Size, own: &[&str]) -> Result<String, String> {
    let found = compare(kind, size, own);
    let least = found.as_ref().err().and_then(|error| error.split_once("weights need at least ")?.1.split(' ').next());
    match least.map(|bytes| format!("memory.weight_budget.foundation={bytes}B")) {
        Some(budget) => compare(kind, size, &[own, &[budget.as_str()]].concat()),
        None => found,
    }
}

#[test]
#[ignore = "soak"]
fn soak_memory() {
    let kinds = [Kind::Dense, Kind::Experts, Kind::Latent, Kind::Hybrid, Kind::Pictures];
    let cells = kinds.iter().flat_map(|kind| LAYOUTS.map(|(name, _)| (format!("{kind:?}, {name}"), (*kind, name))));
    let cells: Vec<_> = cells.collect();
    soak::run("memory", &cells, |&(kind, name)| {
        let has_experts = matches!(kind, Kind::Experts | Kind::Latent | Kind::Hybrid);
        if name == "expert parallel 2" && !has_experts {
            return Ok(Cell::NotRun("the model has no experts".into()));
        }
        compare_within(kind, LARGE, layout(name)).map(Cell::Passed)
    });
}
