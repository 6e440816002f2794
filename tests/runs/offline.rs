//! Packs that a run makes of all its samples before the first step.

use crate::fixture::{Fixture, Pictures};
use crate::processes::said;
use std::fs;
use std::process::{Command, Output};

pub fn command(fixture: &Fixture, command: &[&str], words: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_loongforge"));
    program.args(command).arg(fixture.config_file()).args(["data.pack.mode=offline", "train.global_batch_size=4"]);
    program.args(words);
    program
}

fn call(fixture: &Fixture, words: &[&str], more: &[&str]) -> Output {
    command(fixture, words, more).output().unwrap()
}

pub fn done(fixture: &Fixture, command: &[&str], words: &[&str]) -> String {
    let output = call(fixture, command, words);
    assert!(output.status.success(), "{command:?} {words:?}: {}", said(&output));
    said(&output)
}

pub fn refused(fixture: &Fixture, command: &[&str], words: &[&str]) -> String {
    let output = call(fixture, command, words);
    assert_eq!(output.status.code(), Some(2), "{command:?} {words:?}: {}", said(&output));
    said(&output)
}

#[test]
fn epochs_are_counted_in_packs_and_what_is_set_aside_is_in_none() {
    let fixture = Fixture::new(Pictures::Some);
    let words = ["~train.steps", "train.epochs=2", "train.warmup_steps=1", "data.val_size=8", "eval={every_steps: 5}"];
    // Nobody but `run` and `data pack` makes them.
    let text = done(&fixture, &["check"], &words);
    assert!(text.contains("its packs are made before the first step"), "{text}");
    assert!(refused(&fixture, &["plan"], &words).contains("holds no packs of this config"));
    assert!(!fixture.path().join("run").exists());
    // In two shares, then joined.
    for share in ["0/2", "1/2", "0/2", "1/2"] {
        done(&fixture, &["data", "pack"], &[&words[..], &["--shard", share]].concat());
    }
    let text = done(&fixture, &["data", "pack"], &words);
    assert!(text.contains("of 88 samples") && text.contains("padding compression: "), "{text}");
    let ledger = fs::read_to_string(fixture.path().join("run/packs.json")).unwrap();
    let packs =
        serde_json::from_str::<serde_json::Value>(&ledger).unwrap()["packs"]["stats"]["packs"].as_u64().unwrap();
    let steps = (2 * packs).div_ceil(4);
    let counted = format!("2 epochs of {packs} packs: {steps} steps");
    assert!(done(&fixture, &["check"], &words).contains(&counted));
    let planned = done(&fixture, &["plan"], &words);
    assert!(planned.contains(&format!("{steps} steps of 4 samples")), "{planned}");
    assert!(planned.contains(&format!("data: {packs} samples")), "{planned}");
    let text = done(&fixture, &["run"], &words);
    assert!(text.contains(&counted) && !text.contains("making packs"), "{text}");
    let metrics = fs::read_to_string(fixture.path().join("run/metrics.jsonl")).unwrap();
    assert_eq!(metrics.lines().count() as u64, steps);
    let evaluated = fs::read_to_string(fixture.path().join("run/eval.jsonl")).unwrap();
    let of_line = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    assert!(evaluated.lines().any(|line| of_line(line)["samples"] == 8), "what is set aside is evaluated: {evaluated}");
}

#[test]
fn what_cannot_be_packed_first_is_refused() {
    let fixture = Fixture::new(Pictures::Some);
    let unchecked = |words: &[&str]| refused(&fixture, &["check"], words);
    let pairs = "train.preference={loss: orpo}";
    assert!(unchecked(&[pairs]).contains("pairs and labeled answers are packed during the run"));
    assert!(
        unchecked(&["data.train.0.format=packed"])
            .contains("contradicts `data.pack.mode: offline`, which packs samples")
    );
    assert!(unchecked(&["train.loss_weighting=square"]).contains("cannot be told apart"));
    assert!(unchecked(&["data.pack.mode=step", "data.pack.samples=4"]).contains("requires `data.pack.mode: offline`"));
    // A folder of the user's is left alone.
    let mine = fixture.path().join("run/packs");
    fs::create_dir_all(&mine).unwrap();
    fs::write(mine.join("notes.txt"), "mine").unwrap();
    let output = call(&fixture, &["run"], &[]);
    assert!(
        !output.status.success() && said(&output).contains("holds something other than packs"),
        "{}",
        said(&output)
    );
    assert_eq!(fs::read_to_string(mine.join("notes.txt")).unwrap(), "mine");
    fs::remove_dir_all(&mine).unwrap();
    // As many samples as the config allows may be bad.
    let data = fixture.path().join("data/train.jsonl");
    let lines = fs::read_to_string(&data).unwrap();
    fs::write(&data, lines + &"\n{\"messages\": []}".repeat(12)).unwrap();
    let one_step = ["train.steps=1", "train.warmup_steps=0"];
    let few = [&one_step[..], &["data.on_bad_sample.max_fraction=0.05"]].concat();
    let text = refused(&fixture, &["run"], &few);
    assert!(text.contains("12 of 108 samples are bad, more than data.on_bad_sample.max_fraction = 0.05"), "{text}");
    let text = done(&fixture, &["run"], &[&one_step[..], &["data.on_bad_sample.max_fraction=0.2"]].concat());
    assert!(text.contains("12 bad samples were left out of the packs") && !text.contains("making packs"), "{text}");
}
