//! A disk that fills up, and a folder that somebody takes away, under a run.

use crate::fixture::{Fixture, Pictures};
use crate::must::skip;
use crate::processes::{program, wait_until};
use loongforge::core::files::AppendFile;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::process::{Command, Output};

/// A disk writes what still fits its last block: half a line, which the next one would be glued to.
#[test]
fn lines_are_whole_on_a_disk_that_was_full_for_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(dir.path()).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        return skip("mount", "only root may mount a small disk");
    }
    let told = std::panic::catch_unwind(|| {
        let (path, filler) = (dir.path().join("lines"), dir.path().join("filler"));
        fs::write(&filler, [0; 32 << 10]).unwrap();
        let mut file = AppendFile::open(&path).unwrap();
        let line = |number: u32| format!("{number} {}\n", "x".repeat(700));
        let first_lost = (0..).find(|&number| file.append(line(number).as_bytes()).is_err()).unwrap();
        fs::remove_file(&filler).unwrap();
        file.append(line(first_lost + 1).as_bytes()).unwrap();
        let expected: String = (0..first_lost).chain([first_lost + 1]).map(line).collect();
        (first_lost, fs::read_to_string(&path).unwrap() == expected)
    });
    let unmounted = Command::new("umount").arg(dir.path()).status().unwrap();
    let (first_lost, is_whole) = told.unwrap();
    assert!(first_lost > 0 && is_whole && unmounted.success(), "{first_lost} lines before the disk was full");
}

#[test]
fn a_folder_that_is_moved_away_under_a_run_is_missed_aloud_and_made_anew() {
    let fixture = Fixture::new(Pictures::None);
    let [run, aside] = ["run", "aside"].map(|name| fixture.path().join(name));
    let mut child = program(&fixture, "run", &["train.steps=100000", "checkpoint.every_steps=0"]).spawn().unwrap();
    let has_lines = || fs::read_to_string(run.join("metrics.jsonl")).is_ok_and(|text| text.lines().count() >= 2);
    wait_until(&mut child, has_lines);
    fs::rename(&run, &aside).unwrap();
    wait_until(&mut child, has_lines);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(3), "{said}");
    assert_eq!(said.matches("metrics.jsonl was removed or replaced").count(), 1, "{said}");
    assert!(aside.join("metrics.jsonl").is_file() && run.join("checkpoints").is_dir(), "{said}");
}

#[test]
fn a_picture_that_cannot_be_drawn_does_not_fail_a_run() {
    let fixture = Fixture::new(Pictures::None);
    // In the place of the picture's draft there is a folder.
    fs::create_dir_all(fixture.path().join("run/.loss.png.part")).unwrap();
    let output = program(&fixture, "run", &["train.steps=4"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("cannot write the picture"), "{said}");
    assert!(said.contains("trained model") && fixture.path().join("run/checkpoints").is_dir(), "{said}");
}
