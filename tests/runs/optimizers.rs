//! Runs of other optimizers than AdamW: layouts, resume, and what is refused.

use crate::fixture::{Fixture, Pictures, bits};
use crate::resume::{hashes, resume};
use loongforge::compose::Composition;
use loongforge::core::config;
use loongforge::core::schedule::StepSummary;
use loongforge::torch::engine::check_engines;

const BYTES: &str = "train.optimizer.type=adamw_8bit";
const MUON: &str = "train.optimizer={type: muon, muon: {momentum: 0.9}}";

#[test]
fn layouts_learn_the_same_and_runs_go_on_with_the_same_bits() {
    let fixture = Fixture::new(Pictures::Some);
    let mut first = Vec::new();
    for (name, optimizer, own) in [
        ("bytes", BYTES, &["pools.foundation.replicas=2", "pools.foundation.zero=2", "train.precision=bf16"][..]),
        ("muon", MUON, &["pools.foundation.tensor_parallel=2"]),
        ("muon-zero", MUON, &["pools.foundation.replicas=2", "pools.foundation.zero=3"]),
    ] {
        let precision = own.iter().filter(|own| own.starts_with("train.precision"));
        let common: Vec<&str> =
            ["train.steps=4", "train.micro_batch_size=2", optimizer].into_iter().chain(precision.copied()).collect();
        let one = fixture.run(&common, None);
        let to = |run: &str| format!("checkpoint.dir={}", fixture.path().join(format!("{name}-{run}")).display());
        let split = [&common[..], own, &["checkpoint.every_steps=2"]].concat();
        let whole = fixture.run(&[&split[..], &[to("whole").as_str()]].concat(), None);
        for (found, one) in whole.iter().zip(&one) {
            let (found, one) = (found.loss, one.loss);
            let near = if name == "bytes" { 5e-3 } else { 1e-3 };
            assert!((found - one).abs() < near * one, "{name}: {found} and {one}");
        }
        let half = resume(fixture.path().join(format!("{name}-whole/step-00000002")));
        let rest = fixture.run(&[&split[..], &[to("rest").as_str()]].concat(), Some(half));
        assert_eq!(bits(&rest), bits(&whole[2..]), "{name}");
        let last = |run: &str| hashes(&fixture.path().join(format!("{name}-{run}/step-00000004")));
        assert_eq!(last("rest"), last("whole"), "{name}");
        first.push(one[3].loss);
    }
    let plain = fixture.run(&["train.steps=4", "train.micro_batch_size=2"], None)[3].loss;
    assert!(first.iter().all(|loss| *loss != plain), "another optimizer: {first:?} and {plain}");
}

/// Layouts with state off the device against the same without: steps, checkpoints, and a run that goes on from the one into the other.
#[test]
fn state_off_the_device_changes_no_bit_of_a_run() {
    let fixture = Fixture::new(Pictures::Some);
    let files = fixture.path().join("state");
    let disk = |fraction: f64| {
        format!("train.optimizer.offload={{to: disk, path: {}, fraction: {fraction}}}", files.display())
    };
    for (name, own, offload) in [
        ("zero", &["pools.foundation.replicas=2", "pools.foundation.zero=3", "train.ema=0.9"][..], disk(1.0)),
        ("split", &[MUON, "pools.foundation.tensor_parallel=2", "train.precision=bf16"], disk(0.5)),
        ("stages", &["pools.foundation.pipeline_parallel=2"], "train.optimizer.offload={to: cpu}".to_owned()),
        ("bytes", &[BYTES], disk(0.7)),
    ] {
        let common = ["device=cpu", "train.steps=4", "train.micro_batch_size=2", "checkpoint.every_steps=2"];
        let run = |to: &str, offload: &[&str], from| {
            let to = format!("checkpoint.dir={}", fixture.path().join(format!("{name}-{to}")).display());
            fixture.run(&[&common[..], own, offload, &[to.as_str()]].concat(), from)
        };
        let [plain, away] =
            [("plain", &[][..]), ("away", &[offload.as_str()])].map(|(to, offload)| run(to, offload, None));
        assert_eq!(bits(&away), bits(&plain), "{name}");
        let bytes = |steps: &[StepSummary]| -> u64 {
            steps[3].timings.iter().map(|(_, timings)| timings.memory.offloaded).sum()
        };
        assert!(bytes(&away) > 0 && bytes(&plain) == 0, "{name}");
        let at = |to: &str, step: u64| fixture.path().join(format!("{name}-{to}/step-{step:08}"));
        assert_eq!(hashes(&at("away", 4)), hashes(&at("plain", 4)), "{name}");
        run("back", &[], Some(resume(at("away", 2))));
        run("there", &[offload.as_str()], Some(resume(at("plain", 2))));
        for to in ["back", "there"] {
            assert_eq!(hashes(&at(to, 4)), hashes(&at("plain", 4)), "{name} {to}");
        }
    }
    // A GPU rounds its own steps otherwise than the CPU, which takes those of state that lies there.
    let common = ["train.steps=4", "train.micro_batch_size=2"];
    let [here, away] =
        [&[][..], &["train.optimizer.offload={to: cpu}"]].map(|own| fixture.losses(&[&common, own].concat()));
    assert_eq!((here.len(), away.len()), (4, 4));
    for (here, away) in here.iter().zip(&away) {
        assert!((here - away).abs() < 1e-6 * here, "{here} and {away}");
    }
    assert_eq!(std::fs::read_dir(&files).unwrap().count(), 0, "files without names");
}

#[test]
fn parameters_whose_blocks_would_be_cut_are_refused() {
    let fixture = Fixture::new(Pictures::Some);
    let refusal = |own: &[&str]| {
        let overrides: Vec<String> = own.iter().map(|own| own.to_string()).collect();
        let loaded = config::load(&fixture.path().join("run.yaml"), &overrides, std::iter::empty()).unwrap();
        let found = Composition::new(loaded.config.clone()).unwrap();
        check_engines(&loaded.config, &found.folder().config).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let found = refusal(&[BYTES, "pools.foundation.tensor_parallel=2"]);
    assert!(found.contains("train.optimizer.type") && found.contains("pools.foundation"), "{found}");
    assert_eq!(refusal(&[BYTES, "pools.foundation.pipeline_parallel=2"]), "");
    assert_eq!(refusal(&[MUON, "pools.foundation.tensor_parallel=2"]), "");
}
