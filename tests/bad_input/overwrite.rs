//! `--overwrite` that is killed, or fails, at any moment: one of the two runs is whole, and no other one is there.

use crate::fixture::Fixture;
use crate::soak::{self, Cell};
use loongforge::core::engine::fault::FOLDER_POINTS;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns a copy of a trained fixture: training takes longer than copying.
fn copied(trained: &Fixture) -> Fixture {
    let fixture = Fixture::empty();
    let copied = Command::new("cp").arg("-a").arg(trained.path(".")).arg(fixture.path(".")).status().unwrap();
    assert!(copied.success());
    fixture
}

fn trained() -> Fixture {
    let fixture = Fixture::trained();
    // What is the user's stays where it is.
    fixture.write("run/data/mine.jsonl", "mine");
    fixture
}

/// Returns the run as it is found, without what a run that took no step left to say why.
fn contents(fixture: &Fixture) -> BTreeMap<PathBuf, Vec<u8>> {
    let failed = [fixture.path("run/failed-overwrite"), fixture.path("run/checkpoints/failed-overwrite")];
    let is_failed = |path: &Path| failed.iter().any(|failed| path.starts_with(failed));
    fixture.contents("run").into_iter().filter(|(path, _)| !is_failed(path)).collect()
}

/// A run in which no step is applied ends with exit code 5, and the one before is put back.
const NO_STEP: &str = " foundation/0@nan_gradient:1-99=nan";

struct Kill {
    point: &'static str,
    nth: u32,
    action: &'static str,
    args: &'static [&'static str],
}

/// Returns whether the point was come to.
fn one_run_is_left(trained: &Fixture, kill: &Kill) -> Result<bool, String> {
    let Kill { point, nth, action, args } = kill;
    let fixture = copied(trained);
    let before: BTreeMap<PathBuf, Vec<u8>> = contents(&fixture);
    let mut faults = format!("scheduler/0@{point}:{nth}={action}");
    let mut words = vec!["run", "run.yaml", "--overwrite", "run.seed=6", "checkpoint.every_steps=1"];
    if point.starts_with("back_") {
        faults += NO_STEP;
        words.push("train.steps=9");
    }
    let said = fixture.start_in(&[&words[..], args].concat(), &[("LOONGFORGE_FAULTS", &faults)]);
    let is_come_to = said.err.contains(&format!("injected at {point}"));
    let is_new = |fixture: &Fixture| {
        fixture.path("run/config.yaml").exists() && fixture.read("run/config.yaml").contains("seed: 6")
    };
    if said.code == 0 && !(is_new(&fixture) && fixture.path("run/checkpoints/step-00000001").is_dir()) {
        return Err(format!("the new run ended with 0 and is not there: {}", said.err));
    }
    // The next start, which finds a run that it does not touch, or none.
    let next = fixture.start(&["run", "run.yaml"]);
    let left = |path: &Path| path.components().any(|part| part.as_os_str().to_string_lossy().starts_with(".run"));
    if let Some(left) = contents(&fixture).keys().find(|path| left(path)) {
        return Err(format!("{} is left; {}", left.display(), next.err));
    }
    let is_whole = match next.code {
        2 if next.err.contains("already holds a run") => contents(&fixture) == before || is_new(&fixture),
        0 => fixture.read("run/metrics.jsonl").lines().count() == 2 && point.starts_with("aside_removed"),
        _ => false,
    };
    if !is_whole {
        return Err(format!("code {}, then {}: {}{}", said.code, next.code, said.err, next.err));
    }
    match fixture.read("run/data/mine.jsonl").as_str() {
        "mine" => Ok(is_come_to),
        other => Err(format!("the user's file is {other}")),
    }
}

#[test]
fn one_of_two_runs_is_left_wherever_overwrite_is_killed() {
    let trained = trained();
    for (point, nth) in [("aside_move", 3), ("aside_moved", 1), ("aside_removed", 1), ("back_clear", 2)] {
        let kill = Kill { point, nth, action: "kill", args: &[] };
        assert_eq!(one_run_is_left(&trained, &kill), Ok(true), "{point} {nth}");
    }
}

/// The next run has steps of the same numbers: a link that stayed would call one of them the best.
#[test]
fn the_best_checkpoint_and_samples_of_the_former_run_go_with_it() {
    let fixture = trained();
    let best = fixture.path("run/checkpoints/best");
    std::os::unix::fs::symlink("step-00000002", &best).unwrap();
    fixture.write("run/samples/step-00000002/0000.png", "a picture");
    let failed = fixture
        .start_in(&["run", "run.yaml", "--overwrite", "train.steps=9"], &[("LOONGFORGE_FAULTS", NO_STEP.trim_start())]);
    assert_eq!(failed.code, 5, "{}", failed.err);
    assert_eq!(std::fs::read_link(&best).unwrap(), Path::new("step-00000002"));
    assert!(fixture.path("run/samples/step-00000002/0000.png").is_file());
    let said = fixture.succeeds(&["run", "run.yaml", "--overwrite", "run.seed=6"]);
    assert!(!said.err.contains("lowest held-out loss") && !said.out.contains("lowest held-out loss"), "{}", said.err);
    assert!(best.symlink_metadata().is_err() && !fixture.path("run/samples").exists());
    // A folder of that name with anything else in it is the user's.
    fixture.write("run/samples/mine.jsonl", "mine");
    fixture.succeeds(&["run", "run.yaml", "--overwrite", "watch.listen=null"]);
    assert_eq!(fixture.read("run/samples/mine.jsonl"), "mine");
    assert!(!fixture.path("run/watch.json").exists(), "a run without a page has none of the former one");
}

#[test]
fn a_run_that_takes_no_step_leaves_the_one_before_and_says_why() {
    let fixture = copied(&trained());
    let before = contents(&fixture);
    let said = fixture.start_in(
        &["run", "run.yaml", "--overwrite", "run.seed=6"],
        &[("LOONGFORGE_FAULTS", "scheduler/0@aside_moved=full")],
    );
    assert!(said.code == 1 && contents(&fixture) == before, "{}", said.err);
    assert!(said.err.contains("the previous run was restored"), "{}", said.err);
    let said = fixture.start_in(
        &["run", "run.yaml", "--overwrite", "run.seed=6", "train.steps=9"],
        &[("LOONGFORGE_FAULTS", NO_STEP)],
    );
    let names = |contents: BTreeMap<PathBuf, Vec<u8>>| contents.into_keys().collect::<Vec<_>>();
    assert_eq!(names(contents(&fixture)), names(before.clone()));
    assert!(said.code == 5 && contents(&fixture) == before, "{}", said.err);
    assert!(said.err.contains("took no step; what it wrote is in"), "{}", said.err);
    let kept = fixture.contents("run/failed-overwrite");
    let names: Vec<_> = kept.keys().map(|path| path.file_name().unwrap().to_string_lossy()).collect();
    assert!(names.iter().any(|name| name.starts_with("nonfinite-step-")), "{names:?}");
    // Stopped before its first step, too: the old run can be resumed.
    fixture.succeeds(&["run", "run.yaml", "--resume", "train.steps=3"]);
}

/// More often than a run comes to any point: once for each file and folder that is moved.
const MOST: u32 = 12;

#[test]
#[ignore = "soak"]
fn soak_overwrite_kills() {
    let trained = trained();
    let mut cells = Vec::new();
    for (how, args) in [("threads", &[][..]), ("processes", &["--processes"])] {
        for point in FOLDER_POINTS {
            for action in ["kill", "full"] {
                for nth in 1..=MOST {
                    cells.push((format!("{how}, {action} at {point} {nth}"), Kill { point, nth, action, args }));
                }
            }
        }
    }
    let mut missed = None;
    soak::run("overwrite_kills", &cells, |kill| {
        let this = (kill.point, kill.action, kill.args);
        // Nor is it come to more often.
        let is_come_to = missed != Some(this) && one_run_is_left(&trained, kill)?;
        match (is_come_to, kill.nth) {
            (true, MOST) => Err("a run comes to this point more often than there are cells".into()),
            (true, _) => Ok(Cell::Passed(String::new())),
            (false, 1) => Err("the run did not come to this point".into()),
            (false, _) => {
                missed = Some(this);
                Ok(Cell::NotRun("a run does not come to this point so often".into()))
            }
        }
    });
}
