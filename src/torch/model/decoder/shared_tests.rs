//! Prompts that are computed once for all their answers: the same loss and gradients as with a prompt for each.

use std::rc::Rc;

use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::config::DecoderConfig;
use crate::model::objective::{Answers, Pairs, Preference, PreferenceLoss};
use crate::model::{Decoder, ModelConfig, Targets, TextBatch, TextOptions};
use crate::nn::Mask;
use crate::params::ParamStore;
use crate::tape::{Execution, Policy};

/// Prompt, chosen and rejected answer of each pair.
const PAIRS: [[&[i64]; 3]; 2] = [[&[1, 2, 3, 4, 5, 6], &[7, 8, 9], &[7, 10]], [&[11, 12, 13], &[14], &[15, 16, 17]]];

/// Returns the row of both pairs and its labels: an answer's tokens, and an end behind it.
fn row() -> (TextBatch, Vec<i64>) {
    let (mut ids, mut labels, mut positions, mut ends) = (Vec::new(), Vec::new(), Vec::new(), vec![0]);
    for [prompt, chosen, rejected] in PAIRS {
        for answer in [chosen, rejected] {
            ids.extend([prompt, answer].concat());
            labels.extend(vec![-100; prompt.len() - 1]);
            labels.extend([answer, &[0]].concat());
            positions.extend((0..ids.len() - ends[ends.len() - 1]).map(|at| at as f32));
            ends.push(ids.len());
        }
    }
    let batch = TextBatch {
        input_ids: Tensor::from_slice(&ids),
        position_ids: Tensor::from_slice(&positions),
        cu_seqlens: ends,
        mask: Mask::Causal,
        feature_rows: Vec::new(),
        row: None,
        past: None,
        shared: None,
    };
    (batch, labels)
}

/// Returns the loss, measures and gradient of the row.
fn step(config: &DecoderConfig, batch: &TextBatch, labels: Vec<i64>) -> (f64, Tensor, Tensor) {
    let params = Rc::new(ParamStore::new(Decoder::specs(config), Kind::Float, Device::Cpu));
    params.init_random(5);
    let loss = PreferenceLoss::Orpo;
    let objective = Preference { loss, beta: 0.5, nll_weight: 1.0, group_size: 1 };
    let whole = row();
    let answers = Some(Answers::Pairs(Pairs::new(objective, &whole.0.cu_seqlens, &whole.1)));
    let targets = Targets { labels, weights: None, scale: 0.5, evaluates: false, answers, noise: None };
    let (policy, keep_routing) = (Policy::Keep, false);
    let options = TextOptions { feature_tensors: Vec::new(), train_features: false, policy, keep_routing };
    let made = Decoder::new(config, &params).tape(batch, Some(&targets), &options);
    let (tape, loss, measures) = (Rc::new(made.tape), made.loss.unwrap(), made.measures.unwrap());
    let mut run = Execution::new(tape, params.clone(), vec![]);
    run.forward().unwrap();
    run.seed(loss, Tensor::from(1.0));
    let mut grads = params.new_grad();
    run.backward(Some(&mut grads)).unwrap();
    (run.value(loss).double_value(&[]), run.value(measures).shallow_clone(), grads.flat().shallow_clone())
}

fn config(overrides: serde_json::Value) -> DecoderConfig {
    let mut json = json!({
        "model_type": "qwen3", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8
    });
    json.as_object_mut().unwrap().extend(overrides.as_object().unwrap().clone());
    ModelConfig::from_hf(&json).unwrap().decoder().unwrap().clone()
}

#[test]
fn a_prompt_once_equals_a_prompt_for_each_answer() {
    let config = config(json!({}));
    let (batch, labels) = row();
    let expected = step(&config, &batch, labels.clone());
    let (shared, kept) = batch.sharing(labels, &config);
    // All tokens of the prompts but the last, which predicts an answer's first.
    assert_eq!(kept.len(), row().1.len() - 5 - 2);
    assert_eq!(shared.input_ids.numel(), kept.len());
    let found = step(&config, &shared, kept);
    assert!((found.0 - expected.0).abs() < 1e-6 * expected.0.abs(), "{} {}", found.0, expected.0);
    assert!(found.1.allclose(&expected.1, 1e-6, 1e-7, false));
    assert!(expected.2.norm().double_value(&[]) > 0.1);
    assert!(found.2.allclose(&expected.2, 1e-5, 1e-6, false));
}

#[test]
fn features_and_targets_end_a_common_beginning() {
    let config = config(json!({}));
    let (mut batch, labels) = row();
    // A picture at the third token of the first answer's prompt.
    batch.feature_rows = vec![vec![2]];
    let (shared, kept) = batch.sharing(labels, &config);
    assert_eq!(kept.len(), row().1.len() - 2 - 2);
    assert_eq!(shared.feature_rows, [[2]]);
    let (batch, mut labels) = row();
    labels[0] = 3;
    assert_eq!(batch.sharing(labels, &config).1.len(), row().1.len() - 2);
}

#[test]
fn what_is_not_a_tokens_alone_is_not_shared() {
    let window = json!({"model_type": "mistral", "sliding_window": 4});
    let experts = json!({
        "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8
    });
    for overrides in [window, experts] {
        let (batch, labels) = row();
        let (batch, labels) = batch.sharing(labels, &config(overrides));
        assert!(batch.shared.is_none());
        assert_eq!(labels.len(), row().1.len());
    }
}
