//! A frozen encoder's features that are kept: the second epoch is served from them and learns the same.

use crate::fixture::{Fixture, Pictures, loss_bits};
use crate::processes::{losses, num_steps, program, wait_until};
use crate::resume::{hashes, resume};
use crate::sound::omni;
use loongforge::compose::Composition;
use loongforge::core::config::Loaded;
use loongforge::core::data::tools::Share;
use loongforge::core::data::{InProcess, MediaDecoder};
use loongforge::core::schedule::StepSummary;
use loongforge::run::encode::{EncodeJob, Encoded};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::Arc;

/// 96 samples, 8 a step.
const STEPS_PER_EPOCH: usize = 12;
const FROZEN: [&str; 3] = ["model.image_encoder.freeze=true", "model.image_projector.freeze=true", "train.steps=24"];

fn run(fixture: &Fixture, overrides: &[&str]) -> Vec<StepSummary> {
    fixture.run(&[&FROZEN, overrides].concat(), None)
}

fn num_cached(steps: &[StepSummary]) -> u64 {
    steps.iter().flat_map(|step| &step.timings).map(|(_, timings)| u64::from(timings.cached_items)).sum()
}

fn num_items(steps: &[StepSummary]) -> u64 {
    steps.iter().map(|step| step.num_items as u64).sum()
}

#[test]
fn the_second_epoch_is_served_from_the_cache() {
    let fixture = Fixture::new(Pictures::Some);
    let kept = run(&fixture, &["pools.encoder.cache=64MiB"]);
    assert_eq!(num_items(&kept[..STEPS_PER_EPOCH]), num_items(&kept[STEPS_PER_EPOCH..]), "an epoch has all pictures");
    assert_eq!(num_cached(&kept), num_items(&kept[STEPS_PER_EPOCH..]), "each picture is encoded once");
    // On disk alone, and in both places.
    for memory in ["pools.encoder.cache=1KiB", "pools.encoder.cache=24KiB"] {
        let spilt = run(&fixture, &[memory, "pools.encoder.spill=64MiB"]);
        assert_eq!(num_cached(&spilt), num_cached(&kept), "{memory}");
        assert_eq!(loss_bits(&spilt), loss_bits(&kept), "{memory}");
    }
    // Too small for one picture: nothing is kept, and nothing else differs.
    let none = run(&fixture, &["pools.encoder.cache=1KiB"]);
    assert_eq!(num_cached(&none), 0);
    assert_eq!(loss_bits(&kept), loss_bits(&none));
    // Without a cache units are encoded whole: sums differ in rounding.
    let without = run(&fixture, &[]);
    assert_eq!(num_cached(&without), 0);
    for (left, right) in kept.iter().zip(&without) {
        assert!((left.loss - right.loss).abs() <= 1e-4 * right.loss, "{}: {} and {}", left.step, left.loss, right.loss);
    }
    assert!(kept[23].loss < 0.8 * kept[0].loss, "{kept:?}");
}

#[test]
fn two_encoders_keep_what_each_has_seen() {
    let fixture = Fixture::new(Pictures::All);
    let one = run(&fixture, &["pools.encoder.cache=64MiB", "run.deterministic=true"]);
    let two = run(&fixture, &["pools.encoder.cache=64MiB", "run.deterministic=true", "pools.encoder.replicas=2"]);
    assert_eq!(loss_bits(&one), loss_bits(&two));
    assert_eq!(num_cached(&one), num_items(&one[STEPS_PER_EPOCH..]));
    let cached = num_cached(&two);
    assert!(0 < cached && cached <= num_cached(&one), "{cached}");
}

#[test]
fn another_run_finds_what_one_has_encoded() {
    let fixture = Fixture::new(Pictures::Some);
    let dir = tempfile::tempdir().unwrap();
    let shared = format!("pools.encoder.cache_dir={}", dir.path().display());
    let first = run(&fixture, &[&shared]);
    assert_eq!(num_cached(&first), num_items(&first[STEPS_PER_EPOCH..]), "each picture is encoded once");
    let second = run(&fixture, &[&shared, "pools.encoder.replicas=2", "run.deterministic=true"]);
    assert_eq!(num_cached(&second), num_items(&second), "nothing is encoded");
    assert_eq!(loss_bits(&run(&fixture, &["pools.encoder.cache=64MiB"])), loss_bits(&first));
    // The tower has other weights: what another has made is not taken.
    let other = run(&fixture, &[&shared, "run.seed=2", "train.steps=12"]);
    assert_eq!(num_cached(&other), 0);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "a folder for each");
}

/// Fills the folders of a config's pools.
pub fn encode(loaded: Loaded, share: Share) -> Encoded {
    let decoder: Arc<dyn MediaDecoder> = Arc::new(InProcess);
    let job = EncodeJob::new(Composition::new(loaded.config).unwrap(), &decoder, share);
    job.unwrap_or_else(|error| panic!("{error}")).run(2, |_| ()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_pool_without_encoders_learns_the_same_from_what_was_encoded_ahead() {
    let fixture = Fixture::new(Pictures::Some);
    let at = |name: &str| fixture.path().join(name).display().to_string();
    let shared = format!("pools.encoder.cache_dir={}", at("features"));
    let none = [&FROZEN[..], &[&shared, "pools.encoder.replicas=0", "checkpoint.every_steps=12"]].concat();
    // Each process does a part, and what is there is not encoded again.
    let parts = [0, 1].map(|index| encode(fixture.load(&none), Share { index, num: 2 }));
    let (made, found) = parts
        .iter()
        .flat_map(|part| part.towers.values())
        .fold((0, 0), |(made, found), totals| (made + totals.items - totals.found, found + totals.found));
    assert_eq!((made, parts.iter().map(|part| part.visits[0]).sum::<u64>()), (64, 192), "{parts:?}");
    assert_eq!(found, 0);
    let again = encode(fixture.load(&none), Share::WHOLE);
    assert_eq!(again.towers.values().map(|totals| (totals.items, totals.found)).collect::<Vec<_>>(), [(64, 64)]);
    let learn = |to: &str, own: &[&str], from: Option<&str>| {
        let dir = format!("checkpoint.dir={}", at(to));
        let from = from.map(|from| resume(fixture.path().join(from).join("step-00000012")));
        fixture.run(&[&none[..], &[&dir], own].concat(), from)
    };
    let with = learn("with", &["pools.encoder.replicas=1"], None);
    assert_eq!(num_cached(&with), num_items(&with), "nothing is encoded");
    assert_eq!(loss_bits(&learn("without", &[], None)), loss_bits(&with));
    assert_eq!(loss_bits(&learn("rest", &[], Some("without"))), loss_bits(&with[12..]));
    // The actor without towers has written what an encoder would have.
    let files = |name: &str| hashes(&fixture.path().join(name).join("step-00000024"));
    assert!(files("without").iter().any(|(name, _)| name.starts_with("model-00001-of")));
    assert_eq!([files("without"), files("rest")], [files("with"), files("with")]);
    // Features of another tower are no features of this one.
    let loaded = fixture.load(&[&none[..], &["run.seed=9"]].concat());
    let error = Composition::new(loaded.config).unwrap().run_with(|_| ()).unwrap_err().to_string();
    for part in ["sample ", "loongforge data encode", &at("features")] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn check_counts_the_items_that_have_features() {
    let fixture = Fixture::new(Pictures::Some);
    let shared = format!("pools.encoder.cache_dir={}", fixture.path().join("features").display());
    let own = [&FROZEN[..], &[&shared]].concat();
    let told = |more: &[&str]| {
        let mut check = Command::new(env!("CARGO_BIN_EXE_loongforge"));
        let output = check.arg("check").arg(fixture.config_file()).args(&own).args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let none = told(&[]);
    assert!(none.contains("cache_dir: 64 of 64 items of the vision tower are to be computed"), "{none}");
    encode(fixture.load(&own), Share { index: 0, num: 2 });
    let half = told(&["pools.encoder.replicas=0"]);
    assert!(half.contains("of 64 items of the vision tower have no features in its cache_dir, "), "{half}");
    encode(fixture.load(&own), Share::WHOLE);
    let all = told(&[]);
    assert!(all.contains("cache_dir: all 64 items of the vision tower have features in vision-"), "{all}");
    // Encoders with other threads would make them again; an actor that reads takes what there is.
    let other = told(&["pools.encoder.threads=2"]);
    assert!(other.contains("cache_dir: 64 of 64 items of the vision tower are to be computed\n"), "{other}");
    let reads = told(&["pools.encoder.threads=2", "pools.encoder.replicas=0"]);
    assert!(reads.contains("cache_dir: all 64 items of the vision tower have features in vision-"), "{reads}");
    let other = told(&["run.seed=9"]);
    assert!(other.contains("cache_dir: 64 of 64 items of the vision tower are to be computed\n"), "{other}");
}

#[test]
fn a_pool_loses_its_encoders_while_the_run_goes_on_and_gets_others() {
    let fixture = Fixture::new(Pictures::All);
    let shared = format!("pools.encoder.cache_dir={}", fixture.path().join("features").display());
    let common = [&FROZEN[..2], &[&shared, "train.steps=16", "run.deterministic=true"]].concat();
    encode(fixture.load(&common), Share::WHOLE);
    let mut run = program(&fixture, "scaled", &[&common[..], &["--processes"]].concat());
    let mut run = run.env("LOONGFORGE_FAULTS", "foundation/0@before_commit:1-9999=slow").spawn().unwrap();
    let dir = fixture.path().join("scaled");
    let steps = || num_steps(&fixture, "scaled");
    let scale = |count: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_loongforge")).args(["scale", count, "--run"]).arg(&dir).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    wait_until(&mut run, || steps() >= 2);
    assert_eq!(scale("0"), "1 → 0 encoders\n");
    let before = steps();
    wait_until(&mut run, || steps() >= before + 2);
    assert_eq!(scale("2"), "0 → 2 encoders\n");
    let output = run.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("encoder/1 joins"), "{said}");
    assert!(program(&fixture, "twin", &common).output().unwrap().status.success());
    assert_eq!(losses(&fixture, "scaled"), losses(&fixture, "twin"));
}

/// The pool is beside one that is trained.
#[test]
fn a_pool_with_a_name_of_its_own_loses_its_encoders_too() {
    let fixture = omni();
    let shared = format!("pools.audio.cache_dir={}", fixture.path().join("features").display());
    let common: [&str; 8] = [
        "model.audio_encoder.freeze=true",
        "model.audio_projector.freeze=true",
        "pools.audio.replicas=1",
        "pools.audio.threads=1",
        "data.pack.max_tokens=160",
        "run.deterministic=true",
        "train.steps=10",
        &shared,
    ];
    encode(fixture.load(&common), Share::WHOLE);
    let mut run = program(&fixture, "scaled", &[&common[..], &["--processes"]].concat());
    let mut run = run.env("LOONGFORGE_FAULTS", "foundation/0@before_commit:1-9999=slow").spawn().unwrap();
    wait_until(&mut run, || num_steps(&fixture, "scaled") >= 2);
    let mut scale = Command::new(env!("CARGO_BIN_EXE_loongforge"));
    scale.args(["scale", "--pool", "audio", "0", "--run"]).arg(fixture.path().join("scaled"));
    let said = String::from_utf8(scale.output().unwrap().stdout).unwrap();
    assert_eq!(said, "1 → 0 encoders of the pool audio\n");
    let output = run.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(program(&fixture, "twin", &common).output().unwrap().status.success());
    assert_eq!(losses(&fixture, "scaled"), losses(&fixture, "twin"));
}

#[test]
fn weights_that_never_change_are_written_once() {
    let fixture = Fixture::new(Pictures::Some);
    let kept = ["checkpoint.every_steps=4", "checkpoint.keep_last=2"];
    run(&fixture, &[&kept[..], &["train.steps=12"]].concat());
    let checkpoints = fixture.path().join("run/checkpoints");
    let inode = |step: &str, file: &str| std::fs::metadata(checkpoints.join(step).join(file)).unwrap().ino();
    let [tower, foundation] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    assert!(!checkpoints.join("step-00000004").exists());
    assert_eq!(inode("step-00000008", tower), inode("step-00000012", tower));
    assert_ne!(inode("step-00000008", foundation), inode("step-00000012", foundation));
    // Each is whole by itself.
    std::fs::remove_dir_all(checkpoints.join("step-00000008")).unwrap();
    let rest =
        fixture.run(&[&FROZEN[..], &["train.steps=14"]].concat(), Some(resume(checkpoints.join("step-00000012"))));
    assert_eq!(rest.len(), 2);
}
