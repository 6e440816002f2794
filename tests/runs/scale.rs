//! Fewer encoders for a run whose processes were started one by one and meet over TLS, also after its scheduler was killed
//! and started again.

use crate::fixture::{Fixture, Pictures};
use crate::processes::{self, losses, num_steps, program, said, wait_until};
use std::net::TcpListener;
use std::process::{Child, Command, Output};
use std::time::Duration;

const STEPS: &str = "train.steps=25";
/// The fault that slows the run, so that it goes on while there is something to be done to it.
const SLOWLY: &str = "foundation/0@before_commit:1-9999=slow";

fn loongforge(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_loongforge")).args(arguments).output().unwrap()
}

#[test]
fn a_run_that_was_killed_is_not_scaled_and_that_is_said() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(dir.path().join("gone.sock"), dir.path().join("scheduler.sock")).unwrap();
    let output = loongforge(&["scale", "--run", dir.path().to_str().unwrap(), "2"]);
    let text = said(&output);
    assert!(output.status.code() == Some(2) && text.contains("no run is active in"), "{text}");
    assert!(text.contains("gone.sock") && !text.contains("--role scheduler"), "{text}");
}

#[test]
fn encoders_are_let_go_over_tls_and_by_a_scheduler_that_was_started_again() {
    let fixture = Fixture::new(Pictures::All);
    let certs = fixture.path().join("certs").display().to_string();
    assert!(loongforge(&["certs", "new", "--run", "test", "--out", &certs]).status.success());
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let wide = [STEPS, "run.deterministic=true", "pools.encoder.replicas=3", "scheduler.lease=2s"];
    let start = |role: &str| -> Child {
        let join = ["--role", role, "--join", &address, "--tls", &certs];
        let mut command = program(&fixture, "apart", &[&wide[..], &join].concat());
        command.env("LOONGFORGE_FAULTS", SLOWLY).spawn().unwrap()
    };
    let scale =
        |encoders: &str| said(&loongforge(&["scale", "--join", &address, "--tls", &certs, "--encoders", encoders]));
    let steps = || num_steps(&fixture, "apart");
    let mut scheduler = start("scheduler");
    let others = ["data", "foundation"].map(start);
    let mut encoders = ["encoder"; 3].map(start).into_iter().collect::<Vec<_>>();
    // Until one encoder has ended, in order.
    let mut let_go = || loop {
        if let Some(place) = encoders.iter_mut().position(|child| child.try_wait().unwrap().is_some()) {
            let output = encoders.remove(place).wait_with_output().unwrap();
            assert!(output.status.success(), "{}", said(&output));
            return encoders.len();
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    wait_until(&mut scheduler, || steps() >= 2);
    let refused = scale("5");
    assert!(refused.contains("start 2 more with --role encoder --pool encoder"), "{refused}");
    assert_eq!(scale("2"), "3 → 2 encoders\n");
    assert_eq!(let_go(), 2);

    scheduler.kill().unwrap();
    scheduler.wait().unwrap();
    let mut scheduler = start("scheduler");
    let before = steps();
    wait_until(&mut scheduler, || steps() > before);
    assert_eq!(scale("1"), "2 → 1 encoder\n");
    assert_eq!(let_go(), 1);

    for child in encoders.into_iter().chain(others).chain([scheduler]) {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }
    processes::run(&fixture, "twin", &wide);
    assert_eq!(losses(&fixture, "twin").len(), 25);
    assert_eq!(losses(&fixture, "apart"), losses(&fixture, "twin"));
}
