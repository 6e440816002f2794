//! Encoders of real models that die while a run goes on: the same losses and the same weights, to the last bit.

use crate::fixture::{Fixture, Pictures};
use crate::processes::{self, losses, num_steps, program, wait_until};
use crate::sound::omni;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output};

const STEPS: usize = 8;
const COMMON: [&str; 3] = ["train.steps=8", "run.deterministic=true", "pools.encoder.replicas=2"];

fn run(fixture: &Fixture, name: &str, faults: &str, arguments: &[&str]) -> Output {
    let mut command = program(fixture, name, arguments);
    command.args(COMMON).arg("--processes").env("LOONGFORGE_FAULTS", faults).output().unwrap()
}

/// Makes the run that nothing happens to.
fn twin(fixture: &Fixture, name: &str, arguments: &[&str]) {
    processes::run(fixture, name, &[&COMMON[..], arguments].concat());
}

fn succeeds(fixture: &Fixture, name: &str, faults: &str, arguments: &[&str]) -> String {
    let output = run(fixture, name, faults, arguments);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{name}: {text}");
    text
}

/// Files of the last checkpoint with the hashes of their contents: weights and optimizer state.
fn hashes(fixture: &Fixture, name: &str) -> BTreeMap<String, String> {
    let manifest = format!("{name}/checkpoints/step-{STEPS:08}/MANIFEST.json");
    let manifest = std::fs::read(fixture.path().join(manifest)).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    let files = manifest["files"].as_object().unwrap().iter();
    let tensors = files.filter(|(name, _)| name.ends_with(".safetensors"));
    tensors.map(|(name, entry)| (name.clone(), entry["sha256"].as_str().unwrap().to_owned())).collect()
}

/// Returns the processes of a run: first the scheduler.
fn children(run: &Child) -> Vec<String> {
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.id())).unwrap();
    children.split_whitespace().map(str::to_owned).collect()
}

fn kill(signal: &str, process: &str) {
    assert!(Command::new("kill").args([signal, process]).status().unwrap().success());
}

#[test]
fn killed_encoders_change_no_bit_of_losses_and_weights() {
    let fixture = Fixture::new(Pictures::All);
    twin(&fixture, "twin", &[]);
    assert_eq!((losses(&fixture, "twin").len(), hashes(&fixture, "twin").len() > 2), (STEPS, true));
    for (name, faults) in [
        ("in-the-forward", "encoder/1@after_send:3=kill"),
        ("before-reducing", "encoder/0@before_reduce:2=kill"),
        ("after-the-commit", "encoder/0@before_commit:3=kill"),
    ] {
        let text = succeeds(&fixture, name, faults, &[]);
        assert!(text.contains("has left"), "{name}: {text}");
        assert_eq!(losses(&fixture, name), losses(&fixture, "twin"), "{name}");
        assert_eq!(hashes(&fixture, name), hashes(&fixture, "twin"), "{name}");
    }
}

/// Each pool loses, gets and lets go encoders of its own; the other one takes no notice.
#[test]
fn encoders_of_two_pools_are_killed_join_and_are_scaled() {
    let fixture = omni();
    let own = ["data.pack.max_tokens=160", "pools.audio.replicas=2", "pools.audio.threads=1"];
    twin(&fixture, "twin", &own);
    let text = succeeds(&fixture, "killed", "audio/1@after_send:2=kill encoder/0@before_reduce:2=kill", &own);
    // Whether those who take their places join before the last step is a matter of the machine.
    for who in ["audio/1 has left", "encoder/0 has left"] {
        assert!(text.contains(who), "{who}: {text}");
    }
    // The last of one pool is followed by another while the other pool waits.
    let one = ["data.pack.max_tokens=160", "pools.audio.threads=1", "model.audio_encoder.freeze=true"];
    let one = [&one[..], &["model.audio_projector.freeze=true", "pools.audio.replicas=1"]].concat();
    twin(&fixture, "frozen", &one);
    let text = succeeds(&fixture, "paused", "audio/0@after_send:2=kill", &one);
    for event in ["no actor of the pool `audio` is left: waiting", "audio/1 joined"] {
        assert!(text.contains(event), "{event}: {text}");
    }

    let slow = "foundation/0@before_commit:1-9999=slow";
    let mut command = program(&fixture, "scaled", &own);
    let mut run = command.args(COMMON).arg("--processes").env("LOONGFORGE_FAULTS", slow).spawn().unwrap();
    let folder = fixture.path().join("scaled");
    let scale = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_loongforge"));
        let output = command.args(["scale", "--run", &folder.display().to_string()]).args(words).output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), text)
    };
    wait_until(&mut run, || num_steps(&fixture, "scaled") >= 1);
    assert_eq!(scale(&["--pool", "audio", "3"]), (Some(0), "2 → 3 encoders of the pool audio\n".to_owned()));
    assert_eq!(scale(&["1"]), (Some(0), "2 → 1 encoder\n".to_owned()));
    for (words, reason) in [
        (&["--pool", "sound", "3"][..], "changes no pool: it has no encoder pool `sound`, but audio, encoder"),
        (&["0"], "its pool `encoder` has none (`pools.encoder.cache_dir`)"),
    ] {
        let (code, text) = scale(words);
        assert!(code == Some(2) && text.contains(reason), "{code:?} {text}");
    }
    let output = run.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("encoder/1 has left: released by the scheduler"), "{text}");
    for name in ["killed", "scaled"] {
        assert_eq!(losses(&fixture, name), losses(&fixture, "twin"), "{name}");
        assert_eq!(hashes(&fixture, name), hashes(&fixture, "twin"), "{name}");
    }
    assert_eq!(losses(&fixture, "paused"), losses(&fixture, "frozen"));
}

#[test]
fn the_run_begins_again_at_its_last_checkpoint_where_the_foundation_dies() {
    let fixture = Fixture::new(Pictures::Some);
    let every = ["checkpoint.every_steps=2"];
    twin(&fixture, "twin", &every);
    // In the second attempt it is one step further when it comes to the point for the fifth time, and so on.
    let text = succeeds(&fixture, "killed", "foundation/0@before_commit:5=kill", &every);
    assert!(text.contains("restarting from"), "{text}");
    assert_eq!(losses(&fixture, "killed"), losses(&fixture, "twin"));
    assert_eq!(hashes(&fixture, "killed"), hashes(&fixture, "twin"));

    let output = run(&fixture, "given-up", "foundation/0@before_commit:1=kill", &["run.max_restarts=1"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(4) && text.contains("foundation/0"), "{text}");
    assert!(text.contains("has no checkpoint: start again with the same command"), "{text}");
    let output = run(&fixture, "lost", "foundation/0@before_commit:5=kill", &[every[0], "run.max_restarts=0"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(4) && text.contains("resume with --resume; the last checkpoint is"), "{text}");
    // The checkpoints are those of the run before, which is restored where the new one takes no step.
    let output = run(&fixture, "lost", "foundation/0@before_commit:1=kill", &["--overwrite", "run.max_restarts=0"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(4) && !text.contains("resume with --resume"), "{text}");
}

/// The other rank fails at once, for want of it in a collective, and before its end is known.
#[test]
fn the_run_begins_again_where_one_of_two_ranks_of_the_foundation_dies() {
    let fixture = Fixture::new(Pictures::Some);
    let arguments = ["checkpoint.every_steps=2", "pools.foundation.replicas=2"];
    twin(&fixture, "twin", &arguments);
    let text = succeeds(&fixture, "killed", "foundation/1@before_commit:5=kill", &arguments);
    assert!(text.contains("foundation/1") && text.contains("restarting from"), "{text}");
    assert_eq!(losses(&fixture, "killed"), losses(&fixture, "twin"));
    assert_eq!(hashes(&fixture, "killed"), hashes(&fixture, "twin"));
}

#[test]
fn a_sample_that_kills_encoders_kills_two_and_is_left_out_of_a_resumed_run_too() {
    let fixture = Fixture::new(Pictures::All);
    let run = |resume: &[&str]| {
        let wide = ["train.steps=8", "run.deterministic=true", "pools.encoder.replicas=3", "--processes"];
        let saves = ["checkpoint.every_steps=2", "checkpoint.keep_last=10"];
        let mut command = program(&fixture, "deadly", &[&wide[..], &saves, resume].concat());
        let output = command.env("LOONGFORGE_FAULTS", "encoder/*@nan_input:s17=kill").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        let deaths = text.lines().filter(|line| line.starts_with("encoder/") && line.contains(" has left: ")).count();
        (deaths, text, losses(&fixture, "deadly"), hashes(&fixture, "deadly"))
    };
    let (deaths, text, first_losses, first_hashes) = run(&[]);
    assert_eq!((deaths, text.matches("item 0 of sample 17)").count()), (2, 2), "{text}");
    let bad = std::fs::read_to_string(fixture.path().join("deadly/bad.jsonl")).unwrap();
    assert!(bad.contains(r#""id":17"#) && bad.contains("killed 2 encoders"), "{bad}");

    // The sample is in the step after this checkpoint.
    let before = format!("--resume={}", fixture.path().join("deadly/checkpoints/step-00000002").display());
    let (deaths, text, losses, hashes) = run(&[&before]);
    assert_eq!(deaths, 0, "{text}");
    assert_eq!((losses.len(), losses, hashes), (STEPS, first_losses, first_hashes));
}

#[test]
fn an_encoder_that_sends_what_is_not_its_own_is_let_go_and_changes_nothing() {
    let fixture = Fixture::new(Pictures::All);
    twin(&fixture, "twin", &[]);
    for (name, faults, why) in [
        ("shape", "encoder/1@lie_shape:2=lie", "has shapes"),
        ("claim", "encoder/1@lie_claim:2-9=lie", "should have been sent by another actor"),
    ] {
        let text = succeeds(&fixture, name, faults, &[]);
        assert!(
            text.contains("encoder/1 has left: foundation/0 rejected its data") && text.contains(why),
            "{name}: {text}"
        );
        assert_eq!(losses(&fixture, name), losses(&fixture, "twin"), "{name}");
        assert_eq!(hashes(&fixture, name), hashes(&fixture, "twin"), "{name}");
    }
}

#[test]
fn a_scheduler_that_is_killed_among_its_processes_is_followed_by_another() {
    let fixture = Fixture::new(Pictures::All);
    twin(&fixture, "twin", &[]);
    let mut command = program(&fixture, "killed", &COMMON);
    // It goes on until it is found.
    command.arg("--processes").env("LOONGFORGE_FAULTS", "foundation/0@before_commit:3-8=slow");
    let mut run = command.spawn().unwrap();
    wait_until(&mut run, || num_steps(&fixture, "killed") >= 2);
    kill("-9", &children(&run)[0]);
    let output = run.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("a new one takes over") && !text.contains("has left"), "{text}");
    assert_eq!(losses(&fixture, "killed"), losses(&fixture, "twin"));
    assert_eq!(hashes(&fixture, "killed"), hashes(&fixture, "twin"));
}

#[test]
fn a_scheduler_that_is_killed_while_it_stops_is_followed_by_one_that_stops() {
    let fixture = Fixture::new(Pictures::All);
    for (name, has_heard) in [("unheard", false), ("heard", true)] {
        let mut command = program(&fixture, name, &["train.steps=40", "--processes"]);
        // It goes on until it is told to stop.
        let mut run = command.env("LOONGFORGE_FAULTS", "foundation/0@before_commit:3-40=slow").spawn().unwrap();
        wait_until(&mut run, || num_steps(&fixture, name) >= 2);
        let scheduler = &children(&run)[0];
        if !has_heard {
            kill("-STOP", scheduler);
        }
        kill("-TERM", &run.id().to_string());
        std::thread::sleep(std::time::Duration::from_millis(300));
        kill("-9", scheduler);
        let output = run.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{name}: {text}");
        assert!(text.contains("a new one takes over"), "{name}: {text}");
        assert!(losses(&fixture, name).len() < 40, "{name}: {text}");
        assert!(text.contains("stopped on request; resume with --resume"), "{name}: {text}");
    }
}

#[test]
fn a_run_that_is_not_under_way_yet_stops_when_it_is_asked_to() {
    let fixture = Fixture::new(Pictures::All);
    let run = program(&fixture, "early", &["train.steps=40", "--processes"]).spawn().unwrap();
    while children(&run).is_empty() {
        std::thread::yield_now();
    }
    kill("-TERM", &run.id().to_string());
    let output = run.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(!text.contains("takes over"), "{text}");
}

#[test]
fn a_place_that_is_vacant_when_the_scheduler_dies_is_filled_by_the_next_one() {
    let fixture = Fixture::new(Pictures::All);
    let longer = "train.steps=40";
    twin(&fixture, "twin", &[longer]);
    let mut command = program(&fixture, "killed", &COMMON);
    // It goes on until it is told to stop.
    command.args([longer, "--processes"]).env("LOONGFORGE_FAULTS", "foundation/0@before_commit:3-40=slow");
    let mut run = command.spawn().unwrap();
    wait_until(&mut run, || num_steps(&fixture, "killed") >= 2);
    let children = children(&run);
    let said = |process: &str, file: &str| std::fs::read_to_string(format!("/proc/{process}/{file}")).unwrap();
    let is_encoder =
        |process: &str| said(process, "cmdline").contains("encoder") && said(process, "environ").contains("INDEX=1\0");
    let encoder = children[1..].iter().find(|process| is_encoder(process)).unwrap();
    // Nobody hears of the encoder's end.
    kill("-STOP", &children[0]);
    kill("-9", encoder);
    while Path::new(&format!("/proc/{encoder}")).exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    kill("-9", &children[0]);
    let mut text = String::new();
    for line in BufReader::new(run.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        if line.contains("encoder/2 joined") {
            kill("-TERM", &run.id().to_string());
        }
        text += &(line + "\n");
    }
    assert_eq!(run.wait().unwrap().code(), Some(3), "{text}");
    assert!(text.contains("encoder/1 has left: its process ended"), "{text}");
    let (losses, twin) = (losses(&fixture, "killed"), losses(&fixture, "twin"));
    assert!(losses.len() > 2 && losses[..] == twin[..losses.len()], "{losses:?} {twin:?}");
}
