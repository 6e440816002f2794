//! A run that was stopped anywhere and resumed is the run that was not stopped.

use crate::fixture::{self, Fixture, Pictures, loss_bits};
use loongforge::compose::Resume;
use loongforge::core::checkpoint::Manifest;
use loongforge::core::config::{self, Products};
use loongforge::core::message::StepId;
use loongforge::core::schedule::{EvaluationSummary, StepSummary};
use loongforge::torch::native::expect_products;
use std::path::{Path, PathBuf};

/// Two more than an epoch has.
const STEPS: u64 = 14;

pub fn resume(checkpoint: PathBuf) -> Resume {
    let manifest = Manifest::read(&checkpoint).unwrap();
    Resume { checkpoint, first_step: StepId(manifest.num_steps), state: manifest.scheduler }
}

/// Runs `run.yaml` of a folder with checkpoints in its folder `to`, from the fourth step of those in `from`.
pub fn run_in(root: &Path, to: &str, own: &[&str], from: Option<&str>) -> Vec<StepSummary> {
    run_and_evaluate_in(root, to, own, from).0
}

/// Works like [`run_in`], with what was evaluated meanwhile.
pub fn run_and_evaluate_in(
    root: &Path,
    to: &str,
    own: &[&str],
    from: Option<&str>,
) -> (Vec<StepSummary>, Vec<EvaluationSummary>) {
    let resumed = from.map(|from| resume(root.join(from).join("step-00000004")));
    let dir = format!("checkpoint.dir={}", root.join(to).display());
    let overrides: Vec<String> = own.iter().map(|own| own.to_string()).chain([dir]).collect();
    let loaded = config::load(&root.join("run.yaml"), &overrides, std::iter::empty());
    fixture::run(loaded.unwrap_or_else(|report| panic!("{report}")), resumed)
}

/// Returns the hashes of the checkpoint's safetensors files: others name the run.
pub fn hashes(checkpoint: &Path) -> Vec<(String, String)> {
    let manifest = Manifest::read(checkpoint).unwrap();
    let files = manifest.files.into_iter().filter(|(name, _)| name.ends_with(".safetensors"));
    files.map(|(name, file)| (name, file.sha256)).collect()
}

/// Within the warm-up and at its end, within an epoch, at its end, and before the last step.
const SOME: [u64; 5] = [1, 3, 7, 12, 13];

fn every_split(overrides: &[&str], resumed_overrides: &[&str], num_files: usize) {
    split_at(1..STEPS, overrides, resumed_overrides, num_files);
}

fn split_at(splits: impl IntoIterator<Item = u64>, overrides: &[&str], resumed_overrides: &[&str], num_files: usize) {
    let fixture = Fixture::new(Pictures::Some);
    let checkpoints = fixture.path().join("run/checkpoints");
    let steps = format!("train.steps={STEPS}");
    let mut whole_run = overrides.to_vec();
    whole_run.extend([steps.as_str(), "checkpoint.every_steps=1", "checkpoint.keep_last=100"]);
    let whole = fixture.run(&whole_run, None);
    assert_eq!(whole.len() as u64, STEPS);
    let name = |step: u64| format!("step-{step:08}");
    let want = hashes(&checkpoints.join(name(STEPS)));
    assert_eq!(want.len(), num_files, "{want:?}");
    for split in splits {
        let other = fixture.path().join(format!("resumed-{split}"));
        let dir = format!("checkpoint.dir={}", other.display());
        let mut resumed_run = resumed_overrides.to_vec();
        resumed_run.extend([steps.as_str(), &dir]);
        let rest = fixture.run(&resumed_run, Some(resume(checkpoints.join(name(split)))));
        assert_eq!(rest.len() as u64, STEPS - split);
        for (resumed, original) in rest.iter().zip(&whole[split as usize..]) {
            assert_eq!(resumed.loss.to_bits(), original.loss.to_bits(), "split {split}, step {}", original.step);
            assert_eq!(resumed.grad_norm.to_bits(), original.grad_norm.to_bits());
        }
        assert_eq!(hashes(&other.join(name(STEPS))), want, "split {split}");
    }
}

#[test]
fn every_split_point_is_bit_exact() {
    every_split(&[], &[], 4);
}

#[test]
fn with_another_number_of_encoders_too() {
    let many = ["run.deterministic=true", "pools.encoder.replicas=3"];
    split_at(SOME, &["run.deterministic=true"], &many, 4);
}

#[test]
fn in_bf16_with_a_frozen_encoder() {
    let frozen = ["model.image_encoder.freeze=true", "model.image_projector.freeze=true"];
    let overrides = ["train.precision=bf16", "train.ema=0.9", frozen[0], frozen[1]];
    split_at(SOME, &overrides, &overrides, 3);
}

/// The projector is trained itself, which the adapters' folder holds as well.
const ADAPTERS: [&str; 2] = [
    "model.image_encoder.freeze=true",
    "model.foundation.lora={r: 4, alpha: 8, dropout: 0.2, use_dora: true, rank_pattern: {down_proj: 2}}",
];

#[test]
fn with_adapters_alone_in_the_checkpoint() {
    split_at(SOME, &ADAPTERS, &ADAPTERS, 3);
}

#[test]
fn with_adapters_of_both_pools_added_to_the_weights() {
    let both = [
        "model.foundation.lora={r: 4, target_modules: [q_proj, v_proj]}",
        "model.image_encoder.lora={r: 2, dropout: 0.1}",
        "model.image_encoder.recompute=all",
        "checkpoint.merge_lora=true",
    ];
    split_at(SOME, &both, &both, 4);
}

/// The projector's pool has no adapters: its weights are in the checkpoint of the one run, and only its state in the other's.
#[test]
fn adapters_may_be_merged_or_not_from_a_resume_on() {
    let fixture = Fixture::new(Pictures::Some);
    let run = |name: &str, merges: bool, from: Option<Resume>| {
        let dir = format!("checkpoint.dir={}", fixture.path().join(name).display());
        let merge = format!("checkpoint.merge_lora={merges}");
        fixture.run(&[&ADAPTERS[..], &["train.steps=6", "checkpoint.every_steps=3", &dir, &merge]].concat(), from)
    };
    for (name, merges) in [("apart", false), ("merged", true)] {
        let whole = run(name, merges, None);
        let half = resume(fixture.path().join(name).join("step-00000003"));
        let rest = run(&format!("{name}-rest"), !merges, Some(half));
        assert_eq!(loss_bits(&rest), loss_bits(&whole[3..]), "{name}");
    }
}

/// Whatever is faster on this processor, a resumed run computes products as its checkpoint did.
#[test]
fn products_are_kept_on_resume() {
    let fixture = Fixture::new(Pictures::Some);
    for products in [Products::Libtorch, Products::Tiled].into_iter().filter(|way| expect_products(*way).is_ok()) {
        let asked = format!("run.products={}", products.name());
        let to =
            |name: &str| format!("checkpoint.dir={}", fixture.path().join(format!("{products:?}-{name}")).display());
        // On a GPU they are of no effect.
        let short = ["device=cpu", "train.steps=6", "checkpoint.every_steps=3"];
        let whole = fixture.run(&[&short[..], &[&asked, &to("whole")]].concat(), None);
        let half = resume(fixture.path().join(format!("{products:?}-whole/step-00000003")));
        assert_eq!(half.state.products, products);
        let rest = fixture.run(&[&short[..], &[&to("rest")]].concat(), Some(half));
        assert_eq!(loss_bits(&rest), loss_bits(&whole[3..]), "{products:?}");
        let end = fixture.path().join(format!("{products:?}-rest/step-00000006"));
        assert_eq!(Manifest::read(&end).unwrap().scheduler.products, products);
        assert_eq!(hashes(&end), hashes(&fixture.path().join(format!("{products:?}-whole/step-00000006"))));
    }
}

/// The packer holds samples back over the end of every step, and readers keep no more than a few of them.
#[test]
fn a_packed_stream_goes_on_where_it_was_with_other_readers() {
    let stream = ["data.pack.mode=stream", "data.pack.look_ahead=24", "train.global_batch_size=3"];
    let others = [&stream[..], &["pools.data.replicas=3", "pools.data.memory=100kB"]].concat();
    every_split(&stream, &others, 4);
}
