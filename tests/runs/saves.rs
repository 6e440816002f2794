//! Checkpoints that are written beside the steps: the same bytes as ones that steps wait for, whole or not there, and no
//! reason for a run to end while there is hope.

use crate::fixture::{Fixture, Pictures};
use crate::must::skip;
use crate::processes::{self, losses, num_steps, program, wait_until};
use loongforge::core::checkpoint::{Manifest, latest};
use loongforge::core::engine::fault::SAVE_POINTS;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const COMMON: [&str; 3] = ["train.steps=8", "checkpoint.every_steps=2", "run.deterministic=true"];

fn checkpoints(fixture: &Fixture, name: &str) -> PathBuf {
    fixture.path().join(name).join("checkpoints")
}

/// Returns, for every visible checkpoint, each of which is whole, the hashes of tensors.
fn hashes(dir: &Path) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with("step-") {
            let manifest = Manifest::read(&entry.path()).unwrap();
            manifest.verify(&entry.path()).unwrap();
            let tensors = manifest.files.into_iter().filter(|(name, _)| name.ends_with(".safetensors"));
            found.insert(name, tensors.map(|(_, file)| file.sha256).collect());
        }
    }
    found
}

fn last(fixture: &Fixture, name: &str) -> Vec<String> {
    hashes(&checkpoints(fixture, name))
        .remove("step-00000008")
        .unwrap_or_else(|| panic!("{name} is not saved at its end"))
}

fn run(fixture: &Fixture, name: &str, faults: &str, arguments: &[&str]) -> (Output, String) {
    let mut command = program(fixture, name, &COMMON);
    let output = command.args(arguments).arg("--processes").env("LOONGFORGE_FAULTS", faults).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, text)
}

fn succeeds(fixture: &Fixture, name: &str, faults: &str, arguments: &[&str]) -> String {
    let (output, text) = run(fixture, name, faults, arguments);
    assert!(output.status.success(), "{name}: {text}");
    text
}

#[test]
fn written_beside_the_steps_they_are_the_same_files() {
    let fixture = Fixture::new(Pictures::Some);
    let layouts: [&[&str]; 7] = [
        &[],
        // Who is slower gets less otherwise, and sums go another way.
        &["pools.encoder.replicas=2", "run.deterministic=true", "train.precision=bf16"],
        &["pools.foundation.tensor_parallel=2"],
        &["pools.foundation.context_parallel=2"],
        &["pools.foundation.pipeline_parallel=2"],
        &["pools.foundation.replicas=2", "pools.foundation.zero=3"],
        &[
            "pools.foundation.replicas=2",
            "pools.foundation.zero=1",
            "pools.placement=colocated",
            "pools.encoder.replicas=2",
        ],
    ];
    for (number, layout) in layouts.into_iter().enumerate() {
        let found = ["true", "false"].map(|in_background| {
            let dir = fixture.path().join(format!("{number}-{in_background}"));
            let (dir, how) = (dir.display().to_string(), format!("checkpoint.async={in_background}"));
            let to = format!("checkpoint.dir={dir}");
            let common =
                ["train.steps=4", "checkpoint.every_steps=1", "checkpoint.keep_last=9", "train.micro_batch_size=2"];
            fixture.run(&[&common[..], layout, &[&how, &to]].concat(), None);
            let whole = |name: &String| {
                let files = Manifest::read(&Path::new(&dir).join(name)).unwrap().files;
                files.into_iter().map(|(name, file)| (name, file.sha256)).collect::<Vec<_>>()
            };
            // The index and all that is beside the tensors too.
            hashes(Path::new(&dir)).keys().map(whole).collect::<Vec<_>>()
        });
        assert_eq!(found[0].len(), 4, "{layout:?}");
        assert_eq!(found[0], found[1], "{layout:?}");
    }
}

#[test]
fn a_death_at_any_point_of_a_save_leaves_the_ones_before() {
    let fixture = Fixture::new(Pictures::Some);
    processes::run(&fixture, "twin", &COMMON);
    let (whole, steps) = (last(&fixture, "twin"), losses(&fixture, "twin"));
    for point in SAVE_POINTS {
        let name = format!("killed-at-{point}");
        match point.starts_with("save") {
            // Two files a checkpoint: the second checkpoint of each attempt is torn, and never the first.
            true => {
                let text = succeeds(&fixture, &name, &format!("foundation/0@{point}:3=kill"), &[]);
                assert!(text.contains("restarting from"), "{name}: {text}");
            }
            // Another scheduler follows, and comes to the same point again; one too many, and the run is lost.
            false => {
                let (output, text) = run(&fixture, &name, &format!("scheduler/0@{point}:2=kill"), &[]);
                assert!(text.contains("a new one takes over"), "{name}: {text}");
                hashes(&checkpoints(&fixture, &name));
                if !output.status.success() {
                    assert_eq!(output.status.code(), Some(4), "{name}: {text}");
                    succeeds(&fixture, &name, "", &["--resume"]);
                }
            }
        }
        assert_eq!(last(&fixture, &name), whole, "{name}");
        assert_eq!(losses(&fixture, &name), steps, "{name}");
        let left = fs::read_dir(checkpoints(&fixture, &name)).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(left.into_iter().all(|name| name.to_str().unwrap().starts_with("step-")), "{name}");
    }
}

#[test]
fn a_full_disk_is_tried_again_and_ends_the_run_only_in_the_end() {
    let fixture = Fixture::new(Pictures::Some);
    processes::run(&fixture, "twin", &COMMON);
    let full = "foundation/0@save_create:3-4=full scheduler/0@publish_write:12=full";
    let text = succeeds(&fixture, "full-for-a-while", full, &[]);
    assert!(text.contains("ALARM") && text.contains("no storage space"), "{text}");
    assert_eq!(last(&fixture, "full-for-a-while"), last(&fixture, "twin"));
    assert_eq!(losses(&fixture, "full-for-a-while"), losses(&fixture, "twin"));

    let full = "foundation/0@save_sync:3-99=full";
    let (output, text) = run(&fixture, "full", full, &["checkpoint.max_failures=2"]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("`checkpoint.max_failures`"), "{text}");
    let left = hashes(&checkpoints(&fixture, "full"));
    assert_eq!(left.keys().collect::<Vec<_>>(), ["step-00000002"], "the one before is as it was");
}

/// A disk for one checkpoint and a half: the first one stays.
#[test]
fn a_small_disk_keeps_what_it_has() {
    let fixture = Fixture::new(Pictures::None);
    processes::run(&fixture, "twin", &COMMON);
    let newest = latest(&checkpoints(&fixture, "twin")).unwrap().unwrap();
    let size: u64 = Manifest::read(&newest).unwrap().files.values().map(|file| file.bytes).sum();
    let disk = checkpoints(&fixture, "small");
    fs::create_dir_all(&disk).unwrap();
    let options = format!("size={}", size + size / 2 + (1 << 16));
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&disk).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        return skip("mount", "only root may mount a small disk");
    }
    let (output, text) = run(&fixture, "small", "", &["checkpoint.max_failures=2"]);
    let left = std::panic::catch_unwind(|| hashes(&disk));
    let unmounted = Command::new("umount").arg(&disk).status();
    assert!(output.status.code() == Some(1) && text.contains("space"), "{text}");
    assert_eq!(left.unwrap().keys().collect::<Vec<_>>(), ["step-00000002"]);
    assert!(unmounted.unwrap().success());
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn asked_to_stop_while_it_saves_a_run_saves_its_last_step_and_goes_on_from_there() {
    let fixture = Fixture::new(Pictures::Some);
    processes::run(&fixture, "twin", &COMMON);
    let mut command = program(&fixture, "stopped", &COMMON);
    // Nobody waits for the first checkpoint: steps go on while it is written.
    command.arg("--processes").env("LOONGFORGE_FAULTS", "foundation/0@save_sync:1-99=slow");
    let mut child = command.spawn().unwrap();
    wait_until(&mut child, || num_steps(&fixture, "stopped") >= 3);
    signal(&child, rustix::process::Signal::TERM);
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&stderr);
    // On a machine that is slow to tell, all steps may be done.
    assert!([Some(0), Some(3)].contains(&status.code()), "{text}");
    let newest = latest(&checkpoints(&fixture, "stopped")).unwrap().unwrap();
    let manifest = Manifest::read(&newest).unwrap();
    assert_eq!(manifest.num_steps, num_steps(&fixture, "stopped") as u64, "{text}");
    if status.code() == Some(3) {
        succeeds(&fixture, "stopped", "", &["--resume"]);
    }
    assert_eq!(last(&fixture, "stopped"), last(&fixture, "twin"));
    assert_eq!(losses(&fixture, "stopped"), losses(&fixture, "twin"));
}

#[test]
fn a_checkpoint_can_be_asked_for_by_a_signal() {
    let fixture = Fixture::new(Pictures::None);
    let arguments = ["train.steps=100000", "checkpoint.every_steps=0", "--processes"];
    let mut child = program(&fixture, "asked", &arguments).spawn().unwrap();
    wait_until(&mut child, || num_steps(&fixture, "asked") >= 1);
    signal(&child, rustix::process::Signal::USR1);
    wait_until(&mut child, || latest(&checkpoints(&fixture, "asked")).unwrap().is_some());
    let saved = hashes(&checkpoints(&fixture, "asked"));
    let then = num_steps(&fixture, "asked");
    wait_until(&mut child, || num_steps(&fixture, "asked") > then);
    // As `timeout` does: to the child, and to the child's group.
    (0..2).for_each(|_| signal(&child, rustix::process::Signal::TERM));
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    assert_eq!(status.code(), Some(3), "{}", String::from_utf8_lossy(&stderr));
    let after = hashes(&checkpoints(&fixture, "asked"));
    assert!(saved.len() == 1 && after.len() == 2, "{saved:?} {after:?}");
    assert!(fixture.path().join("asked/loss.png").is_file(), "a stopped run has its loss curve");
}

/// SIGHUP comes twice, from the shell and from the system, and nothing can be written to the terminal any more.
#[test]
fn a_run_saves_and_stops_where_its_terminal_is_closed_and_goes_on_under_nohup() {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    if u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 == 1 {
        return skip("SIGHUP", "it is ignored here, and so it is by what is started here");
    }
    let fixture = Fixture::new(Pictures::None);
    let arguments = ["train.steps=100000", "checkpoint.every_steps=0"];
    for (name, how) in [("threads", None), ("processes", Some("--processes"))] {
        let mut child = program(&fixture, name, &arguments).args(how).spawn().unwrap();
        wait_until(&mut child, || num_steps(&fixture, name) >= 1);
        drop((child.stdout.take(), child.stderr.take()));
        (0..2).for_each(|_| signal(&child, rustix::process::Signal::HUP));
        assert_eq!(child.wait().unwrap().code(), Some(3), "{name}");
        assert_eq!(hashes(&checkpoints(&fixture, name)).len(), 1, "{name}");
    }
    let run = program(&fixture, "nohup", &arguments);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(run.get_program()).args(run.get_args());
    let mut child = shell.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until(&mut child, || num_steps(&fixture, "nohup") >= 1);
    signal(&child, rustix::process::Signal::HUP);
    let then = num_steps(&fixture, "nohup");
    wait_until(&mut child, || num_steps(&fixture, "nohup") > then + 2);
    signal(&child, rustix::process::Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn a_run_begins_again_from_memory_where_that_is_newer_than_the_disk() {
    let fixture = Fixture::new(Pictures::Some);
    processes::run(&fixture, "twin", &COMMON);
    // There is none on the disk when it dies.
    let arguments = ["checkpoint.every_steps=5", "checkpoint.snapshot_every=1"];
    let text = succeeds(&fixture, "killed", "foundation/0@before_commit:5=kill", &arguments);
    let from = text.split("from memory, after ").nth(1).unwrap_or_else(|| panic!("{text}"));
    let from: u64 = from.split(' ').next().unwrap().parse().unwrap();
    assert!((1..=4).contains(&from), "{text}");
    assert_eq!(losses(&fixture, "killed"), losses(&fixture, "twin"));
    assert_eq!(last(&fixture, "killed"), last(&fixture, "twin"));
}

/// The run waits for the word of who writes: a panic is one.
#[test]
fn a_panic_while_a_checkpoint_is_written_is_a_failed_save() {
    let fixture = Fixture::new(Pictures::None);
    processes::run(&fixture, "twin", &COMMON);
    let text = succeeds(&fixture, "panicked", "foundation/0@save_write:1=panic", &[]);
    assert!(text.contains("ALARM") && text.contains("saving panicked"), "{text}");
    assert_eq!(last(&fixture, "panicked"), last(&fixture, "twin"));
    assert_eq!(losses(&fixture, "panicked"), losses(&fixture, "twin"));
}

#[test]
fn a_run_that_is_to_save_nothing_says_so_and_leaves_no_checkpoint() {
    let fixture = Fixture::new(Pictures::None);
    let arguments = ["checkpoint.every_steps=0", "checkpoint.at_end=false"];
    let text = succeeds(&fixture, "unsaved", "", &arguments);
    let said = text.matches("no checkpoint is written: checkpoint.at_end is false").count();
    assert!(said == 2 && !text.contains("trained model"), "at the beginning and the end: {text}");
    assert_eq!(num_steps(&fixture, "unsaved"), 8);
    assert!(latest(&checkpoints(&fixture, "unsaved")).unwrap().is_none());
    let text = succeeds(&fixture, "some", "", &["checkpoint.every_steps=3", "checkpoint.at_end=false"]);
    assert!(text.contains("the last 2 of 8 steps are in no checkpoint"), "{text}");
    let saved = hashes(&checkpoints(&fixture, "some"));
    assert_eq!(saved.into_keys().collect::<Vec<_>>(), ["step-00000003", "step-00000006"]);
}
