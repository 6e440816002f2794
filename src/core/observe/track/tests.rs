use super::wandb::tests::steps_in;
use super::*;
use crate::config::{Log, Mlflow, Wandb};
use crate::observe::evaluation::EvalRecord;
use crate::observe::metrics::StepMetrics;
use crate::observe::score::{ScoredAnswer, Scoring};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

fn metrics(step: u64, loss: f64) -> StepMetrics {
    StepMetrics { step, loss, tokens: 100, ..StepMetrics::default() }
}

fn record(step: u64, loss: f64) -> EvalRecord {
    let answer = ScoredAnswer { prompt: "p".into(), answer: "a, \"b\"\n".into(), expected: "e".into(), correct: false };
    EvalRecord { step, set: "val".into(), ..EvalRecord::default() }
        .with_loss(loss, 1)
        .with_answers(vec![answer], &Scoring::default())
}

fn log() -> Log {
    Log { wandb: Some(Wandb::default()), mlflow: Some(Mlflow::default()), ..Log::default() }
}

fn open(dir: &Path, first_step: u64) -> Trackers {
    let config = json!({"train": {"lr": 0.001}});
    let run = TrackedRun { name: "a", dir, config: &config, version: "1" };
    Trackers::open(&log(), &run, first_step).unwrap()
}

/// Returns the only folder in `dir` whose name begins so.
fn only(dir: &Path, begin: &str) -> PathBuf {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<PathBuf> = entries
        .filter(|path| path.is_dir() && path.file_name().unwrap().to_str().unwrap().starts_with(begin))
        .collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_iter().next().unwrap()
}

#[test]
fn a_resumed_run_goes_on_with_the_same_runs() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("log.txt"), "a line\n").unwrap();
    let mut trackers = open(dir.path(), 0);
    for step in 0..5 {
        trackers.step(&metrics(step, step as f64), || Some(1 << 30)).unwrap();
        if step % 2 == 1 {
            trackers.evaluated(&record(step + 1, 0.5)).unwrap();
        }
    }
    trackers.end(Ending::Stopped).unwrap();
    // Steps 4 on are computed again, and the evaluation before step 4 is not.
    let mut trackers = open(dir.path(), 4);
    (4..6).for_each(|step| trackers.step(&metrics(step, 10.0 + step as f64), || None).unwrap());
    trackers.evaluated(&record(6, 0.25)).unwrap();
    trackers.samples(6, (1, 1), b"png").unwrap();
    trackers.end(Ending::Completed).unwrap();

    let wandb = only(&dir.path().join("wandb"), "offline-run-");
    let id = wandb.file_name().unwrap().to_str().unwrap().rsplit('-').next().unwrap().to_owned();
    let found = steps_in(&wandb.join(format!("run-{id}.wandb")));
    let of = |step: u64, key: &str| {
        let (_, items) = found.iter().find(|(other, _)| *other == step).unwrap();
        items.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone())
    };
    assert_eq!(found.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!((of(3, "train/loss").unwrap(), of(4, "train/loss").unwrap()), ("3.0".into(), "14.0".into()));
    assert_eq!((of(2, "eval/val/loss").unwrap(), of(4, "eval/val/loss").unwrap()), ("0.5".into(), "0.5".into()));
    let table: Value = serde_json::from_str(&of(2, "eval/val/answers").unwrap()).unwrap();
    let table = fs::read_to_string(wandb.join("files").join(table["path"].as_str().unwrap())).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&table).unwrap()["data"], json!([["p", "a, \"b\"\n", "e", "false"]]));
    assert!(of(6, "eval/samples").unwrap().contains("image-file") && wandb.join("files/output.log").is_file());

    let run = only(&only(&dir.path().join("mlruns"), ""), "");
    let steps = |name: &str| -> Vec<String> {
        let text = fs::read_to_string(run.join("metrics").join(name)).unwrap();
        text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    };
    assert_eq!(steps("train/loss"), ["0.0 0", "1.0 1", "2.0 2", "3.0 3", "14.0 4", "15.0 5"]);
    assert_eq!((steps("eval/val/loss").len(), steps("system/process_resident_megabytes").len()), (3, 1));
    let meta = fs::read_to_string(run.join("meta.yaml")).unwrap();
    assert!(meta.contains("status: 3\n") && !meta.contains("end_time: null"), "{meta}");
    assert_eq!(fs::read_to_string(run.join("params/train.lr")).unwrap(), "0.001");
    let tables = fs::read_to_string(run.join("tags/mlflow.loggedArtifacts")).unwrap();
    assert!(["step-2.json", "step-4.json", "step-6.json"].iter().all(|table| tables.contains(table)), "{tables}");
    assert!(run.join("artifacts/eval/val/answers-step-2.json").is_file() && run.join("artifacts/log.txt").is_file());
}

#[test]
fn an_evaluation_before_a_step_in_which_the_run_is_killed_stays() {
    let dir = tempfile::tempdir().unwrap();
    let mut trackers = open(dir.path(), 0);
    (0..4).for_each(|step| trackers.step(&metrics(step, 1.0), || None).unwrap());
    trackers.evaluated(&record(4, 0.5)).unwrap();
    trackers.samples(4, (1, 1), b"png").unwrap();
    drop(trackers);
    // It is killed in the same step again, then behind it, where the step is computed once more.
    drop(open(dir.path(), 4));
    open(dir.path(), 4).step(&metrics(4, 2.0), || None).unwrap();
    drop(open(dir.path(), 4));
    let mut trackers = open(dir.path(), 4);
    trackers.evaluated(&record(4, 0.5)).unwrap();
    (4..6).for_each(|step| trackers.step(&metrics(step, 3.0), || None).unwrap());
    trackers.evaluated(&record(6, 0.25)).unwrap();
    drop(trackers);
    let wandb = only(&dir.path().join("wandb"), "offline-run-");
    let id = wandb.file_name().unwrap().to_str().unwrap().rsplit('-').next().unwrap().to_owned();
    let items = || steps_in(&wandb.join(format!("run-{id}.wandb"))).pop().unwrap();
    open(dir.path(), 5).step(&metrics(5, 4.0), || None).unwrap();
    let (step, last) = items();
    assert!(step == 5 && last.iter().all(|(name, _)| !name.starts_with("eval/")), "{last:?}");
    assert!(!wandb.join("open-step.json").exists(), "the evaluation after step 5 is made again");
    open(dir.path(), 5);
    let (step, last) = items();
    let of =
        |key: &str| last.iter().filter(|(name, _)| name == key).map(|(_, value)| value.as_str()).collect::<Vec<_>>();
    assert_eq!((step, of("eval/val/loss"), of("train/loss")), (4, vec!["0.5"], vec!["3.0"]));
    assert_eq!((of("eval/samples").len(), of("eval/val/answers").len()), (1, 1));
}

#[test]
fn a_number_that_is_none_is_written_as_python_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut trackers = open(dir.path(), 0);
    trackers.step(&metrics(0, f64::NAN), || None).unwrap();
    trackers.step(&metrics(1, f64::INFINITY), || None).unwrap();
    let run = only(&only(&dir.path().join("mlruns"), ""), "");
    let text = fs::read_to_string(run.join("metrics/train/loss")).unwrap();
    let values: Vec<&str> = text.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(values, ["NaN", "inf"]);
}

#[test]
fn without_keys_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({});
    let run = TrackedRun { name: "a", dir: dir.path(), config: &config, version: "1" };
    let mut trackers = Trackers::open(&Log::default(), &run, 0).unwrap();
    trackers.step(&metrics(0, 1.0), || unreachable!("nobody asks")).unwrap();
    trackers.end(Ending::Completed).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
