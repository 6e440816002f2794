//! The same program as processes: the same bits as in one process, and clear words where somebody is missing.

use crate::fixture::{Fixture, Pictures};
use crate::sound::omni;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{PipeReader, PipeWriter, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub fn program(fixture: &Fixture, name: &str, arguments: &[&str]) -> Command {
    program_in(fixture.path(), name, arguments)
}

/// Runs the config in the folder `root`.
pub fn program_in(root: &Path, name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loongforge"));
    command.arg("run").arg(root.join("run.yaml"));
    // Tensors, sockets and losses must not depend on where a run writes.
    command.arg(format!("checkpoint.dir={}/{name}/checkpoints", root.display()));
    command.arg(format!("run.dir={}/{name}", root.display())).args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs to the end, in one process unless the arguments say otherwise: the bits are the same, and it starts sooner.
pub fn run(fixture: &Fixture, name: &str, arguments: &[&str]) {
    let output = program(fixture, name, arguments).output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Returns every step's loss as it was written: shortest decimals that read back to the same bits.
pub fn losses(fixture: &Fixture, name: &str) -> Vec<String> {
    losses_in(&fixture.path().join(name))
}

/// Works like [`losses`], of the run in the folder `run`.
pub fn losses_in(run: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let loss = |line: &str| line.split("\"loss\":").nth(1).unwrap().split(',').next().unwrap().to_owned();
    text.lines().map(loss).collect()
}

/// A process that ends with the test.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn num_steps(fixture: &Fixture, name: &str) -> usize {
    let metrics = fixture.path().join(name).join("metrics.jsonl");
    std::fs::read_to_string(metrics).map_or(0, |text| text.lines().count())
}

pub fn wait_until(child: &mut Child, mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn processes_equal_threads() {
    let fixture = Fixture::new(Pictures::Some);
    let cases: [(&str, &[&str]); 3] = [
        // Pictures are decoded in processes of their own as well, as they are unless one says otherwise.
        ("plain", &["security.sandbox=auto"]),
        ("frozen", &["model.image_encoder.freeze=true", "model.image_projector.freeze=true"]),
        ("many", &["run.deterministic=true", "pools.encoder.replicas=2", "pools.data.replicas=2"]),
    ];
    // One more than an epoch has.
    let steps = "train.steps=13";
    for (name, overrides) in cases {
        run(&fixture, name, &[overrides, &[steps]].concat());
        let apart = format!("{name}-processes");
        run(&fixture, &apart, &[overrides, &[steps, "--processes"]].concat());
        let want = losses(&fixture, name);
        assert_eq!(want.len(), 13);
        assert_eq!(losses(&fixture, &apart), want, "{name}");
    }
    let single = ["run.deterministic=true", "pools.placement=colocated", steps];
    run(&fixture, "single", &single);
    assert_eq!(losses(&fixture, "single"), losses(&fixture, "many"));
}

#[test]
fn processes_train_the_same_with_and_without_evaluations() {
    let fixture = Fixture::new(Pictures::Some);
    let common = ["train.steps=6", "pools.foundation.tensor_parallel=2", "train.micro_batch_size=2", "--processes"];
    let path = format!("eval.path={}", fixture.path().join("data/held_out.jsonl").display());
    let evaluates = [path.as_str(), "eval.every_steps=2", "eval.max_new_tokens=3", "eval.save_best=false"];
    run(&fixture, "plain", &common);
    run(&fixture, "evaluated", &[&common[..], &evaluates].concat());
    let want = losses(&fixture, "plain");
    assert_eq!((want.len(), losses(&fixture, "evaluated")), (6, want));
    let weights = |name: &str| {
        let manifest = fixture.path().join(name).join("checkpoints/step-00000006/MANIFEST.json");
        let manifest: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(manifest).unwrap()).unwrap();
        let hash = |file: &str| manifest["files"][file]["sha256"].as_str().unwrap().to_owned();
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"].map(hash)
    };
    assert_eq!(weights("evaluated"), weights("plain"));
    let found = std::fs::read_to_string(fixture.path().join("evaluated/eval.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = found.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let answered =
        |line: &serde_json::Value| (line["step"].as_u64().unwrap(), line["answers"].as_array().unwrap().len());
    assert_eq!(lines.iter().map(answered).collect::<Vec<_>>(), [(2, 8), (4, 8), (6, 8)]);
}

#[test]
fn roles_started_by_hand_make_a_run() {
    let fixture = Fixture::new(Pictures::Some);
    let socket = fixture.path().join("run.sock");
    let start = |role: &str| -> Child {
        program(&fixture, "by-hand", &["--role", role, "--join", socket.to_str().unwrap()]).spawn().unwrap()
    };
    // In any order: whoever comes before the scheduler waits for it.
    let others: Vec<Child> = ["foundation", "data"].map(start).into_iter().collect();
    let scheduler = start("scheduler");
    let last = start("encoder");
    for child in others.into_iter().chain([last, scheduler]) {
        let Output { status, stderr, .. } = child.wait_with_output().unwrap();
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    }
    run(&fixture, "plain", &[]);
    assert_eq!(losses(&fixture, "by-hand"), losses(&fixture, "plain"));
}

/// Each process of an encoder says which of two pools it is in; the one with the role's name needs no saying.
#[test]
fn roles_of_named_pools_started_by_hand_make_a_run() {
    let fixture = omni();
    let socket = fixture.path().join("run.sock");
    let own = [
        "train.steps=4",
        "run.deterministic=true",
        "data.pack.max_tokens=160",
        "pools.encoder.replicas=3",
        "pools.audio.replicas=1",
        "pools.audio.threads=1",
    ];
    let command = |role: &[&str]| {
        let join = ["--join", socket.to_str().unwrap(), "--role"];
        program(&fixture, "by-hand", &[&own[..], &join, role].concat())
    };
    let output = command(&["encoder", "--pool", "sound"]).output().unwrap();
    let text = said(&output);
    assert!(output.status.code() == Some(2) && text.contains("no encoder pool `sound`"), "{text}");
    let roles: [&[&str]; 7] = [
        &["encoder", "--pool", "audio"],
        &["encoder", "--pool", "encoder"],
        &["foundation"],
        &["data"],
        &["encoder"],
        &["encoder"],
        &["scheduler"],
    ];
    for child in roles.map(|role| command(role).spawn().unwrap()) {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }
    run(&fixture, "plain", &own);
    assert_eq!(losses(&fixture, "plain").len(), 4);
    assert_eq!(losses(&fixture, "by-hand"), losses(&fixture, "plain"));
}

fn fails(fixture: &Fixture, name: &str, arguments: &[&str], words: &[&str]) {
    let output = program(fixture, name, arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && !text.contains("panicked"), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

#[test]
fn a_missing_or_doubled_scheduler_is_named() {
    let fixture = Fixture::new(Pictures::None);
    let socket = fixture.path().join("run.sock");
    let join = ["scheduler.join_timeout=1s", "--join", socket.to_str().unwrap(), "--role"];
    fails(&fixture, "a", &[&join[..], &["encoder"]].concat(), &["run.sock"]);
    fails(&fixture, "b", &[&join[..], &["scheduler"]].concat(), &["data", "encoder", "foundation"]);
    let _taken = UnixListener::bind(&socket).unwrap();
    fails(&fixture, "c", &[&join[..], &["scheduler"]].concat(), &["run.sock", "another scheduler listens"]);
}

#[test]
fn a_process_of_another_config_is_refused_for_good_and_the_scheduler_says_so() {
    let fixture = Fixture::new(Pictures::None);
    let socket = fixture.path().join("run.sock");
    let start = |more: &[&str]| {
        let common = ["scheduler.join_timeout=8s", "--join", socket.to_str().unwrap(), "--role"];
        program(&fixture, "other", &[&common[..], more].concat()).spawn().unwrap()
    };
    let (scheduler, other) = (start(&["scheduler"]), start(&["encoder", "run.seed=6"]));
    for (child, code, words) in [
        (other, 2, "the same file and overrides; what differs: run.seed"),
        (scheduler, 75, "a process of the pool encoder is refused: its configuration is not this run's"),
    ] {
        let Output { status, stderr, .. } = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&stderr);
        assert!(status.code() == Some(code) && text.contains(words), "{text}");
    }
}

#[test]
fn what_is_at_the_address_and_no_scheduler_is_named() {
    let fixture = Fixture::new(Pictures::None);
    // The system takes connections for it.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = mute.local_addr().unwrap().to_string();
    let unknown = ("no-such-host.invalid:6001", "after 1 s (failed to lookup");
    for (address, words) in [(mute.as_str(), "said nothing for 1 s"), unknown] {
        let words = [words, address];
        let arguments =
            ["scheduler.join_timeout=1s", "--insecure-allow-plaintext", "--role", "encoder", "--join", address];
        fails(&fixture, "a", &arguments, &words);
    }
}

#[test]
fn an_error_is_printed_once_whatever_the_number_of_processes() {
    let fixture = Fixture::new(Pictures::None);
    let faults = [1, 2, 3].map(|time| format!("foundation/0@nan_gradient:{time}=nan")).join(" ");
    let mut command = program(&fixture, "once", &["--processes", "train.on_nonfinite.max_consecutive=0"]);
    let output = command.env("LOONGFORGE_FAULTS", faults).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<&str> = text.lines().filter(|line| line.contains("error: ")).collect();
    assert!(output.status.code() == Some(5) && errors.len() == 1, "{text}");
    assert!(errors[0].contains("are not both finite"), "{text}");
}

#[test]
fn a_killed_actor_ends_the_run_by_name() {
    let fixture = Fixture::new(Pictures::All);
    let socket = fixture.path().join("run.sock");
    let start = |role: &str| -> Child {
        let arguments = ["train.steps=100000", "--role", role, "--join", socket.to_str().unwrap()];
        program(&fixture, "killed", &arguments).spawn().unwrap()
    };
    let scheduler = start("scheduler");
    let mut others = ["foundation", "data", "encoder"].map(start);
    let metrics = fixture.path().join("killed/metrics.jsonl");
    while !std::fs::metadata(&metrics).is_ok_and(|file| file.len() > 0) {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    others[2].kill().unwrap();
    let output = scheduler.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(4) && text.contains("encoder/0"), "{text}");
    for child in &mut others {
        child.wait().unwrap();
    }
}

#[test]
fn an_encoder_that_is_asked_to_stop_leaves_and_a_foundation_stops_the_run_with_a_checkpoint() {
    let fixture = Fixture::new(Pictures::All);
    let socket = fixture.path().join("run.sock");
    let start = |role: &str| -> Child {
        let wide = ["train.steps=100000", "pools.encoder.replicas=2"];
        let arguments = [&wide[..], &["--role", role, "--join", socket.to_str().unwrap()]].concat();
        program(&fixture, "asked", &arguments).spawn().unwrap()
    };
    let scheduler = start("scheduler");
    let [foundation, data, stays, leaves] = ["foundation", "data", "encoder", "encoder"].map(start);
    let num_steps = || {
        let metrics = std::fs::read_to_string(fixture.path().join("asked/metrics.jsonl"));
        metrics.unwrap_or_default().lines().count()
    };
    let wait_for_steps = |num: usize| {
        while num_steps() < num {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    let ask = |child: &Child| {
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    };
    let code = |child: Child| child.wait_with_output().unwrap().status.code();
    wait_for_steps(2);
    ask(&leaves);
    assert_eq!(code(leaves), Some(3));
    wait_for_steps(num_steps() + 2);
    ask(&foundation);
    let Output { status, stderr, .. } = scheduler.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&stderr);
    assert!(status.code() == Some(3) && text.contains("stopped on request; resume with --resume"), "{text}");
    assert!(text.contains("released by the scheduler") && text.contains("asked to stop"), "{text}");
    assert_eq!([foundation, data, stays].map(code), [Some(3), Some(0), Some(0)], "{text}");
    let folder = fixture.path().join("asked");
    assert!(!folder.join("killers.jsonl").exists() && folder.join("checkpoints").read_dir().unwrap().count() > 0);
}

/// Returns a pipe without room, whose reader is there and reads nothing.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    while poll(&mut [PollFd::new(&writer, PollFlags::OUT)], Some(&at_once)).unwrap() > 0 {
        writer.write_all(&[b'.'; 4096]).unwrap();
    }
    (reader, writer)
}

#[test]
fn a_pipe_that_nobody_reads_holds_up_neither_a_run_nor_its_last_words() {
    let fixture = Fixture::new(Pictures::None);
    let (_reader, writer) = full_pipe();
    let start = |name: &str, arguments: &[&str]| {
        let mut command = program(&fixture, name, arguments);
        Killed(command.stdout(Stdio::null()).stderr(writer.try_clone().unwrap()).spawn().unwrap())
    };
    let ends_with = |Killed(child): &mut Killed, code: i32| {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(60) {
            if let Some(status) = child.try_wait().unwrap() {
                return assert_eq!(status.code(), Some(code));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("it waits for a reader, and should end with {code}");
    };
    // A mistake in the config, and one in the command.
    ends_with(&mut start("mistaken", &["train.no_such_key=1"]), 2);
    ends_with(&mut start("unknown", &["--role", "cook", "--join", "s"]), 2);
    for (name, how) in [("threads", None), ("apart", Some("--processes"))] {
        let arguments = [&["train.steps=100000", "checkpoint.every_steps=0"][..], how.as_slice()].concat();
        let mut child = start(name, &arguments);
        wait_until(&mut child.0, || num_steps(&fixture, name) >= 1);
        let pid = rustix::process::Pid::from_child(&child.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        ends_with(&mut child, 3);
    }
}
