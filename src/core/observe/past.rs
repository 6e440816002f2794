//! A run as its folder tells it: the config, every step, every evaluation, and the figures by which runs are compared.

use super::error::ObserveError;
use super::evaluation::{EvalRecord, read_evaluations};
use super::goodput::Goodput;
use super::jsonl::read_metrics;
use super::metrics::{StepMetrics, finite_mean};
use super::watch::{Board, News, RunInfo};
use crate::config::read_yaml;
use crate::numbers::median;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The final loss is the mean over so many steps.
const LAST_STEPS: usize = 20;
/// Steps whose metrics are shown.
const HISTORY: usize = 1_000_000;

/// The metrics and the config that a run has left in its folder.
#[derive(Clone, Debug)]
pub struct PastRun {
    pub dir: PathBuf,
    /// `run.name`, or the folder's name.
    pub name: String,
    /// The composed config of the newest attempt; null where the folder has none.
    pub config: Value,
    pub steps: Vec<StepMetrics>,
    pub evaluations: Vec<EvalRecord>,
}

/// Figures of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Steps that were done, skipped ones included.
    pub steps: u64,
    /// Mean training loss of the last 20 steps.
    pub loss: Option<f64>,
    /// Evaluations, by set of held-out samples.
    pub held_out: BTreeMap<String, HeldOut>,
    pub tokens: u64,
    /// Tokens over the time of the steps.
    pub tokens_per_s: Option<f64>,
    pub median_step_ms: Option<f64>,
    /// Mean model FLOPs utilization, where it was measured.
    pub mfu: Option<f64>,
    /// Seconds that the run was active, over all its starts.
    pub wall_s: Option<f64>,
    pub goodput: Option<f64>,
    /// Bytes of tensors of the actor that took the most.
    pub memory_bytes: Option<u64>,
    pub skipped: u64,
    pub bad_samples: u64,
    pub too_long: u64,
}

/// The results of a set's evaluations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct HeldOut {
    /// The last loss, and after how many steps.
    pub last: f64,
    pub last_step: u64,
    /// The lowest loss, and after how many steps.
    pub best: f64,
    pub best_step: u64,
    /// Part of the last answers that were exactly the expected ones.
    pub exact: Option<f64>,
}

impl PastRun {
    /// Reads a run's folder.
    ///
    /// # Errors
    /// It has no `metrics.jsonl`, or a file cannot be read.
    pub fn read(dir: &Path) -> Result<Self, ObserveError> {
        let steps = read_metrics(&dir.join("metrics.jsonl"))?;
        let evaluations = read_evaluations(&dir.join("eval.jsonl"))?;
        let config = fs::read_to_string(dir.join("config.yaml")).ok().and_then(|text| read_yaml(&text).ok());
        let config = config.unwrap_or_default();
        let name = config["run"]["name"].as_str().map_or_else(|| folder_name(dir), str::to_owned);
        Ok(Self { dir: dir.to_owned(), name, config, steps, evaluations })
    }

    /// Returns the figures of the run: rates over all of its steps, medians, and what it ended with.
    pub fn figures(&self) -> Figures {
        let steps = &self.steps;
        let seconds: f64 = steps.iter().map(|step| step.step_ms / 1e3).sum();
        let tokens = steps.iter().map(|step| step.tokens).sum();
        let last = steps.last();
        let mut times: Vec<f64> = steps.iter().map(|step| step.step_ms).collect();
        let memory = steps.iter().flat_map(|step| {
            let pools = step.pools.values().filter_map(|pool| pool.memory);
            step.encoder_memory.into_iter().chain(step.foundation_memory).chain(pools)
        });
        Figures {
            steps: last.map_or(0, |last| last.step + 1),
            loss: finite_mean(steps.iter().rev().take(LAST_STEPS).map(|step| step.loss)),
            held_out: self.held_out(),
            tokens,
            tokens_per_s: (seconds > 0.0).then(|| tokens as f64 / seconds),
            median_step_ms: (!times.is_empty()).then(|| median(&mut times)),
            mfu: finite_mean(steps.iter().filter_map(|step| step.mfu)),
            wall_s: last.map(|last| last.active_s).filter(|&active| active > 0.0),
            goodput: Goodput::of(steps).share(),
            memory_bytes: memory.map(|memory| memory.total()).max(),
            skipped: steps.iter().filter(|step| step.skipped).count() as u64,
            bad_samples: last.map_or(0, |last| last.bad_samples),
            too_long: last.map_or(0, |last| last.too_long),
        }
    }

    fn held_out(&self) -> BTreeMap<String, HeldOut> {
        let mut sets: BTreeMap<String, HeldOut> = BTreeMap::new();
        for record in &self.evaluations {
            let Some(loss) = record.loss else { continue };
            let first = HeldOut { best: f64::INFINITY, ..HeldOut::default() };
            let set = sets.entry(record.set.clone()).or_insert(first);
            (set.last, set.last_step) = (loss, record.step);
            set.exact = record.exact.or(set.exact);
            if loss < set.best {
                (set.best, set.best_step) = (loss, record.step);
            }
        }
        sets
    }

    /// Returns the run as a board shows it, under its folder's name. `how`: what is known of its end, in a word; `saved`: steps of its
    /// last checkpoint.
    pub fn board(&self, how: &str, saved: Option<u64>) -> Board {
        let planned = self.config["train"]["steps"].as_u64();
        let done = self.steps.last().map_or(0, |step| step.step + 1);
        let info = RunInfo {
            name: folder_name(&self.dir),
            dir: self.dir.display().to_string(),
            num_steps: planned.unwrap_or(done).max(done),
            ..RunInfo::default()
        };
        let mut board = Board::new(info, HISTORY, 1);
        let mut now = 0.0;
        for step in &self.steps {
            now = if step.active_s > 0.0 { step.active_s * 1e9 } else { now + step.step_ms * 1e6 };
            board.take(News::Step(Box::new(step.clone()), Vec::new()), now as u64, 0);
        }
        let mut board = board.with_evaluations(&self.evaluations);
        if let Some(step) = saved {
            board.take(News::Checkpoint { step, took: Duration::ZERO }, now as u64, 0);
        }
        board.take(News::Ended(how.to_owned()), now as u64, 0);
        board
    }
}

fn folder_name(dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> PastRun {
        let step = |step: u64| StepMetrics {
            step,
            loss: if step == 3 { f64::NAN } else { 4.0 - step as f64 },
            tokens: 100,
            step_ms: 500.0,
            active_s: (step + 1) as f64,
            skipped: step == 3,
            ..StepMetrics::default()
        };
        let record =
            |step, loss: f64| EvalRecord { step, set: "val".into(), ..EvalRecord::default() }.with_loss(loss, 1);
        PastRun {
            dir: "runs/a".into(),
            name: "a".into(),
            config: Value::Null,
            steps: (0..4).map(step).collect(),
            evaluations: vec![record(1, 3.0), record(2, 1.0), record(4, 2.0)],
        }
    }

    #[test]
    fn figures_are_of_the_whole_run() {
        let figures = run().figures();
        assert_eq!((figures.steps, figures.loss, figures.skipped), (4, Some(3.0), 1));
        assert_eq!((figures.tokens_per_s, figures.wall_s, figures.goodput), (Some(200.0), Some(4.0), Some(0.375)));
        let held_out = HeldOut { last: 2.0, last_step: 4, best: 1.0, best_step: 2, exact: None };
        assert_eq!(figures.held_out["val"], held_out);
        assert_eq!(PastRun { steps: Vec::new(), ..run() }.figures().loss, None);
    }

    #[test]
    fn a_board_of_it_shows_the_same() {
        let board = run().board("ended", Some(4));
        let status = board.status();
        assert_eq!((&status["goodput"], &status["elapsed_s"]), (&0.375.into(), &3.5.into()));
        assert_eq!((&status["state"], &status["eval_loss"]["val"]), (&"ended".into(), &2.0.into()));
        assert_eq!(board.history()["eval"]["val"], serde_json::json!([[1, 3.0], [2, 1.0], [4, 2.0]]));
    }
}
