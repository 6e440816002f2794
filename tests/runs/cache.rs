//! A frozen encoder's features that are kept: the second epoch is served from them and learns the same.

use crate::fixture::{Fixture, Pictures};
use loongforge::core::schedule::StepSummary;

/// 96 samples, 8 a step.
const STEPS_PER_EPOCH: usize = 12;
const FROZEN: [&str; 3] = ["model.image_encoder.freeze=true", "model.image_projector.freeze=true", "train.steps=24"];

fn run(fixture: &Fixture, overrides: &[&str]) -> Vec<StepSummary> {
    fixture.run(&[&FROZEN, overrides].concat(), None)
}

fn bits(steps: &[StepSummary]) -> Vec<u64> {
    steps.iter().map(|step| step.loss.to_bits()).collect()
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
        assert_eq!(bits(&spilt), bits(&kept), "{memory}");
    }
    // Too small for one picture: nothing is kept, and nothing else differs.
    let none = run(&fixture, &["pools.encoder.cache=1KiB"]);
    assert_eq!(num_cached(&none), 0);
    assert_eq!(bits(&kept), bits(&none));
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
    assert_eq!(bits(&one), bits(&two));
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
    assert_eq!(bits(&run(&fixture, &["pools.encoder.cache=64MiB"])), bits(&first));
    // The tower has other weights: what another has made is not taken.
    let other = run(&fixture, &[&shared, "run.seed=2", "train.steps=12"]);
    assert_eq!(num_cached(&other), 0);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "a folder for each");
}
