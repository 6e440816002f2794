//! Runs that learn from answers that are good or bad, against TRL's KTOTrainer on the same answers and weights
//! (`tests/oracle/preference.py kto`), and against each other.

use crate::answers::{TOLERANCE, folder_with, found, is_near};
use crate::resume::{hashes, run_and_evaluate_in, run_in};
use loongforge::core::schedule::StepSummary;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tch::{Kind, Tensor};
use tempfile::TempDir;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kto")
}

const RUN: &str = "
run: { name: answers, dir: ROOT/run, deterministic: true }
model: { load: DATA/../preference/model }
pools: { reference: { threads: 1 }, foundation: { threads: 1 } }
data: { train: [{ path: DATA/answers.jsonl }], pack: { max_tokens: 1024 }, shuffle: false }
train:
  { steps: 5, global_batch_size: 2, lr: 3e-3, schedule: constant, clip_grad: 0, optimizer: { betas: [0.9, 0.95],
    weight_decay: 0 }, preference: { loss: kto, beta: 0.3, group_size: 4 } }
checkpoint: { every_steps: 1, keep_last: 9 }
log: { tensorboard: false }
";
const WEIGHTS: [&str; 2] = ["train.preference.desirable_weight=1.5", "train.preference.undesirable_weight=0.75"];

fn run_folder() -> TempDir {
    folder_with(RUN, &data())
}

#[test]
fn answers_are_learned_as_trl_learns_them() {
    let expected: Value = serde_json::from_slice(&fs::read(data().join("expected.json")).unwrap()).unwrap();
    for (name, own) in [("even", &[][..]), ("weighted", &WEIGHTS[..])] {
        let (dir, expected) = (run_folder(), &expected["losses"][name]);
        let steps = run_in(dir.path(), "checkpoints", own, None);
        assert_eq!(steps.len(), 5);
        for (step, summary) in steps.iter().enumerate() {
            assert_eq!(summary.pairs.unwrap().pairs, 8.0, "answers, not groups");
            for (what, found) in found(summary) {
                let expected = expected["steps"][step][what].as_f64().unwrap();
                assert!(
                    is_near(found, expected),
                    "{name}, step {step}: {what} is {found}, and {expected} by the reference"
                );
            }
        }
        let file = dir.path().join("checkpoints/step-00000005/model.safetensors");
        let trained: BTreeMap<String, Tensor> = Tensor::read_safetensors(file).unwrap().into_iter().collect();
        let norms: BTreeMap<_, _> = expected["weight_norms"].as_object().unwrap().into_iter().collect();
        assert!(trained.keys().eq(norms.keys().copied()), "a reference model is not saved: {:?}", trained.keys());
        for (weight, expected) in norms {
            let found = trained[weight.as_str()].to_kind(Kind::Double).norm().double_value(&[]);
            let expected = expected.as_f64().unwrap();
            assert!(
                (found - expected).abs() <= TOLERANCE * expected,
                "{name}: {weight} is {found}, expected {expected}"
            );
        }
    }
}

#[test]
fn no_layout_and_no_pack_changes_what_a_group_learns() {
    let dir = run_folder();
    let two = [&WEIGHTS[..], &["train.steps=2"]].concat();
    let one = run_in(dir.path(), "one", &two, None);
    for own in [
        &["train.micro_batch_size=1"][..],
        &["pools.foundation.replicas=2", "pools.reference.replicas=2", "pools.data.replicas=2"],
        &["pools.foundation.tensor_parallel=2", "pools.reference.cache=64MiB"],
    ] {
        let others = run_in(dir.path(), "others", &[&two[..], own].concat(), None);
        assert_eq!(others.len(), one.len());
        for (other, one) in others.iter().zip(&one) {
            for ((what, found), (_, expected)) in found(other).into_iter().zip(found(one)) {
                assert!(is_near(found, expected), "{own:?}: {what} is {found}, expected {expected}");
            }
        }
        fs::remove_dir_all(dir.path().join("others")).unwrap();
    }
}

#[test]
fn references_of_any_number_and_a_resumed_run_have_the_same_bits() {
    let dir = run_folder();
    let one = run_in(dir.path(), "one", &[], None);
    let bits = |step: &StepSummary| {
        (step.loss.to_bits(), step.grad_norm.to_bits(), step.pairs.unwrap().sums().map(f64::to_bits))
    };
    let three = run_in(dir.path(), "three", &["pools.reference.replicas=3"], None);
    assert!(three.iter().map(bits).eq(one.iter().map(bits)));
    let resumed = run_in(dir.path(), "resumed", &[], Some("one"));
    assert_eq!((resumed.len(), bits(&resumed[0])), (1, bits(&one[4])));
    let [one, resumed] = ["one", "resumed"].map(|to| hashes(&dir.path().join(to).join("step-00000005")));
    assert_eq!(one, resumed);
}

/// 38 answers are nine groups of four and one of two.
#[test]
fn every_held_out_answer_is_judged_once() {
    let dir = run_folder();
    let lines = fs::read_to_string(data().join("answers.jsonl")).unwrap();
    let some: String = lines.lines().take(38).map(|line| format!("{line}\n")).collect();
    let held_out = dir.path().join("held_out.jsonl");
    fs::write(&held_out, some).unwrap();
    let path = format!("eval.path={}", held_out.display());
    let own = ["model.foundation.lora.r=4", &path, "eval.every_steps=1", "train.steps=1", "train.lr=1e-30"];
    let (steps, evaluations) = run_and_evaluate_in(dir.path(), "lora", &own, None);
    assert!((steps[0].loss - 0.5).abs() < 1e-6, "an adapter begins as nothing");
    let found = &evaluations[0].sets[0].found;
    assert_eq!(found.num_targets, 38);
    assert!((found.loss_sum / 38.0 - 0.5).abs() < 1e-6, "{found:?}");
}
