//! A folder has one run at a time: whoever comes second changes nothing.

use crate::fixture::Fixture;
use crate::soak::{self, Cell};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A run of four steps, each saved, whose process has stopped itself in the third one.
struct Frozen(Child);

impl Frozen {
    fn new(fixture: &Fixture, processes: bool) -> Self {
        // With processes it is the scheduler, whose folder it is, that stops.
        let (faults, how): (_, &[&str]) = match processes {
            true => ("scheduler/0@publish_rename:2=freeze", &["--processes"]),
            false => ("foundation/0@before_commit:3=freeze", &[]),
        };
        let child = Command::new(env!("CARGO_BIN_EXE_loongforge"))
            .args(["run", "run.yaml", "train.steps=4", "checkpoint.every_steps=1", "log.tensorboard=true"])
            .args(how)
            .current_dir(fixture.path("."))
            .env("LOONGFORGE_FAULTS", faults)
            .env("OMP_NUM_THREADS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(fixture.path("first")).unwrap())
            .spawn()
            .unwrap();
        let frozen = Self(child);
        while frozen.stopped().is_none() {
            std::thread::sleep(Duration::from_millis(20));
        }
        frozen
    }

    /// Returns the process that has stopped: this one or a child of it.
    fn stopped(&self) -> Option<u32> {
        let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
        let children = read(format!("/proc/{0}/task/{0}/children", self.0.id()));
        let all = children.split_whitespace().map(|pid| pid.parse().unwrap()).chain([self.0.id()]);
        let is_stopped =
            |pid: &u32| read(format!("/proc/{pid}/stat")).rsplit_once(") ").is_some_and(|s| s.1.starts_with('T'));
        all.into_iter().find(is_stopped)
    }

    /// Lets it go on to its end.
    fn ends(mut self) -> Option<i32> {
        let stopped = self.stopped().unwrap();
        kill_process(Pid::from_raw(stopped as i32).unwrap(), Signal::CONT).unwrap();
        self.0.wait().unwrap().code()
    }
}

/// Returns the folder's files when the first run's other processes wait for the one that has stopped.
fn at_rest(fixture: &Fixture) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut before = fixture.contents("run");
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let now = fixture.contents("run");
        if now == before {
            return now;
        }
        before = now;
    }
}

const SECOND: [&[&str]; 6] = [
    &[],
    &["--overwrite"],
    &["--overwrite", "--processes"],
    &["--resume"],
    &["--resume", "--processes"],
    // Its own folder, and the checkpoints of the first one.
    &["--overwrite", "run.dir=other", "checkpoint.dir=run/checkpoints"],
];

fn second_is_refused(processes: bool, seconds: &[&[&str]]) -> Result<Cell, String> {
    let fixture = Fixture::new();
    let first = Frozen::new(&fixture, processes);
    let before = at_rest(&fixture);
    let links = || std::fs::read_link(fixture.path("run/scheduler.sock")).ok();
    let socket = links();
    for second in seconds {
        let said = fixture.start(&[&["run", "run.yaml", "train.steps=2"], *second].concat());
        let holder = format!("process {} on host ", first.0.id());
        if said.code != 2 || !said.err.contains(&holder) {
            return Err(format!("{second:?} ends with {}: {}", said.code, said.err));
        }
        if fixture.contents("run") != before || links() != socket {
            return Err(format!("{second:?} has changed the first one's folder"));
        }
    }
    if first.ends() != Some(0) {
        return Err(format!("the first run: {}", fixture.read("first")));
    }
    let steps = fixture.read("run/metrics.jsonl").lines().count();
    match (steps, fixture.path("run/checkpoints/step-00000004").is_dir(), fixture.path("run/run.lock").exists()) {
        (4, true, false) => Ok(Cell::Passed(String::new())),
        left => Err(format!("steps, last checkpoint, lock: {left:?}")),
    }
}

/// Starts two runs at the same moment: one of them goes to its end, and its files are its own.
fn one_of_two_is_refused(processes: bool) -> Result<Cell, String> {
    let fixture = Fixture::new();
    let how: &[&str] = if processes { &["--processes"] } else { &[] };
    let start = |name: &str| {
        Command::new(env!("CARGO_BIN_EXE_loongforge"))
            .args(["run", "run.yaml", "train.steps=4", "checkpoint.every_steps=2"])
            .args(how)
            .current_dir(fixture.path("."))
            .env("OMP_NUM_THREADS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(fixture.path(name)).unwrap())
            .spawn()
            .unwrap()
    };
    let mut codes = ["first", "second"].map(start).map(|mut child| child.wait().unwrap().code());
    codes.sort();
    if codes != [Some(0), Some(2)] {
        return Err(format!("{codes:?}: {}{}", fixture.read("first"), fixture.read("second")));
    }
    let steps = fixture.read("run/metrics.jsonl").lines().count();
    let verified = fixture.start(&["checkpoint", "verify", "run/checkpoints/step-00000004"]);
    match (steps, verified.code, fixture.path("run/run.lock").exists()) {
        (4, 0, false) => Ok(Cell::Passed(String::new())),
        left => Err(format!("steps, code of verify, lock: {left:?}: {}", verified.err)),
    }
}

#[test]
fn one_of_two_runs_that_start_together_is_refused() {
    one_of_two_is_refused(false).unwrap();
}

#[test]
fn a_second_run_is_refused_and_changes_nothing() {
    second_is_refused(false, &SECOND).unwrap();
}

#[test]
#[ignore = "soak"]
fn soak_two_runs() {
    let mut cells = Vec::new();
    for (first, processes) in [("threads", false), ("processes", true)] {
        cells.push((format!("{first}, two at once"), (processes, None)));
        for second in SECOND {
            cells.push((format!("{first}, then {second:?}"), (processes, Some(second))));
        }
    }
    soak::run("two_runs", &cells, |(processes, second)| match second {
        Some(second) => second_is_refused(*processes, &[second]),
        None => one_of_two_is_refused(*processes),
    });
}
