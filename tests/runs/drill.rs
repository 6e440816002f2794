//! `loongforge drill` of a tiny model: real processes, a proxy between them, and the verdict.

use crate::fixture::{Fixture, Pictures};
use crate::sound::omni;
use std::process::{Command, Output};

fn drill(fixture: &Fixture, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loongforge"));
    command.arg("drill").arg(fixture.config_file()).args(arguments);
    command.args(["train.steps=8", "pools.encoder.replicas=2", "scheduler.lease=2s"]);
    command.arg("--out").arg(fixture.path().join("drill")).output().unwrap()
}

#[test]
fn what_goes_wrong_is_made_told_and_found_to_change_nothing() {
    let fixture = Fixture::new(Pictures::All);
    let twin = fixture.path().join("drill/twin").display().to_string();
    for (faults, more) in [
        ("encoder/1: kill at step 2; foundation/0 <-> scheduler: reset at step 4", &[][..]),
        ("* -> *: flip 2%; * -> *: duplicate 10%; encoder/1: kill at before_reduce 3", &["--twin", &twin][..]),
        ("encoder/1 <-> *: partition at step 2 for 6s", &["--twin", &twin][..]),
    ] {
        let output = drill(&fixture, &[&["--faults", faults], more].concat());
        let (said, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.contains("the faults changed nothing"), "{faults}: {said}\n{log}");
        assert!(!said.contains("     0 ×"), "{said}");
        assert!(said.contains("efficiency") && said.contains("weights   identical"), "{said}");
    }
    // A run of another seed is no twin.
    let output = drill(&fixture, &["--faults", "* -> *: duplicate 10%", "--twin", &twin, "run.seed=6"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && said.contains("losses    DIFFER from step 0"), "{said}");
}

#[test]
fn a_script_that_cannot_be_understood_is_refused_at_once() {
    let fixture = Fixture::new(Pictures::None);
    let output = drill(&fixture, &["--faults", "encoder/1: hug at step 2"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && text.contains("unknown fault `hug`"), "{text}");
}

/// A run whose towers are all in pools with names has no pool `encoder`.
#[test]
fn faults_of_a_pool_that_the_run_lacks_are_refused() {
    let fixture = omni();
    for who in ["encoder/0", "foundation_high/0"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_loongforge"));
        command.arg("drill").arg(fixture.config_file()).args(["--faults", &format!("{who}: kill at step 2")]);
        let output = command.args(["pools.audio.replicas=1", "pools.vision.replicas=1"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        let known = "its pools are `scheduler`, `data`, `audio`, `vision`, `foundation`";
        assert!(output.status.code() == Some(2) && text.contains(known), "{who}: {text}");
    }
}
