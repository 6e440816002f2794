//! Numbers that are not finite: steps are skipped before they change a weight, and too many of them end the run with the
//! last good weights saved and with what is known of the cause.

use crate::fixture::{Fixture, Pictures};
use crate::processes::{losses, program};
use loongforge::core::checkpoint::latest;
use loongforge::torch::train::hf::TensorFile;
use serde_json::Value;
use std::process::Output;

fn run(fixture: &Fixture, name: &str, faults: &str) -> (Output, String) {
    let arguments = ["train.steps=12", "run.deterministic=true", "pools.encoder.replicas=2"];
    let output = program(fixture, name, &arguments).env("LOONGFORGE_FAULTS", faults).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, text)
}

/// Checks that every tensor of the newest checkpoint is finite.
fn assert_finite(fixture: &Fixture, name: &str) {
    let folder = latest(&fixture.path().join(name).join("checkpoints")).unwrap().unwrap();
    let mut num_tensors = 0;
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.extension().is_some_and(|extension| extension == "safetensors") {
            let file = TensorFile::open(&entry).unwrap();
            for tensor in file.tensors().keys() {
                let values = file.read(tensor).unwrap().unwrap();
                assert_eq!(values.isfinite().all().int64_value(&[]), 1, "{name}: {tensor}");
                num_tensors += 1;
            }
        }
    }
    assert!(num_tensors > 10, "{name}: {num_tensors} tensors");
}

#[test]
fn a_step_that_is_not_finite_is_skipped_and_named() {
    let fixture = Fixture::new(Pictures::All);
    for (name, faults) in [
        ("input", "encoder/*@nan_input:s17=nan"),
        ("features", "encoder/*@nan_features:s18=nan"),
        ("gradient", "foundation/0@nan_gradient:3=nan"),
    ] {
        let (output, text) = run(&fixture, name, faults);
        assert!(output.status.success(), "{name}: {text}");
        let skipped: Vec<&str> = text.lines().filter(|line| line.contains(" skipped: ")).collect();
        let ids = "samples [16, 17, 18, 19, 20, 21, 22, 23]";
        assert!(
            matches!(skipped[..], [line] if line.contains("step 2 skipped") && line.contains(ids)),
            "{name}: {text}"
        );
        assert_finite(&fixture, name);
    }
    // The same step is skipped, so all that follows is the same.
    assert_eq!(losses(&fixture, "input")[3..], losses(&fixture, "features")[3..]);
}

#[test]
fn too_many_of_them_end_the_run_with_the_cause_and_the_last_good_weights() {
    let fixture = Fixture::new(Pictures::All);
    for (name, faults, verdict) in [
        // One sample in each of four batches.
        (
            "data",
            "encoder/*@nan_features:s17=nan encoder/*@nan_features:s25=nan encoder/*@nan_features:s33=nan encoder/*@nan_features:s41=nan",
            "data",
        ),
        ("transient", "foundation/0@nan_gradient:3-6=nan", "transient"),
        ("persistent", "foundation/0@nan_gradient:3-99=nan", "persistent"),
    ] {
        let (output, text) = run(&fixture, name, faults);
        assert_eq!(output.status.code(), Some(5), "{name}: {text}");
        let evidence = std::fs::read(fixture.path().join(name).join("nonfinite-step-5.json")).unwrap();
        let evidence: Value = serde_json::from_slice(&evidence).unwrap();
        assert_eq!(evidence["verdict"], verdict, "{name}: {evidence}");
        assert_eq!(evidence["samples"], serde_json::json!((40..48).collect::<Vec<u64>>()), "{name}");
        assert_eq!(evidence["weights"]["last_step"], 1, "{name}: {evidence}");
        let newest = latest(&fixture.path().join(name).join("checkpoints")).unwrap().unwrap();
        assert!(newest.ends_with("step-00000002"), "{name}: {}", newest.display());
        assert!(evidence["weights"]["sha256"].as_object().is_some_and(|hashes| hashes.len() > 2), "{name}: {evidence}");
        assert_finite(&fixture, name);
    }
}
