//! Runs that learn from pairs of answers, against what TRL's trainers make of the same pairs and weights
//! (`tests/oracle/preference.py`), and against each other.

use crate::answers::{TOLERANCE, folder_with, is_near};
use crate::resume::{hashes, run_and_evaluate_in, run_in};
use loongforge::core::message::PairReport;
use loongforge::core::observe::PairMetrics;
use loongforge::core::schedule::StepSummary;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tch::{Kind, Tensor};
use tempfile::TempDir;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/preference")
}

/// Makes a folder with a run of the committed pairs.
fn run_folder() -> TempDir {
    folder_with(RUN, &data())
}

const RUN: &str = "
run: { name: pairs, dir: ROOT/run, deterministic: true }
model: { load: DATA/model }
pools: { reference: { threads: 1 }, foundation: { threads: 1 } }
data: { train: [{ path: DATA/pairs.jsonl }], pack: { max_tokens: 512 }, shuffle: false }
train:
  { steps: 5, global_batch_size: 4, lr: 3e-3, schedule: constant, clip_grad: 0, optimizer: { betas: [0.9, 0.95],
    weight_decay: 0 }, preference: { beta: 0.3 } }
checkpoint: { every_steps: 1, keep_last: 9 }
log: { tensorboard: false }
";

fn overrides(loss: &str) -> Vec<&str> {
    match loss {
        "sigmoid_nll" => vec!["train.preference.nll_weight=0.5"],
        "robust" => vec!["train.preference.loss=robust", "train.preference.label_smoothing=0.1"],
        "simpo" => vec!["train.preference.loss=simpo", "train.preference.gamma=0.5"],
        "hinge" => vec!["train.preference.loss=hinge"],
        "ipo" => vec!["train.preference.loss=ipo"],
        "apo_zero" => vec!["train.preference.loss=apo_zero"],
        "apo_down" => vec!["train.preference.loss=apo_down"],
        "orpo" => vec!["train.preference.loss=orpo"],
        _ => Vec::new(),
    }
}

fn means(summary: &StepSummary) -> PairMetrics {
    PairMetrics::of(&summary.pairs.expect("pairs are reported")).expect("pairs that count")
}

/// Checks the figures, and names those that differ.
fn expect_close(place: &str, found: &[(&str, f64)], expected: &Value) {
    for (name, found) in found {
        let Some(expected) = expected[*name].as_f64() else { continue };
        assert!(is_near(*found, expected), "{place}: {name} is {found}, and {expected} by the reference");
    }
}

#[test]
fn pairs_are_learned_as_trl_learns_them() {
    let expected: Value = serde_json::from_slice(&fs::read(data().join("expected.json")).unwrap()).unwrap();
    let losses = expected["losses"].as_object().unwrap();
    assert_eq!(losses.len(), 9);
    for (loss, expected) in losses {
        let dir = run_folder();
        let steps = run_in(dir.path(), "checkpoints", &overrides(loss), None);
        assert_eq!(steps.len(), 5);
        for (step, summary) in steps.iter().enumerate() {
            let pairs = means(summary);
            let mut found = vec![
                ("loss", summary.loss),
                ("grad_norm", summary.grad_norm),
                ("chosen_reward", pairs.chosen_reward),
                ("rejected_reward", pairs.rejected_reward),
                ("accuracy", pairs.accuracy),
            ];
            // SimPO's trainer reports means over tokens.
            if loss != "simpo" {
                found.extend([("chosen_logp", pairs.chosen_logp), ("rejected_logp", pairs.rejected_logp)]);
            }
            expect_close(&format!("{loss}, step {step}"), &found, &expected["steps"][step]);
        }
        let file = dir.path().join("checkpoints/step-00000005/model.safetensors");
        let trained: BTreeMap<String, Tensor> = Tensor::read_safetensors(file).unwrap().into_iter().collect();
        let norms: BTreeMap<_, _> = expected["weight_norms"].as_object().unwrap().into_iter().collect();
        assert!(trained.keys().eq(norms.keys().copied()), "a reference model is not saved: {:?}", trained.keys());
        for (name, expected) in norms {
            let found = trained[name.as_str()].to_kind(Kind::Double).norm().double_value(&[]);
            let expected = expected.as_f64().unwrap();
            assert!((found - expected).abs() <= TOLERANCE * expected, "{loss}: {name} is {found}, expected {expected}");
        }
    }
}

#[test]
fn references_of_any_number_and_resumed_runs_have_the_same_bits() {
    let dir = run_folder();
    let one = run_in(dir.path(), "one", &[], None);
    // Where they are kept, answers are computed one by one, which is another rounding.
    let kept = run_in(dir.path(), "kept", &["pools.reference.cache=64MiB"], None);
    for (own, (whole, to)) in [
        (&["pools.reference.replicas=3"][..], (&one, "one")),
        (&["pools.reference.replicas=2", "pools.reference.cache=64MiB"], (&kept, "kept")),
        // The pool that holds all towers without one of their own.
        (&["~pools.reference"], (&one, "one")),
    ] {
        let others = run_in(dir.path(), "others", own, None);
        let bits = |steps: &[StepSummary]| {
            let of = |step: &StepSummary| {
                let sums = step.pairs.unwrap_or_default().sums();
                (step.loss.to_bits(), step.grad_norm.to_bits(), sums.map(f64::to_bits))
            };
            steps.iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(bits(&others), bits(whole), "{own:?}");
        let [first, second] = [to, "others"].map(|to| hashes(&dir.path().join(to).join("step-00000005")));
        assert_eq!(first, second, "{own:?}");
        fs::remove_dir_all(dir.path().join("others")).unwrap();
    }
    let resumed = run_in(dir.path(), "resumed", &[], Some("one"));
    assert_eq!((resumed.len(), resumed[0].loss.to_bits()), (1, one[4].loss.to_bits()));
    assert_eq!(resumed[0].pairs, one[4].pairs);
    assert_eq!(
        hashes(&dir.path().join("resumed/step-00000005")),
        hashes(&dir.path().join("one/step-00000005")),
        "the reference is the model that the run began with"
    );
}

#[test]
fn layouts_learn_alike() {
    let dir = run_folder();
    let one = run_in(dir.path(), "one", &[], None);
    for own in [
        &["pools.foundation.replicas=2"][..],
        &["pools.foundation.replicas=2", "pools.foundation.zero=3"],
        &["pools.foundation.tensor_parallel=2", "pools.foundation.sequence_parallel=true"],
        &["pools.reference.tensor_parallel=2"],
        &["~pools.reference", "+pools.placement=colocated"],
        &["train.micro_batch_size=1"],
    ] {
        let others = run_in(dir.path(), "others", own, None);
        for (found, expected) in others.iter().zip(&one) {
            let far = |found: f64, expected: f64| (found - expected).abs() > TOLERANCE * expected.abs().max(1.0);
            let pairs = [found, expected].map(|summary| summary.pairs.unwrap_or_default().sums());
            let sums = pairs[0].iter().zip(pairs[1]).enumerate();
            // In the first step all rewards are 0 but for rounding, which decides who is ahead.
            let is_told = |at: usize| at != 1 || found.step.0 > 0;
            let is_far = sums.into_iter().any(|(at, (found, expected))| is_told(at) && far(*found, expected));
            let norms = far(found.grad_norm, expected.grad_norm) || far(found.loss, expected.loss);
            assert!(!norms && !is_far, "{own:?}: {found:?}, expected {expected:?}");
        }
        fs::remove_dir_all(dir.path().join("others")).unwrap();
    }
    let stages = ["train.preference.loss=orpo", "~pools.reference", "pools.foundation.pipeline_parallel=2"];
    let [one, two] = [&stages[..2], &stages[..]].map(|own| {
        let steps = run_in(dir.path(), "stages", own, None);
        fs::remove_dir_all(dir.path().join("stages")).unwrap();
        steps.iter().map(|step| step.loss).collect::<Vec<_>>()
    });
    assert!(one.iter().zip(&two).all(|(one, two)| (one - two).abs() < TOLERANCE), "{one:?} {two:?}");
}

#[test]
fn adapters_begin_at_the_reference_and_held_out_pairs_are_judged() {
    let dir = run_folder();
    let pairs = data().join("pairs.jsonl").display().to_string();
    let held = format!("eval.path={pairs}");
    let own = ["model.foundation.lora.r=4", "model.foundation.lora.alpha=8", &held, "eval.every_steps=2"];
    let (steps, evaluations) = run_and_evaluate_in(dir.path(), "lora", &own, None);
    let PairReport { pairs, chosen_reward, rejected_reward, .. } = steps[0].pairs.unwrap();
    assert_eq!(pairs, 4.0);
    assert!((steps[0].loss - std::f64::consts::LN_2).abs() < 1e-6, "an adapter begins as nothing");
    assert!([chosen_reward, rejected_reward].iter().all(|reward| reward.abs() < 1e-5));
    assert!(dir.path().join("lora/step-00000005/adapter_model.safetensors").is_file());
    let found = &evaluations.last().expect("an evaluation").sets[0].found;
    assert_eq!(found.num_targets, 20, "each pair counts once");
    assert!(found.num_correct.is_some_and(|correct| correct > 0), "{found:?}");
}
