//! Runs with label smoothing, weights of samples, noise on embeddings and LoRA+, against what torch, transformers and PEFT make of the
//! same samples and weights (`tests/oracle/training_methods.py`), and against each other.

use crate::resume::{hashes, run_and_evaluate_in, run_in};
use loongforge::core::schedule::StepSummary;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tch::{Kind, Tensor};
use tempfile::TempDir;

/// The tolerance of losses, gradient norms and norms of weights in five steps; both sides round in another order.
const TOLERANCE: f64 = 1e-4;
const SMOOTHING: &str = "train.label_smoothing=0.2";
const SQUARE: &str = "train.loss_weighting=square";
const NEFTUNE: &str = "train.neftune_alpha=5";

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/training_methods")
}

const RUN: &str = "
run: { name: methods, dir: ROOT/run, deterministic: true, seed: 7 }
model: { load: DATA/../preference/model }
pools: { foundation: { threads: 1 } }
data: { train: [{ path: DATA/answers.jsonl }], pack: { max_tokens: 512 }, shuffle: false }
train:
  { steps: 5, global_batch_size: 4, lr: 3e-3, schedule: constant, clip_grad: 0, optimizer: { betas: [0.9, 0.95],
    weight_decay: 0 } }
checkpoint: { every_steps: 1, keep_last: 9 }
log: { tensorboard: false }
";

fn run_folder() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let text = RUN.replace("DATA", &data().display().to_string()).replace("ROOT", &dir.path().display().to_string());
    fs::write(dir.path().join("run.yaml"), text).unwrap();
    dir
}

/// Returns the adapter that the oracle begins with, at a quarter of the rate.
fn adapter() -> Vec<String> {
    vec![format!("model.foundation.lora.adapter={}", data().join("adapter").display()), "train.lr=7.5e-4".to_owned()]
}

fn plus(mut own: Vec<String>) -> Vec<String> {
    own.push("model.foundation.lora.loraplus_lr_ratio=16".to_owned());
    own
}

fn steps(dir: &TempDir, to: &str, own: &[String], from: Option<&str>) -> Vec<StepSummary> {
    run_in(dir.path(), to, &own.iter().map(String::as_str).collect::<Vec<_>>(), from)
}

#[test]
fn five_steps_are_those_of_torch_transformers_and_peft() {
    let expected: Value = serde_json::from_slice(&fs::read(data().join("expected.json")).unwrap()).unwrap();
    let methods = [
        ("smoothing", vec![SMOOTHING.to_owned()]),
        ("neftune", vec![NEFTUNE.to_owned()]),
        ("loraplus", plus(adapter())),
        ("sample", vec!["train.loss_weighting=sample".to_owned()]),
        ("square", vec![SQUARE.to_owned()]),
    ];
    for (method, own) in methods {
        let (dir, expected) = (run_folder(), &expected["methods"][method]);
        let found = steps(&dir, "checkpoints", &own, None);
        assert_eq!(found.len(), 5);
        for (step, summary) in found.iter().enumerate() {
            for (name, found) in [("loss", summary.loss), ("grad_norm", summary.grad_norm)] {
                let expected = expected["steps"][step][name].as_f64().unwrap();
                let near = (found - expected).abs() <= TOLERANCE * expected;
                assert!(near, "{method}, step {step}: {name} is {found}, and {expected} by the reference");
            }
        }
        let file = if method.starts_with("lora") { "adapter_model.safetensors" } else { "model.safetensors" };
        let file = dir.path().join("checkpoints/step-00000005").join(file);
        let trained: BTreeMap<String, Tensor> = Tensor::read_safetensors(file).unwrap().into_iter().collect();
        let norms: BTreeMap<_, _> = expected["weight_norms"].as_object().unwrap().into_iter().collect();
        assert!(trained.keys().eq(norms.keys().copied()), "{method}: {:?}", trained.keys());
        for (name, expected) in norms {
            let found = trained[name.as_str()].to_kind(Kind::Double).norm().double_value(&[]);
            let expected = expected.as_f64().unwrap();
            assert!(
                (found - expected).abs() <= TOLERANCE * expected,
                "{method}: {name} is {found}, expected {expected}"
            );
        }
    }
}

/// Tokens, vocabulary, layers and optimizer state in parts, and packs of other samples; all methods together.
#[test]
fn layouts_and_packs_learn_what_one_process_learns() {
    let dir = run_folder();
    let all = plus(adapter());
    let more = [SMOOTHING, NEFTUNE, SQUARE, "train.steps=2"];
    let all: Vec<&str> = all.iter().map(String::as_str).chain(more).collect();
    let one = run_in(dir.path(), "one", &all, None);
    for own in [
        &["train.micro_batch_size=1"][..],
        &["pools.foundation.replicas=2", "pools.foundation.zero=3"],
        &["pools.foundation.tensor_parallel=2", "pools.foundation.sequence_parallel=true"],
        &["pools.foundation.context_parallel=2"],
        &["pools.foundation.pipeline_parallel=2", "model.foundation.recompute=all"],
    ] {
        let found = run_in(dir.path(), "others", &[&all[..], own].concat(), None);
        assert_eq!(found.len(), one.len());
        for (found, expected) in found.iter().zip(&one) {
            for (found, expected) in [(found.loss, expected.loss), (found.grad_norm, expected.grad_norm)] {
                assert!((found - expected).abs() <= TOLERANCE * expected, "{own:?}: {found}, expected {expected}");
            }
        }
        fs::remove_dir_all(dir.path().join("others")).unwrap();
    }
}

fn tensors(file: &Path) -> BTreeMap<String, Tensor> {
    let all = Tensor::read_safetensors(file).unwrap().into_iter();
    all.map(|(name, tensor)| (name, tensor.to_kind(Kind::Float))).collect()
}

/// Returns the adapters after a step.
fn after_a_step(dir: &TempDir, own: &[String], precision: &str) -> BTreeMap<String, Tensor> {
    let own = [own, &["train.steps=1".to_owned(), format!("train.precision={precision}")]].concat();
    steps(dir, precision, &own, None);
    tensors(&dir.path().join(precision).join("step-00000001/adapter_model.safetensors"))
}

/// Compares tensors up to a step of less than 1e-3 and roundings to bf16.
fn expect_near(found: &BTreeMap<String, Tensor>, expected: &BTreeMap<String, Tensor>) {
    assert!(!found.is_empty() && found.keys().eq(expected.keys()), "{:?}", found.keys());
    let largest = |x: &Tensor| x.abs().max().double_value(&[]);
    for (name, expected) in expected {
        let error = largest(&(&found[name] - expected));
        assert!(error < 2e-3 + largest(expected) / 64.0, "{name} is off by {error} of {}", largest(expected));
    }
}

/// Steps in bf16 change float32 copies of what is trained.
#[test]
fn bf16_goes_on_from_adapters_and_from_the_norms_of_dora() {
    let dir = run_folder();
    let begun = tensors(&data().join("adapter/adapter_model.safetensors"));
    expect_near(&after_a_step(&dir, &adapter(), "bf16"), &begun);
    let dir = run_folder();
    let dora = ["model.foundation.lora={r: 4, alpha: 8, use_dora: true}", "train.lr=7.5e-4"].map(str::to_owned);
    let [found, expected] = ["bf16", "float32"].map(|precision| after_a_step(&dir, &dora, precision));
    expect_near(&found, &expected);
}

#[test]
fn a_resumed_run_has_the_same_bits() {
    let dir = run_folder();
    for (number, mut own) in [vec![], plus(adapter())].into_iter().enumerate() {
        own.extend([SMOOTHING, NEFTUNE].map(str::to_owned));
        let [whole, rest] = ["whole", "rest"].map(|name| format!("{name}{number}"));
        let one = steps(&dir, &whole, &own, None);
        let resumed = steps(&dir, &rest, &own, Some(&whole));
        let bits = |step: &StepSummary| (step.step, step.loss.to_bits(), step.grad_norm.to_bits());
        assert_eq!((resumed.len(), bits(&resumed[0])), (1, bits(&one[4])));
        let [whole, rest] = [whole, rest].map(|to| hashes(&dir.path().join(to).join("step-00000005")));
        assert_eq!(whole, rest);
    }
}

#[test]
fn held_out_losses_are_of_the_labels_without_noise() {
    let dir = run_folder();
    let held_out = format!("eval.path={}", data().join("answers.jsonl").display());
    // So small a rate moves no weight.
    let still = [held_out.as_str(), "eval.every_steps=1", "train.steps=1", "train.lr=1e-30"];
    let run = |own: &[&str]| {
        let (steps, evaluations) = run_and_evaluate_in(dir.path(), "one", &[&still[..], own].concat(), None);
        fs::remove_dir_all(dir.path().join("one")).unwrap();
        (steps[0].loss, evaluations[0].sets[0].loss())
    };
    let (plain, expected) = run(&[]);
    for own in [&[NEFTUNE][..], &[SMOOTHING, "pools.foundation.tensor_parallel=2"]] {
        let (trained, held_out) = run(own);
        assert!((trained - plain).abs() > 1e-3, "{own:?} is trained with");
        assert!((held_out - expected).abs() < 1e-6, "{own:?}: {held_out}, expected {expected}");
    }
}
