//! A scheduler that is killed wherever it writes its journal, and another that takes over: the engines' processes
//! notice nothing, and the losses are those of a run in which nothing happened.

use crate::fake::{self, Script, engine, rules, spec};
use crate::test_endpoint::test_endpoint;
use loongforge_actors::journal::{Beginning, Journal, OutstandingMessages, Record, Snapshot, is_open, unfinished};
use loongforge_actors::launch::JournalSpec;
use loongforge_actors::{
    Assignment, EngineFactory, Meeting, Observer, Publisher, RunSpec, run_in_process, serve_role, serve_scheduler,
};
use loongforge_core::engine::fault::{FAULTS, JOURNAL_POINTS};
use loongforge_core::message::*;
use loongforge_core::schedule::*;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

static POOLS: LazyLock<PoolSizes> = LazyLock::new(|| PoolSizes::of_roles(1, 2, 1));
const STEPS: u64 = 8;
static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
const ROLE: &str = "LOONGFORGE_TEST_ROLE";
const DIR: &str = "LOONGFORGE_TEST_DIR";
const ADDRESS: &str = "LOONGFORGE_TEST_ADDRESS";
const CUT_AFTER: &str = "LOONGFORGE_TEST_CUT_AFTER";
const FIRST_STEP: &str = "LOONGFORGE_TEST_FIRST_STEP";

fn run_spec(dir: &Path) -> RunSpec {
    let coordinator = CoordinatorSpec { encoders: rules(&POOLS, true, true), ..spec(&POOLS, STEPS) };
    RunSpec { lease: Duration::from_secs(10), ..fake::run_spec(dir, coordinator) }
}

/// Writes a line a step.
struct Lines(PathBuf);

impl Observer for Lines {
    fn step(&mut self, summary: &StepSummary) {
        let mut file = OpenOptions::new().append(true).create(true).open(&self.0).unwrap();
        file.write_all(format!("{} {} {}\n", summary.step, summary.loss, summary.ledger).as_bytes()).unwrap();
    }

    fn bad(&mut self, _: &[SkippedSample]) {}

    fn publisher(&mut self) -> Publisher {
        Box::new(|draft| Ok(draft.dir.clone()))
    }
}

fn lines(dir: &Path) -> Vec<String> {
    let text = fs::read_to_string(dir.join("steps")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn make(it: Assignment) -> EngineFactory {
    let script = Script { first_step: first_step(), ..Script::default() };
    Box::new(move || Ok(engine(it.me, it.pools.data, &script)))
}

/// Returns the step from which the child of a test goes on.
fn first_step() -> u64 {
    std::env::var(FIRST_STEP).map_or(0, |step| step.parse().unwrap())
}

/// Runs the process of one actor, or of the scheduler; nothing when run as a test.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let dir = PathBuf::from(std::env::var(DIR).unwrap());
    let address = std::env::var(ADDRESS).unwrap();
    let result = match role.parse().unwrap() {
        Role::Scheduler => {
            let path = dir.join("journal");
            let take_over_at = is_open(&path, "abc").then(|| StepId(lines(&dir).len() as u64));
            let cut_after = std::env::var(CUT_AFTER).unwrap().parse().unwrap();
            let observer = Box::new(Lines(dir.join("steps")));
            let kept = Meeting {
                journal: Some(JournalSpec { path, take_over_at, cut_after }),
                ..test_endpoint(address.parse().unwrap())
            };
            let mut spec = run_spec(&dir);
            spec.coordinator.first_step = StepId(first_step());
            // Who takes over does not know what the run was resumed from.
            spec.coordinator.is_kept = first_step() == 0 || take_over_at.is_some();
            serve_scheduler(spec, kept, None, observer).map(drop)
        }
        role => serve_role(role, test_endpoint(address.parse().unwrap()), make),
    };
    if let Err(error) = result {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn start(role: Role, dir: &Path, address: &str, faults: &str, first_step: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "journal::child", "--nocapture"]);
    command.env(ROLE, role.name()).env(DIR, dir).env(ADDRESS, address).env(FAULTS, faults);
    command.env(FIRST_STEP, first_step.to_string());
    // At every step, but where what is written between is to be read again.
    command.env(CUT_AFTER, if faults.contains("_write:57") { u64::MAX } else { 0 }.to_string());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn free_address() -> String {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().to_string()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// Returns the lines of a run whose scheduler is killed at these points, one life after the other.
fn run(faults: &[String]) -> Vec<String> {
    run_at(faults, None, 0)
}

/// Runs the scheduler at a Unix socket of this name in the run's folder, or over TCP; from this step on.
fn run_at(faults: &[String], socket: Option<&str>, first_step: u64) -> Vec<String> {
    // Ports that are free are others' a moment later.
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let address = match socket {
        Some(name) => dir.path().join(name).display().to_string(),
        None => free_address(),
    };
    let start = |role, faults: Option<&String>| {
        start(role, dir.path(), &address, faults.map_or("", String::as_str), first_step)
    };
    let mut lives = faults.iter();
    let mut scheduler = start(Role::Scheduler, lives.next());
    let others: Vec<Child> = POOLS.actors().map(|actor| start(actor.role, None)).collect();
    loop {
        let output = scheduler.wait_with_output().unwrap();
        if output.status.success() {
            break;
        }
        assert!(output.status.code().is_none(), "{faults:?}: it is killed, and does not fail: {}", said(&output));
        scheduler = start(Role::Scheduler, lives.next());
    }
    for child in others {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{faults:?}: {}", said(&output));
    }
    assert!(!is_open(&dir.path().join("journal"), "abc"), "{faults:?}: it has ended");
    lines(dir.path())
}

fn twin() -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    run_in_process(run_spec(dir.path()), make, Box::new(Lines(dir.path().join("steps")))).unwrap();
    assert_eq!(lines(dir.path()).len() as u64, STEPS);
    lines(dir.path())
}

#[test]
fn killed_wherever_it_writes_another_goes_on_in_its_place() {
    let twin = twin();
    for point in JOURNAL_POINTS {
        // The first records are those of the run's beginning: without them there is nobody to go on for.
        let turns: &[u32] = if point.ends_with("write") { &[12, 31, 57] } else { &[1, 4, 7] };
        for nth in turns {
            let fault = format!("scheduler/0@{point}:{nth}=kill");
            assert_eq!(run(std::slice::from_ref(&fault)), twin, "{fault}");
        }
    }
}

#[test]
fn killed_again_and_again_the_run_comes_to_its_end() {
    let faults = ["torn_write:20", "after_rename:2", "torn_cut:1", "after_sync:1"];
    let faults: Vec<String> = faults.iter().map(|point| format!("scheduler/0@{point}=kill")).collect();
    assert_eq!(run(&faults), twin());
}

#[test]
fn over_a_unix_socket_another_takes_its_place_too() {
    let faults = ["torn_write:31", "after_sync:2"].map(|point| format!("scheduler/0@{point}=kill"));
    assert_eq!(run_at(&faults, Some("socket"), 0), twin());
}

/// All steps of which are done, by a checkpoint elsewhere: the run saves it and ends.
#[test]
fn another_goes_on_with_what_was_resumed_from_another_folder() {
    for nth in [11, 12] {
        let fault = format!("scheduler/0@after_write:{nth}=kill");
        assert!(run_at(&[fault], None, STEPS).is_empty());
    }
}

#[test]
fn a_journal_tells_of_the_steps_from_its_last_snapshot_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let mut journal = Journal::create(&path).unwrap();
    let begin = Beginning {
        config: "abc".into(),
        first_step: StepId(2),
        state: SchedulerState::default(),
        resume: None,
        is_kept: true,
        rendezvous: dir.path().to_owned(),
    };
    for record in [Record::Began(Box::new(begin)), Record::Life(1), Record::Input(Input::SaveRequested)] {
        journal.append(&record);
    }
    drop(journal);
    assert_eq!(unfinished(&path, "abc").unwrap().first_step(), StepId(2));
    let (mut journal, _) = Journal::open(&path).unwrap();
    let coordinator = Coordinator::new(CoordinatorSpec { first_step: StepId(5), ..spec(&POOLS, STEPS) });
    journal.cut(Snapshot { outstanding: OutstandingMessages::default(), coordinator: coordinator.snapshot() });
    drop(journal);
    assert_eq!(unfinished(&path, "abc").unwrap().first_step(), StepId(5));
}
