//! Models with experts on several replicas: what routers learn and report is of the pool, not of a replica.

use crate::fixture::{Fixture, Pictures};
use loongforge::core::message::ExpertLoads;
use loongforge::core::schedule::StepSummary;
use loongforge::torch::train::hf::TensorFile;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const RATE: f32 = 0.01;

pub fn qwen3_moe() -> Value {
    json!({
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 264, "hidden_size": 32,
        "intermediate_size": 48, "moe_intermediate_size": 24, "num_experts": 8, "num_experts_per_tok": 2,
        "norm_topk_prob": true, "decoder_sparse_step": 1, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "rope_theta": 10000.0, "initializer_range": 0.05,
        "router_aux_loss_coef": 0.01, "output_router_logits": true, "tie_word_embeddings": true,
    })
}

fn deepseek_v3() -> Value {
    json!({
        "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 264, "hidden_size": 32,
        "intermediate_size": 48, "moe_intermediate_size": 24, "n_routed_experts": 8, "n_shared_experts": 1,
        "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2, "norm_topk_prob": true,
        "routed_scaling_factor": 1.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
        "first_k_dense_replace": 1, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
        "q_lora_rank": 16, "kv_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
        "rope_theta": 10000.0, "initializer_range": 0.05,
    })
}

fn fixture_of(config: Value) -> Fixture {
    let fixture = Fixture::new(Pictures::None);
    fixture.replace_model(config);
    fixture
}

/// Returns every tensor of a run's last checkpoint.
fn weights(fixture: &Fixture, run: &str) -> BTreeMap<String, Vec<f64>> {
    let file = TensorFile::open(&fixture.path().join(run).join("step-00000020/model.safetensors")).unwrap();
    let read = |name: &String| {
        let tensor = file.read(name).unwrap().unwrap().flatten(0, -1).to_kind(tch::Kind::Double);
        (name.clone(), Vec::try_from(tensor).unwrap())
    };
    file.tensors().keys().map(read).collect()
}

/// Steps, and weights by name.
type Trained = (Vec<StepSummary>, BTreeMap<String, Vec<f64>>);

/// Returns the run on one replica, and on two with three readers: steps and weights of each.
fn one_and_two(fixture: &Fixture, overrides: &[&str]) -> [Trained; 2] {
    let both: [(&str, &[&str]); 2] = [("one", &[]), ("two", &["pools.foundation.replicas=2", "pools.data.replicas=3"])];
    both.map(|(name, replicas)| {
        let dir = format!("checkpoint.dir={}", fixture.path().join(name).display());
        // A sample a pack, so that both runs have the same packs: a load-balancing loss is of a pack.
        let common = ["train.micro_batch_size=1", "train.lr=1e-3", &dir];
        let steps = fixture.run(&[&common[..], replicas, overrides].concat(), None);
        (steps, weights(fixture, name))
    })
}

/// Returns the part of the assignments that differ.
fn moved(left: &[ExpertLoads], right: &[ExpertLoads]) -> f64 {
    assert_eq!(left.len(), right.len());
    let (mut moved, mut all) = (0, 0);
    for (left, right) in left.iter().zip(right) {
        assert_eq!((&left.layer, left.tokens.len()), (&right.layer, right.tokens.len()));
        assert_eq!(left.tokens.iter().sum::<u64>(), right.tokens.iter().sum::<u64>(), "{}", left.layer);
        moved += left.tokens.iter().zip(&right.tokens).map(|(left, right)| left.abs_diff(*right)).sum::<u64>();
        all += left.tokens.iter().sum::<u64>();
    }
    moved as f64 / all as f64
}

fn assert_equal_runs(fixture: &Fixture, overrides: &[&str]) -> [Vec<StepSummary>; 2] {
    let [(one, of_one), (two, of_two)] = one_and_two(fixture, overrides);
    assert!(one[19].loss < 0.8 * one[0].loss, "{one:?}");
    for (left, right) in one.iter().zip(&two) {
        let close = |left: f64, right: f64| (left - right).abs() < 1e-4 * left.abs();
        assert!(close(left.loss, right.loss) && close(left.grad_norm, right.grad_norm), "{left:?} and {right:?}");
        let [left, right] = [left, right].map(|step| step.routing.as_ref().expect("a model with experts"));
        // Rounding may decide for another expert where two nearly tie.
        assert!(moved(&left.loads, &right.loads) < 0.01, "{left:?} and {right:?}");
        for (left, right) in [(left.aux_loss, right.aux_loss), (left.z_loss, right.z_loss)] {
            assert_eq!(left.is_some(), right.is_some());
            assert!(left.zip(right).is_none_or(|(left, right)| close(left, right)), "{left:?} and {right:?}");
        }
    }
    assert_eq!(one[0].routing.as_ref().unwrap().loads, two[0].routing.as_ref().unwrap().loads);
    assert_eq!(of_one.len(), of_two.len());
    for (name, values) in of_one.iter().filter(|(name, _)| !name.ends_with("e_score_correction_bias")) {
        let largest = values.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
        let differences = values.iter().zip(&of_two[name]).map(|(left, right)| (left - right).abs());
        // Not `max`, which drops a NaN.
        let largest_difference = differences.max_by(f64::total_cmp).unwrap_or_default();
        assert!(largest_difference < 1e-3 * largest, "{name}: {largest_difference} of {largest}");
    }
    [one, two]
}

#[test]
fn two_replicas_of_softmax_routers_are_one() {
    let fixture = fixture_of(qwen3_moe());
    let overrides = ["model.moe.aux_loss_coef=0.02", "model.moe.z_loss_coef=0.001"];
    let [one, _] = assert_equal_runs(&fixture, &overrides);
    let routing = one[0].routing.as_ref().unwrap();
    assert!(routing.aux_loss.unwrap() >= 2.0 && routing.z_loss.unwrap() > 0.0, "{routing:?}");
    // More replicas than packs that the samples fill: those without work take part in every sum.
    let plain = ["train.lr=1e-3", "model.moe.aux_loss_coef=0", "train.steps=6"];
    let four = fixture.losses(&[&plain[..], &["pools.foundation.replicas=4"]].concat());
    let plain = fixture.losses(&plain);
    assert!(plain.iter().zip(&four).all(|(left, right)| (left - right).abs() < 1e-4 * left), "{plain:?} {four:?}");
}

#[test]
fn balancing_biases_follow_the_loads_of_the_whole_pool() {
    let fixture = fixture_of(deepseek_v3());
    let rate = format!("model.moe.bias_update_rate={RATE}");
    let [_, two] = assert_equal_runs(&fixture, &[&rate]);
    let bias = |layer: usize| format!("model.layers.{layer}.mlp.gate.e_score_correction_bias");
    let weights = weights(&fixture, "two");
    for (layer, place) in [(1, 0), (2, 1)] {
        // What the reported loads of the pool come to, step after step.
        let mut expected = vec![0f32; 8];
        for step in &two {
            let loads = &step.routing.as_ref().unwrap().loads[place];
            let sum: u64 = loads.tokens.iter().sum();
            for (bias, load) in expected.iter_mut().zip(&loads.tokens) {
                *bias += RATE * (sum.cmp(&(load * 8)) as i32 as f32);
            }
        }
        let found = &weights[&bias(layer)];
        assert!(found.iter().any(|bias| bias.abs() > RATE as f64), "{found:?}");
        let differences = found.iter().zip(&expected).map(|(found, expected)| (found - *expected as f64).abs());
        let largest_difference = differences.max_by(f64::total_cmp).unwrap_or_default();
        assert!(largest_difference < 1e-6, "layer {layer}: {found:?} and {expected:?}");
    }
}
