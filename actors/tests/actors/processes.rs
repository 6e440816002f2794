//! One process per actor: real processes of this test binary, Unix sockets and shared memory, with fake engines.

use crate::fake::{self, Script, engine, spec};
use crate::recording_observer::recording_observer;
use loongforge_actors::launch::net::{Party, Security, issue, new_authority};
use loongforge_actors::{
    Assignment, EngineFactory, Meeting, RunError, RunSpec, Start, run_in_process, serve_role, serve_scheduler,
};
use loongforge_core::config::Address;
use loongforge_core::message::*;
use loongforge_core::schedule::*;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

static POOLS: LazyLock<PoolSizes> = LazyLock::new(|| PoolSizes::of_roles(2, 2, 1));

/// The variable that tells a child what to do.
const ROLE: &str = "LOONGFORGE_TEST_ROLE";
const ADDRESS: &str = "LOONGFORGE_TEST_ADDRESS";
const FAULT: &str = "LOONGFORGE_TEST_FAULT";
/// Set for runs without shared memory: a folder with certificates, or nothing.
const TLS: &str = "LOONGFORGE_TEST_TLS";

fn meeting(address: &Path, seconds: u64) -> Meeting {
    Meeting {
        address: Address::Unix(address.to_owned()),
        security: Security::plain("a"),
        config: "abc".into(),
        timeout: Duration::from_secs(seconds),
        shared_memory: true,
        store: None,
        journal: None,
    }
}

fn script(fault: &str) -> Script {
    match fault {
        "fails" => Script { failure: Some((ActorId::encoder(1), 20)), ..Script::default() },
        "panics" => Script { failure: Some((ActorId::encoder(1), 20)), panics: true, ..Script::default() },
        _ => Script::default(),
    }
}

fn factory(assignment: Assignment, fault: String) -> EngineFactory {
    Box::new(move || {
        if fault == "killed" && assignment.me == ActorId::encoder(1) {
            let me = rustix::process::getpid();
            rustix::process::kill_process(me, rustix::process::Signal::KILL)?;
        }
        if fault == "asked" && assignment.me == ActorId::foundation(0) {
            let me = rustix::process::getpid();
            rustix::process::kill_process(me, rustix::process::Signal::TERM)?;
            // The scheduler is told meanwhile.
            std::thread::sleep(Duration::from_millis(500));
        }
        if fault == "no weights" && assignment.me == ActorId::foundation(0) {
            return Err("model.safetensors is truncated".into());
        }
        Ok(engine(assignment.me, assignment.pools.data, &script(&fault)))
    })
}

/// Runs the process of one actor; nothing when run as a test.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (address, fault) = (std::env::var(ADDRESS).unwrap(), std::env::var(FAULT).unwrap());
    let role: Role = role.parse().unwrap();
    let mut meeting = Meeting { address: address.parse().unwrap(), ..meeting(Path::new("unused"), 20) };
    if let Ok(dir) = std::env::var(TLS) {
        meeting.shared_memory = false;
        if !dir.is_empty() {
            meeting.security = Security::with_certificates("a", Party::Actor(role), Path::new(&dir)).unwrap();
        }
    }
    let result = serve_role(role, meeting, |it| factory(it, fault));
    if let Err(error) = result {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run_spec(dir: &Path) -> RunSpec {
    RunSpec { lease: Duration::from_secs(2), ..fake::run_spec(dir, spec(&POOLS, 12)) }
}

/// Makes a run with a child process an actor.
fn run(fault: &'static str) -> (Vec<f64>, Result<Outcome, RunError>) {
    let dir = tempfile::tempdir().unwrap();
    let start: Start = Box::new(move |actor, address| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "processes::child", "--nocapture"]);
        command.env(ROLE, actor.role.name()).env(ADDRESS, address.to_string()).env(FAULT, fault);
        command
    });
    let (seen, observer) = recording_observer();
    let result = serve_scheduler(run_spec(dir.path()), meeting(&dir.path().join("join"), 60), Some(start), observer);
    (std::mem::take(&mut seen.lock().unwrap().losses), result)
}

#[test]
fn processes_give_the_losses_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let (seen, observer) = recording_observer();
    run_in_process(run_spec(dir.path()), |it| factory(it, String::new()), observer).unwrap();
    let (losses, result) = run("");
    assert_eq!(result.unwrap(), Outcome::Completed);
    assert_eq!(losses.len(), 12);
    assert_eq!(losses, seen.lock().unwrap().losses);
}

/// The processes are connected as between hosts: sockets on loopback, and tensors over them; in plain text, and by TLS with certificates.
#[test]
fn processes_without_shared_memory_give_the_losses_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let (seen, observer) = recording_observer();
    run_in_process(run_spec(dir.path()), |it| factory(it, String::new()), observer).unwrap();
    let certs = dir.path().join("certs");
    let day = Duration::from_secs(24 * 3600);
    new_authority(&certs, "a", day).unwrap();
    Party::ALL.into_iter().for_each(|party| issue(&certs, "a", party, day).unwrap());
    for (tls, fault) in [(false, ""), (true, ""), (true, "killed")] {
        let dir = tempfile::tempdir().unwrap();
        let folder = if tls { certs.display().to_string() } else { String::new() };
        let start: Start = Box::new(move |actor, address| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "processes::child", "--nocapture"]).env(TLS, &folder);
            command.env(ROLE, actor.role.name()).env(ADDRESS, address.to_string()).env(FAULT, fault);
            command
        });
        let scheduler = Party::Actor(Role::Scheduler);
        let security = match tls {
            true => Security::with_certificates("a", scheduler, &certs).unwrap(),
            false => Security::plain("a"),
        };
        let address = "127.0.0.1:0".parse().unwrap();
        let meeting = Meeting { address, security, shared_memory: false, ..meeting(Path::new("unused"), 60) };
        let (over_sockets, observer) = recording_observer();
        let result = serve_scheduler(run_spec(dir.path()), meeting, Some(start), observer);
        if fault.is_empty() {
            assert_eq!(result.unwrap(), Outcome::Completed);
            assert_eq!(over_sockets.lock().unwrap().losses, seen.lock().unwrap().losses);
        } else {
            assert_eq!(result.unwrap_err().to_string(), "encoder/1: its process ended: signal: 9 (SIGKILL)");
        }
    }
}

#[test]
fn whatever_ends_a_process_is_named() {
    for (fault, cause, lost) in [
        ("fails", "encoder/1: injected failure", false),
        ("panics", "encoder/1: panicked: injected panic", false),
        ("killed", "encoder/1: its process ended: signal: 9 (SIGKILL)", true),
        ("no weights", "foundation/0: model.safetensors is truncated", false),
    ] {
        let (_, result) = run(fault);
        let error = result.unwrap_err();
        assert_eq!(error.to_string(), cause);
        assert!(matches!(&error, RunError::Failed(failure) if failure.is_loss() == lost), "{error:?}");
    }
}

#[test]
fn an_actor_whose_process_is_asked_to_stop_stops_the_run_in_order() {
    let (_, result) = run("asked");
    assert_eq!(result.unwrap(), Outcome::Preempted);
}

#[test]
fn a_scheduler_that_is_absent_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = serve_role(Role::Data, meeting(&dir.path().join("join"), 0), |it| factory(it, String::new()));
    assert!(error.unwrap_err().to_string().starts_with("no scheduler listens at"));
}

#[test]
fn missing_actors_are_named_and_a_dead_scheduler_s_socket_is_no_obstacle() {
    let dir = tempfile::tempdir().unwrap();
    let address = dir.path().join("join");
    drop(std::os::unix::net::UnixListener::bind(&address).unwrap());
    assert!(address.exists());
    let error = serve_scheduler(run_spec(dir.path()), meeting(&address, 0), None, recording_observer().1).unwrap_err();
    let wanted = "data/0, data/1, encoder/0, encoder/1, foundation/0 did not join";
    assert!(error.to_string().starts_with(wanted), "{error}");
    assert!(!address.exists());
}

#[test]
fn an_address_in_use_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let address = dir.path().join("join");
    let _other = std::os::unix::net::UnixListener::bind(&address).unwrap();
    let error = serve_scheduler(run_spec(dir.path()), meeting(&address, 0), None, recording_observer().1).unwrap_err();
    assert!(error.to_string().starts_with("another scheduler listens at"), "{error}");
    assert!(address.exists());
}
