//! A run on two hosts: network namespaces of this machine, joined by a virtual cable, with certificates between them.
//! Where namespaces cannot be made the test says so and does nothing.

use crate::fixture::{Fixture, Pictures};
use crate::must::skip;
use crate::processes::{Killed, losses, num_steps, program, wait_until};
use crate::soak::Cell;
use std::process::{Child, Command, Stdio};

/// Two hosts, gone when this is dropped.
struct Hosts([String; 2]);

impl Hosts {
    const ADDRESSES: [&'static str; 2] = ["10.77.0.1", "10.77.0.2"];

    fn new() -> Result<Self, String> {
        let number = std::process::id() % 100_000;
        let hosts = Self(["a", "b"].map(|name| format!("lf{number}{name}")));
        let [a, b] = hosts.0.each_ref().map(String::as_str);
        let ends = [format!("v{a}"), format!("v{b}")];
        ip(&["netns", "add", a])?;
        ip(&["netns", "add", b])?;
        ip(&["link", "add", &ends[0], "netns", a, "type", "veth", "peer", "name", &ends[1], "netns", b])?;
        for ((host, end), address) in [a, b].into_iter().zip(&ends).zip(Self::ADDRESSES) {
            ip(&["-n", host, "addr", "add", &format!("{address}/24"), "dev", end])?;
            ip(&["-n", host, "link", "set", end, "up"])?;
            ip(&["-n", host, "link", "set", "lo", "up"])?;
        }
        Ok(hosts)
    }

    /// Runs the same command on one of them.
    fn on(&self, host: usize, command: &Command) -> Command {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", &self.0[host]]).arg(command.get_program()).args(command.get_args());
        inside.stdout(Stdio::piped()).stderr(Stdio::piped());
        inside
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.0.iter().for_each(|name| drop(ip(&["netns", "del", name])));
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("ip: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("ip {}: {said}", arguments.join(" "))) }
}

#[test]
fn encoders_on_one_host_and_the_foundation_on_another_equal_one_process() {
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(error) => {
            return skip("netns", format!("network namespaces cannot be made here: {error}"));
        }
    };
    let fixture = Fixture::new(Pictures::Some);
    let certs = fixture.path().join("certs").display().to_string();
    let made = Command::new(env!("CARGO_BIN_EXE_loongforge"))
        .args(["certs", "new", "--run", "test", "--out", &certs])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let wide = ["run.deterministic=true", "pools.encoder.replicas=2", "pools.foundation.replicas=2", "train.steps=6"];
    let start = |host: usize, role: &str| -> Child {
        let join = ["--role", role, "--join", "10.77.0.1:6001", "--tls", &certs];
        hosts.on(host, &program(&fixture, "apart", &[&wide[..], &join].concat())).spawn().unwrap()
    };
    let others = [(0, "data"), (0, "foundation"), (0, "foundation"), (1, "encoder"), (1, "encoder")];
    let mut children: Vec<Child> = others.into_iter().map(|(host, role)| start(host, role)).collect();
    children.push(start(0, "scheduler"));
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let alone = program(&fixture, "alone", &wide).output().unwrap();
    assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stderr));
    assert_eq!(losses(&fixture, "alone").len(), 6);
    assert_eq!(losses(&fixture, "apart"), losses(&fixture, "alone"));
}

/// Takes the first step of a run on a host of another name, whose processes cannot be looked at from here.
fn run_elsewhere(fixture: &Fixture) -> Result<Killed, String> {
    let inside = |program: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--uts", "--pid", "--mount-proc", "--kill-child", "sh", "-c"]);
        command.args(["echo far-away > /proc/sys/kernel/hostname && exec \"$@\"", "sh"]).args(program);
        command
    };
    let able = inside(&["true"]).output().map_err(|error| format!("unshare: {error}"))?;
    if !able.status.success() {
        return Err(String::from_utf8_lossy(&able.stderr).into_owned());
    }
    let run = program(fixture, "run", &["train.steps=1000000"]);
    let mut command = inside(&[run.get_program().to_str().unwrap()]);
    command.args(run.get_args()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut elsewhere = Killed(command.spawn().map_err(|error| format!("unshare: {error}"))?);
    wait_until(&mut elsewhere.0, || num_steps(fixture, "run") > 0);
    Ok(elsewhere)
}

fn lock(fixture: &Fixture) -> String {
    std::fs::read_to_string(fixture.path().join("run/run.lock")).unwrap()
}

/// Checks that the run is refused because of the holder's heartbeat.
fn is_refused(fixture: &Fixture) {
    let before = lock(fixture);
    let output = program(fixture, "run", &["train.steps=4", "--overwrite"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("in use by another run") && told.contains("on host far-away"), "{told}");
    assert_eq!(lock(fixture), before);
}

#[test]
fn a_run_on_another_host_keeps_its_folder() {
    let fixture = Fixture::new(Pictures::None);
    match run_elsewhere(&fixture) {
        Ok(mut elsewhere) => {
            is_refused(&fixture);
            assert!(elsewhere.0.try_wait().unwrap().is_none(), "the run elsewhere goes on");
        }
        Err(error) => skip("netns", format!("namespaces cannot be made here: {error}")),
    }
}

#[test]
#[ignore = "soak"]
fn soak_lock_of_another_host() {
    let cells = [("it runs".to_owned(), true), ("it was killed".to_owned(), false)];
    crate::soak::run("lock_of_another_host", &cells, |&runs| {
        let fixture = Fixture::new(Pictures::None);
        let elsewhere = match run_elsewhere(&fixture) {
            Ok(elsewhere) => elsewhere,
            Err(error) => return Ok(Cell::NotRun(error)),
        };
        if runs {
            is_refused(&fixture);
            return Ok(Cell::Passed("refused with exit code 2".to_owned()));
        }
        drop(elsewhere);
        assert!(lock(&fixture).contains("far-away"), "a killed run leaves its lock");
        let begun = std::time::Instant::now();
        let output = program(&fixture, "run", &["train.steps=4", "--overwrite"]).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() || !told.contains("it is taken over if there is no heartbeat for 30 s") {
            return Err(told);
        }
        let seconds = begun.elapsed().as_secs();
        if seconds < 30 {
            return Err(format!("taken over after {seconds} s"));
        }
        Ok(Cell::Passed("taken over after 30 s of silence".to_owned()))
    });
}
