//! Runs that learn from answers to questions about pictures and compare with a reference model, against what TRL's trainers make of the
//! same answers, pictures and weights (`tests/oracle/preference_pictures.py`), and against each other.

use crate::answers::{TOLERANCE, folder_with, found, is_near};
use crate::resume::{hashes, run_and_evaluate_in, run_in};
use loongforge::compose::Composition;
use loongforge::core::config;
use loongforge::core::schedule::StepSummary;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tch::{Kind, Tensor};
use tempfile::TempDir;

const TOWER_FROZEN: &str = "model.image_encoder.freeze=true";
const FROZEN: [&str; 2] = [TOWER_FROZEN, "model.image_projector.freeze=true"];
const KTO: [&str; 5] = [
    "data.train=[{path: DATA/answers.jsonl}]",
    "data.pack.max_tokens=2048",
    "train.global_batch_size=2",
    "train.preference.loss=kto",
    "train.preference.group_size=4",
];

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/preference_pictures")
}

/// Makes a folder with a run of the committed pairs.
fn run_folder() -> TempDir {
    folder_with(RUN, &data())
}

const RUN: &str = "
run: { name: pictures, dir: ROOT/run, deterministic: true }
model: { load: DATA/model }
pools: { encoder: { threads: 1 }, reference: { threads: 1 }, foundation: { threads: 1 } }
data: { train: [{ path: DATA/pairs.jsonl }], pack: { max_tokens: 512 }, shuffle: false }
train:
  { steps: 5, global_batch_size: 4, lr: 3e-3, schedule: constant, clip_grad: 0, optimizer: { betas: [0.9, 0.95],
    weight_decay: 0 }, preference: { beta: 0.3 } }
checkpoint: { every_steps: 1, keep_last: 9 }
log: { tensorboard: false }
";

fn overrides(case: &str) -> Vec<String> {
    let own: Vec<&str> = match case {
        "tower_frozen" => vec![TOWER_FROZEN],
        "frozen" => FROZEN.to_vec(),
        "hinge" => vec!["train.preference.loss=hinge"],
        "ipo" => vec!["train.preference.loss=ipo"],
        "orpo" => vec!["train.preference.loss=orpo"],
        "orpo_tower_frozen" => vec!["train.preference.loss=orpo", TOWER_FROZEN],
        "kto" => KTO.to_vec(),
        "kto_tower_frozen" => [&KTO[..], &[TOWER_FROZEN]].concat(),
        _ => Vec::new(),
    };
    own.into_iter().map(|own| own.replace("DATA", &data().display().to_string())).collect()
}

fn run_case(root: &Path, to: &str, case: &str, more: &[&str], from: Option<&str>) -> Vec<StepSummary> {
    let own = overrides(case);
    run_in(root, to, &own.iter().map(String::as_str).chain(more.iter().copied()).collect::<Vec<_>>(), from)
}

/// Returns the tensors of a checkpoint, by name.
fn weights(checkpoint: &Path) -> BTreeMap<String, Tensor> {
    let files = fs::read_dir(checkpoint).unwrap().map(|entry| entry.unwrap().path());
    let is_model = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("model") && name.ends_with(".safetensors")
    };
    files.filter(is_model).flat_map(|path| Tensor::read_safetensors(path).unwrap()).collect()
}

fn bits(steps: &[StepSummary]) -> Vec<(u64, u64, Vec<u64>)> {
    let of = |step: &StepSummary| {
        let sums = step.pairs.expect("answers are reported").sums();
        (step.loss.to_bits(), step.grad_norm.to_bits(), sums.into_iter().map(f64::to_bits).collect())
    };
    steps.iter().map(of).collect()
}

/// Runs every case of `folder`, whose model and expectations these are, and compares.
fn expect_as_trl(folder: &Path) {
    let expected: Value = serde_json::from_slice(&fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let cases = expected["cases"].as_object().unwrap();
    assert_eq!(cases.len(), 9);
    let load = format!("model.load={}", folder.join("model").display());
    for (case, expected) in cases {
        let dir = run_folder();
        let steps = run_case(dir.path(), "checkpoints", case, &[&load], None);
        assert_eq!(steps.len(), 5);
        for (step, summary) in steps.iter().enumerate() {
            for (what, found) in found(summary) {
                let Some(expected) = expected["steps"][step][what].as_f64() else { continue };
                assert!(
                    is_near(found, expected),
                    "{case}, step {step}: {what} is {found}, and {expected} by the reference"
                );
            }
        }
        let trained = weights(&dir.path().join("checkpoints/step-00000005"));
        let norms: BTreeMap<_, _> = expected["weight_norms"].as_object().unwrap().into_iter().collect();
        assert!(trained.keys().eq(norms.keys().copied()), "a reference model is not saved: {:?}", trained.keys());
        // Attention without rotation does not see what is added to all keys: CLIP's get rounding for a gradient.
        let is_felt = |name: &str| !(name.starts_with("vision_tower.") && name.ends_with("k_proj.bias"));
        for (name, expected) in norms.into_iter().filter(|(name, _)| is_felt(name)) {
            let found = trained[name.as_str()].to_kind(Kind::Double).norm().double_value(&[]);
            let expected = expected.as_f64().unwrap();
            assert!((found - expected).abs() <= TOLERANCE * expected, "{case}: {name} is {found}, expected {expected}");
        }
    }
}

#[test]
fn pictures_are_learned_from_as_trl_learns_from_them() {
    expect_as_trl(&data());
}

#[test]
fn pictures_are_learned_from_as_trl_learns_from_them_with_a_llava() {
    expect_as_trl(&data().join("llava"));
}

#[test]
fn encoders_and_references_of_any_number_have_the_same_bits() {
    for case in ["trained", "tower_frozen", "frozen", "kto"] {
        let dir = run_folder();
        let one = run_case(dir.path(), "one", case, &[], None);
        let three = ["pools.encoder.replicas=3", "pools.reference.replicas=3"];
        let many = run_case(dir.path(), "many", case, &three, None);
        assert_eq!(bits(&many), bits(&one), "{case}");
        let [one, many] = ["one", "many"].map(|to| hashes(&dir.path().join(to).join("step-00000005")));
        assert_eq!(one, many, "{case}");
    }
}

#[test]
fn a_resumed_run_compares_with_the_model_that_the_run_began_with() {
    for case in ["trained", "frozen"] {
        let dir = run_folder();
        let one = run_case(dir.path(), "one", case, &[], None);
        let many = ["pools.encoder.replicas=2", "pools.reference.replicas=2"];
        let resumed = run_case(dir.path(), "resumed", case, &many, Some("one"));
        assert_eq!(bits(&resumed), bits(&one[4..]), "{case}");
        let [one, resumed] = ["one", "resumed"].map(|to| hashes(&dir.path().join(to).join("step-00000005")));
        assert_eq!(one, resumed, "{case}: the towers of the reference are those that the run began with");
    }
}

/// Two epochs: from the second on the reference is not asked. Pictures are part of what answers are kept by.
#[test]
fn answers_are_kept_with_their_pictures() {
    let dir = run_folder();
    let ten = ["train.steps=10", "pools.reference.cache=64MiB"];
    let kept = run_case(dir.path(), "kept", "trained", &ten, None);
    let asked = run_case(dir.path(), "asked", "trained", &ten[..1], None);
    let many = run_case(dir.path(), "many", "trained", &[&ten[..], &["pools.reference.replicas=2"]].concat(), None);
    assert_eq!(bits(&many), bits(&kept));
    // Kept answers are computed one by one, which is another rounding.
    for (kept, asked) in kept.iter().zip(&asked) {
        assert!(is_near(kept.loss, asked.loss), "{kept:?}, and {asked:?}");
    }
    let folder = dir.path().join("answers");
    let kept_in = format!("pools.reference.cache_dir={}", folder.display());
    let first = run_case(dir.path(), "first", "trained", &[&kept_in], None);
    let without = [kept_in.as_str(), "pools.reference.replicas=0"];
    let second = run_case(dir.path(), "second", "trained", &without, None);
    assert_eq!(bits(&second), bits(&first), "nobody computes the reference");
    let resumed = run_case(dir.path(), "resumed", "trained", &without, Some("second"));
    assert_eq!(bits(&resumed), bits(&second[4..]), "the checkpoint has no reference");
}

#[test]
fn layouts_learn_alike() {
    for case in ["trained", "kto"] {
        let dir = run_folder();
        let one = run_case(dir.path(), "one", case, &["train.steps=2"], None);
        for own in [
            &["pools.foundation.replicas=2", "pools.data.replicas=2"][..],
            &["pools.foundation.tensor_parallel=2", "pools.foundation.sequence_parallel=true"],
            &["pools.reference.tensor_parallel=2"],
            &["train.micro_batch_size=1"],
        ] {
            let others = run_case(dir.path(), "others", case, &[&["train.steps=2"], own].concat(), None);
            for (other, one) in others.iter().zip(&one) {
                for ((what, found), (_, expected)) in found(other).into_iter().zip(found(one)) {
                    assert!(is_near(found, expected), "{case}, {own:?}: {what} is {found}, expected {expected}");
                }
            }
            fs::remove_dir_all(dir.path().join("others")).unwrap();
        }
    }
}

#[test]
fn adapters_begin_at_the_reference_and_held_out_pairs_are_judged() {
    let dir = run_folder();
    let held = format!("eval.path={}", data().join("pairs.jsonl").display());
    let lora = ["model.foundation.lora.r=4", "model.foundation.lora.alpha=8"];
    let own = [&FROZEN[..], &lora, &[held.as_str(), "eval.every_steps=2"]].concat();
    let (steps, evaluations) = run_and_evaluate_in(dir.path(), "lora", &own, None);
    assert!((steps[0].loss - std::f64::consts::LN_2).abs() < 1e-5, "an adapter begins as nothing: {}", steps[0].loss);
    assert!(dir.path().join("lora/step-00000005/adapter_model.safetensors").is_file());
    assert_eq!(evaluations.last().expect("an evaluation").sets[0].found.num_targets, 20, "each pair counts once");
}

#[test]
fn what_has_no_reference_that_sees_is_refused() {
    let dir = run_folder();
    let refused = |own: &[&str]| {
        let own: Vec<String> = own.iter().map(|own| own.replace("DATA", &data().display().to_string())).collect();
        let loaded = config::load(&dir.path().join("run.yaml"), &own, std::iter::empty());
        let loaded = loaded.unwrap_or_else(|report| panic!("{report}"));
        Composition::new(loaded.config).err().expect("it is refused").to_string()
    };
    let blind = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/preference/model");
    let blind = format!("model.reference.load={}", blind.display());
    // The same model, to which pictures of other colors are shown.
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    for file in fs::read_dir(data().join("model")).unwrap().map(Result::unwrap) {
        let text = fs::read(file.path()).unwrap();
        let text = match file.file_name().to_str().unwrap() {
            "preprocessor_config.json" | "processor_config.json" => String::from_utf8(text)
                .unwrap()
                .replace("image_mean\": [", "image_mean\": [0.25, 0.25, 0.25], \"was\": [")
                .into(),
            _ => text,
        };
        fs::write(other.join(file.file_name()), text).unwrap();
    }
    let other = format!("model.reference.load={}", other.display());
    for (own, part) in [
        (&["~pools.reference"][..], "would share pools.encoder with towers of the model"),
        (&["~pools.reference", "~pools.encoder", "+pools.placement=colocated"], "leave pools.placement at separate"),
        (&["~pools.reference", "+pools.all={towers: [vision, reference]}"], "would share pools.all with"),
        (&[blind.as_str()], "qwen3 takes no pictures"),
        (&[other.as_str()], "qwen2_5_vl takes colors of mean [0.25, 0.25, 0.25]"),
    ] {
        let error = refused(own);
        assert!(error.contains(part), "{own:?}: {error}");
    }
}
