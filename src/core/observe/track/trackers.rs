//! All places that a run is written to, told together.

use super::kept::Kept;
use super::mlflow::MlflowRun;
use super::tracker::{Ending, TrackedRun, Tracker};
use super::wandb::WandbRun;
use crate::config::Log;
use crate::observe::error::ObserveError;
use crate::observe::evaluation::EvalRecord;
use crate::observe::metrics::StepMetrics;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time between two figures of the system.
const SYSTEM_EVERY: Duration = Duration::from_secs(15);

/// All places that a run is written to.
pub struct Trackers {
    all: Vec<Box<dyn Tracker>>,
    dir: PathBuf,
    last_system: Option<Instant>,
}

impl Trackers {
    /// Begins a run in every place that the config names, or goes on with the one that an earlier start began: what it wrote of
    /// steps from `first_step` on is dropped.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn open(log: &Log, run: &TrackedRun<'_>, first_step: u64) -> Result<Self, ObserveError> {
        let before = Kept::read(run.dir);
        let (mut kept, mut all) = (before.clone(), Vec::<Box<dyn Tracker>>::new());
        if let Some(wandb) = &log.wandb {
            all.push(Box::new(WandbRun::open(wandb, run, first_step, &mut kept)?));
        }
        if let Some(mlflow) = &log.mlflow {
            all.push(Box::new(MlflowRun::open(mlflow, run, first_step, &mut kept)?));
        }
        if kept != before {
            kept.write(run.dir)?;
        }
        Ok(Self { all, dir: run.dir.to_owned(), last_system: None })
    }

    fn each(&mut self, write: impl Fn(&mut dyn Tracker) -> Result<(), ObserveError>) -> Result<(), ObserveError> {
        // One that fails keeps none of the others from being written.
        let results: Vec<_> = self.all.iter_mut().map(|tracker| write(tracker.as_mut())).collect();
        results.into_iter().collect()
    }

    /// A step is done. `memory` is asked now and then for the resident bytes of the run's processes.
    ///
    /// # Errors
    /// A file cannot be written; the run may go on.
    pub fn step(&mut self, metrics: &StepMetrics, memory: impl FnOnce() -> Option<u64>) -> Result<(), ObserveError> {
        if self.all.is_empty() {
            return Ok(());
        }
        if self.last_system.is_none_or(|last| last.elapsed() >= SYSTEM_EVERY) {
            self.last_system = Some(Instant::now());
            if let Some(bytes) = memory() {
                self.each(|tracker| tracker.memory(metrics.step, bytes))?;
            }
        }
        let scalars = metrics.scalars();
        self.each(|tracker| tracker.scalars(metrics.step, &scalars, true))
    }

    /// A set was evaluated.
    ///
    /// # Errors
    /// Fails as [`Trackers::step`] does.
    pub fn evaluated(&mut self, record: &EvalRecord) -> Result<(), ObserveError> {
        let scalars: Vec<(Cow<'_, str>, f64)> =
            record.scalars().into_iter().map(|(name, value)| (name.into(), value)).collect();
        self.each(|tracker| tracker.scalars(record.step, &scalars, false))?;
        if record.answers.is_empty() {
            return Ok(());
        }
        let rows: Vec<Vec<String>> = record
            .answers
            .iter()
            .map(|a| vec![a.prompt.clone(), a.answer.clone(), a.expected.clone(), a.correct.to_string()])
            .collect();
        let columns = ["prompt", "answer", "expected", "correct"];
        let key = format!("eval/{}/answers", record.set);
        self.each(|tracker| tracker.table(record.step, &key, &columns, &rows))
    }

    /// A sheet of samples was made, as PNG of this width and height.
    ///
    /// # Errors
    /// Fails as [`Trackers::step`] does.
    pub fn samples(&mut self, step: u64, size: (u32, u32), png: &[u8]) -> Result<(), ObserveError> {
        self.each(|tracker| tracker.picture(step, "eval/samples", size, png))
    }

    /// The run has ended.
    ///
    /// # Errors
    /// Fails as [`Trackers::step`] does.
    pub fn end(&mut self, ending: Ending) -> Result<(), ObserveError> {
        let names = ["config.yaml", "log.txt", "log.jsonl"];
        let files: Vec<(&str, PathBuf)> =
            names.into_iter().map(|name| (name, self.dir.join(name))).filter(|(_, path)| path.is_file()).collect();
        let files: Vec<(&str, &Path)> = files.iter().map(|(name, path)| (*name, path.as_path())).collect();
        self.each(|tracker| tracker.end(ending, &files))
    }
}
