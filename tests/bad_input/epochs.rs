//! Describes how long a run is where `train.epochs` says it: the same number for all commands and for every process.

use crate::fixture::Fixture;

/// Makes forty samples, eight a step.
fn fixture() -> Fixture {
    let fixture = Fixture::new();
    fixture.edit("run.yaml", "steps: 2,", "epochs: 0.3,");
    fixture
}

const TOLD: &str = "0.3 epochs of 40 samples: 2 steps";

#[test]
fn epochs_are_counted_once_and_the_run_is_as_long() {
    let fixture = fixture();
    let said = fixture.succeeds(&["check", "run.yaml"]);
    assert!(said.out.contains(TOLD), "{}", said.out);
    let said = fixture.succeeds(&["plan", "run.yaml"]);
    assert!(said.out.contains("2 steps of 8 samples") && said.out.contains("0.40 epochs"), "{}", said.out);
    let run = |args: &[&str], steps: usize| {
        let said = fixture.succeeds(&[&["run", "run.yaml"], args].concat());
        assert_eq!(fixture.read("run/metrics.jsonl").lines().count(), steps, "{}", said.err);
        said.err
    };
    let said = run(&[], 2);
    assert!(said.contains(TOLD) && said.contains("; 2 steps of 8 samples into run"), "{said}");
    assert!(said.contains("step 2/2  epoch 0.30  loss "), "{said}");
    let said = run(&["--resume"], 2);
    assert!(said.contains("nothing to do") && said.contains("train.epochs 0.3 comes to 2"), "{said}");
    let said = run(&["--resume", "train.epochs=0.5"], 3);
    assert!(said.contains("0.5 epochs of 40 samples: 3 steps"), "{said}");
    let said = run(&["--overwrite", "train.epochs=1", "train.steps=1"], 1);
    assert!(said.contains("1 epoch of 40 samples: 5 steps, of which train.steps leaves 1"), "{said}");
    let said = run(&["--resume", "train.epochs=1", "train.steps=1"], 1);
    assert!(said.contains("nothing to do") && said.contains("train.steps is 1;"), "{said}");
    run(&["--resume", "train.epochs=0.5", "train.steps=9"], 3);
    // The checkpoint's config is one that can be read again.
    fixture.succeeds(&["checkpoint", "inspect", "run/checkpoints/step-00000003"]);
}

#[test]
fn every_process_of_a_run_takes_the_same_config() {
    let fixture = fixture();
    let said = fixture.succeeds(&["run", "run.yaml", "--processes"]);
    assert_eq!(said.err.matches(TOLD).count(), 1, "{}", said.err);
    assert_eq!(fixture.read("run/metrics.jsonl").lines().count(), 2);
}

#[test]
fn what_is_wrong_with_epochs_is_said_before_a_run() {
    let fixture = fixture();
    for command in ["check", "run", "plan"] {
        let fails = |change: &str, words: &[&str]| fixture.fails(&[command, "run.yaml", change], 2, words);
        fails("~train.epochs", &["LF0105", "`train.steps` or `train.epochs`"]);
        fails("data.pack.mode=stream", &["LF0111", "`train.epochs` is not supported with `data.pack.mode: stream`"]);
        fails("train.warmup_steps=3", &["`train.warmup_steps` 3 is more than the 2 steps of `train.epochs` 0.3"]);
    }
    fixture.write("data/train.jsonl", "\n");
    let words = ["error: data/train.jsonl has no samples"];
    fixture.fails(&["run", "run.yaml"], 2, &words);
    fixture.fails(&["check", "run.yaml"], 2, &words);
    assert!(!fixture.path("run").exists());
}
