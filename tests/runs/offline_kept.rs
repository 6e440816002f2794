//! Packs that a run makes before its first step: who may touch them when, and what is left where somebody dies.

use crate::fixture::{Fixture, Pictures};
use crate::offline::{command, done, refused};
use crate::processes::{Killed, said, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};

/// Four steps, the last of which is saved.
const STEPS: [&str; 3] = ["train.steps=4", "train.warmup_steps=1", "checkpoint.every_steps=4"];
/// Two more.
const MORE: [&str; 4] = ["--resume", "train.steps=6", "train.warmup_steps=1", "checkpoint.every_steps=2"];
const OTHERS: &str = "data.pack.max_tokens=96";

fn ledger(fixture: &Fixture) -> Value {
    serde_json::from_str(&fs::read_to_string(fixture.path().join("run/packs.json")).unwrap()).unwrap()
}

fn with<'a>(words: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [words, more].concat()
}

/// Bytes of the shards, which are a few.
fn shards(fixture: &Fixture) -> Vec<u8> {
    let entries = fs::read_dir(fixture.path().join("run/packs")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "tar"));
    paths.sort();
    paths.iter().flat_map(|path| fs::read(path).unwrap()).collect()
}

/// Returns the losses of a run's steps.
fn losses(fixture: &Fixture) -> Vec<f64> {
    let text = fs::read_to_string(fixture.path().join("run/metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["loss"].as_f64().unwrap()).collect()
}

/// Starts a command, whose process stops itself.
fn frozen(fixture: &Fixture, words: &[&str], more: &[&str], fault: &str) -> Killed {
    let mut program = command(fixture, words, more);
    program.env("LOONGFORGE_FAULTS", fault).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = program.spawn().unwrap();
    let stat = format!("/proc/{}/stat", child.id());
    wait_until(&mut child, || {
        let stat = fs::read_to_string(&stat).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|stat| stat.1.starts_with('T'))
    });
    Killed(child)
}

/// Lets it go on to its end.
fn thawed(mut frozen: Killed) -> Option<i32> {
    kill_process(Pid::from_raw(frozen.0.id() as i32).unwrap(), Signal::CONT).unwrap();
    frozen.0.wait().unwrap().code()
}

#[test]
fn packs_of_a_run_that_is_under_way_are_left_alone() {
    let fixture = Fixture::new(Pictures::Some);
    let run = frozen(&fixture, &["run"], &STEPS, "foundation/0@before_commit:2=freeze");
    let before = (ledger(&fixture), shards(&fixture));
    let holder = format!("is in use by another run: process {} on host", run.0.id());
    for words in [&[OTHERS][..], &[OTHERS, "--shard", "0/2"]] {
        let text = refused(&fixture, &["data", "pack"], words);
        assert!(text.contains(&holder), "{words:?}: {text}");
    }
    // A share of these packs, which comes late.
    let text = done(&fixture, &["data", "pack"], &["--shard", "1/2"]);
    assert!(text.contains("all packs already exist"), "{text}");
    assert_eq!((ledger(&fixture), shards(&fixture)), before);
    assert_eq!(thawed(run), Some(0));
    let locks = fs::read_dir(fixture.path().join("run")).unwrap();
    let locks = locks.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with(".lock"));
    assert_eq!(locks.count(), 0);
}

#[test]
fn shares_are_made_side_by_side_and_nothing_else_meanwhile() {
    let fixture = Fixture::new(Pictures::Some);
    let share = frozen(&fixture, &["data", "pack"], &["--shard", "1/2"], "scheduler/0@pack_measured:2=freeze");
    let holder = format!("packs are being made in {}/run by process {}", fixture.path().display(), share.0.id());
    for (words, more) in [
        (&["run"][..], &STEPS[..]),
        (&["data", "pack"], &[]),
        (&["data", "pack"], &["--shard", "1/2"]),
        // Others in the place of those that are being made.
        (&["data", "pack"], &["--shard", "0/2", OTHERS]),
    ] {
        let text = refused(&fixture, words, more);
        assert!(text.contains(&holder), "{words:?} {more:?}: {text}");
    }
    assert!(ledger(&fixture)["packs"].is_null() && !fixture.path().join("run/checkpoints/step-00000004").exists());
    done(&fixture, &["data", "pack"], &["--shard", "0/2"]);
    assert_eq!(thawed(share), Some(0));
    // All at once, and others than those that are there.
    done(&fixture, &["data", "pack"], &[]);
    for _ in 0..2 {
        let start = |share: &str| command(&fixture, &["data", "pack"], &[OTHERS, "--shard", share]).spawn().unwrap();
        let all: Vec<Child> = ["0/3", "1/3", "2/3"].map(start).into();
        for child in all {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", said(&output));
        }
    }
    let text = done(&fixture, &["data", "pack"], &[OTHERS]);
    assert!(text.contains("of 96 samples"), "{text}");
}

#[test]
fn a_scheduler_that_follows_one_goes_on_packing() {
    let (whole, killed) = (Fixture::new(Pictures::Some), Fixture::new(Pictures::Some));
    done(&whole, &["run"], &STEPS);
    for how in [&["--processes"][..], &["--processes", "--overwrite"]] {
        let mut program = command(&killed, &["run"], &with(&STEPS, how));
        let output = program.env("LOONGFORGE_FAULTS", "scheduler/0@pack_written:4=kill").output().unwrap();
        let text = said(&output);
        assert!(output.status.success() && text.contains("injected at pack_written"), "{how:?}: {text}");
        assert!(text.contains("a new one takes over"), "{text}");
        assert_eq!(losses(&killed), losses(&whole));
        // Shards name the files of samples, which lie in two folders.
        assert_eq!(ledger(&killed)["packs"]["stats"], ledger(&whole)["packs"]["stats"]);
        // Made anew the next time.
        fs::remove_dir_all(killed.path().join("run/packs")).unwrap();
    }
}

#[test]
fn a_run_that_makes_packs_can_be_stopped_and_goes_on() {
    let fixture = Fixture::new(Pictures::Some);
    let run = frozen(&fixture, &["run"], &STEPS, "scheduler/0@pack_measured:50=freeze");
    kill_process(Pid::from_raw(run.0.id() as i32).unwrap(), Signal::TERM).unwrap();
    assert_eq!(thawed(run), Some(3));
    assert!(!fixture.path().join("run/checkpoints/step-00000004").exists());
    done(&fixture, &["run"], &STEPS);
    assert_eq!(losses(&fixture).len(), 4);
}

#[test]
fn packs_are_kept_until_the_run_with_others_takes_a_step() {
    let fixture = Fixture::new(Pictures::Some);
    done(&fixture, &["run"], &STEPS);
    let (first, before) = (shards(&fixture), ledger(&fixture));
    let aside = fixture.path().join("run/.packs-before");
    // Dies before its first step, and so does another one.
    for tokens in [OTHERS, "data.pack.max_tokens=112"] {
        let mut program = command(&fixture, &["run"], &with(&STEPS, &["--overwrite", tokens]));
        let output = program.env("LOONGFORGE_FAULTS", "foundation/0@before_commit:1=kill").output().unwrap();
        assert!(!output.status.success() && said(&output).contains("moved aside"), "{}", said(&output));
        assert!(aside.is_dir() && shards(&fixture) != first);
    }
    let text = done(&fixture, &["run"], &MORE);
    assert!(!text.contains("making packs"), "{text}");
    assert!(shards(&fixture) == first && ledger(&fixture) == before && !aside.exists());
    done(&fixture, &["run"], &with(&STEPS, &["--overwrite", OTHERS]));
    assert!(shards(&fixture) != first && !aside.exists());
    // What was packed by somebody else is no run's.
    let packs = fixture.path().join("run/packs");
    fs::remove_dir_all(&packs).unwrap();
    fs::remove_file(fixture.path().join("run/packs.json")).unwrap();
    done(&fixture, &["data", "pack"], &["--out", packs.to_str().unwrap()]);
    let text = said(&command(&fixture, &["run"], &with(&STEPS, &["--overwrite"])).output().unwrap());
    assert!(text.contains("holds something other than packs of a run") && !shards(&fixture).is_empty(), "{text}");
}

#[test]
fn what_is_resumed_is_refused_before_packs_are_made_and_may_have_others() {
    let fixture = Fixture::new(Pictures::Some);
    done(&fixture, &["run"], &STEPS);
    fs::remove_dir_all(fixture.path().join("run/packs")).unwrap();
    for (words, reason) in [
        (&["train.optimizer.type=muon"][..], "train.optimizer.type=adamw"),
        (&["train.micro_batch_size=2"], "`train.micro_batch_size`"),
        (&[OTHERS], "the packs would differ"),
    ] {
        let output = command(&fixture, &["run"], &with(&MORE, words)).output().unwrap();
        let text = said(&output);
        assert!(!output.status.success() && text.contains(reason) && !text.contains("making packs"), "{text}");
    }
    assert!(!fixture.path().join("run/packs").exists());
    // With other packs, if that is wanted; from then on those are the run's.
    let text = done(&fixture, &["run"], &with(&MORE, &[OTHERS, "data.on_change=accept"]));
    assert_eq!(text.matches("the packs would differ").count(), 1, "{text}");
    assert!(text.contains("making packs of 96 tokens"), "{text}");
    let text = done(&fixture, &["run"], &["--resume", "train.steps=8", "train.warmup_steps=1", OTHERS]);
    assert!(!text.contains("would differ") && !text.contains("making packs"), "{text}");
    assert_eq!(losses(&fixture).len(), 8);
}

#[test]
fn what_cannot_be_read_when_packs_are_written_is_in_none() {
    let fixture = Fixture::new(Pictures::Some);
    // Measured, and gone before it is written.
    let packing = frozen(&fixture, &["data", "pack"], &[], "scheduler/0@pack_measured:96=freeze");
    let data = fixture.path().join("data");
    let lines = fs::read_to_string(data.join("train.jsonl")).unwrap();
    let record: Value = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .find(|record: &Value| record.get("images").is_some())
        .unwrap();
    let picture = record["images"][0].as_str().unwrap();
    fs::remove_file(data.join(picture)).unwrap();
    assert_eq!(thawed(packing), Some(0));
    let text = done(&fixture, &["data", "pack"], &[]);
    assert!(text.contains("of 95 samples") && text.contains("1 bad sample was left out of the packs"), "{text}");
    let ledger = ledger(&fixture);
    let stats = &ledger["packs"]["stats"];
    let written = shards(&fixture).windows(14).filter(|bytes| bytes == b".input_ids.npy").count();
    assert_eq!((stats["packs"].as_u64().unwrap(), stats["samples"].as_u64().unwrap()), (written as u64, 95));
    assert_eq!(fs::read_to_string(fixture.path().join("run/packs/bad.jsonl")).unwrap().lines().count(), 1);
    // A set of packs in a mixture.
    let packs = fixture.path().join("mine");
    done(&fixture, &["data", "pack"], &["--max-bad", "0.1", "--out", packs.to_str().unwrap()]);
    let mixed = format!("data.train=[{{path: {}}}, {{path: {}}}]", data.join("train.jsonl").display(), packs.display());
    let other = fixture.path().join("other");
    let run_dir = format!("run.dir={}", other.display());
    for command in [&["check"][..], &["run"], &["data", "pack"], &["data", "pack", "--shard", "1/2"]] {
        let text = refused(&fixture, command, &[&mixed, &run_dir]);
        assert!(text.contains("is already packed"), "{command:?}: {text}");
        assert!(!other.exists(), "{command:?} leaves nothing behind");
    }
}

/// A run that was killed after its last checkpoint, before that was evaluated: its actors open the packs again.
#[test]
fn packs_that_were_removed_are_made_again_for_the_last_evaluation() {
    let fixture = Fixture::new(Pictures::Some);
    let words = with(&STEPS, &["data.val_size=8", "eval={every_steps: 5}"]);
    done(&fixture, &["run"], &words);
    let file = fixture.path().join("run/eval.jsonl");
    fs::write(&file, "").unwrap();
    fs::remove_dir_all(fixture.path().join("run/packs")).unwrap();
    let text = done(&fixture, &["run"], &with(&words, &["--resume"]));
    assert!(text.contains("making packs") && !text.contains("nothing to do"), "{text}");
    assert!(!fs::read_to_string(&file).unwrap().is_empty() && !shards(&fixture).is_empty());
}
