//! `metrics.jsonl`: one JSON object a step. `eval.jsonl` is written in the same way.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::Serialize;
use serde_json::Value as Json;

use super::error::ObserveError;
use super::metrics::StepMetrics;
use crate::files::AppendFile;

/// Appends a line a step; each line is in the file when [`MetricsFile::write`] returns.
pub struct MetricsFile(AppendFile);

impl MetricsFile {
    /// Keeps the lines of steps before `first_step`, which the run is about to compute, and drops the others:
    /// those of a run that got further before it was stopped, and half a line at the end.
    pub fn open(path: &Path, first_step: u64) -> Result<Self, ObserveError> {
        let write = |error| ObserveError::write(path, error);
        let old = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(source) => return Err(ObserveError::Read { path: path.to_path_buf(), source }),
        };
        let keep = |line: &&str| {
            serde_json::from_str::<Json>(line).is_ok_and(|json| json["step"].as_u64().is_some_and(|s| s < first_step))
        };
        let kept: String = old.lines().filter(keep).flat_map(|line| [line, "\n"]).collect();
        if kept != old {
            let part = path.with_extension("jsonl.part");
            fs::write(&part, kept).and_then(|()| fs::rename(&part, path)).map_err(write)?;
        }
        AppendFile::open(path).map(Self).map_err(write)
    }

    /// Appends a line, an object with its `step`.
    ///
    /// # Errors
    /// The file cannot be written and is as before; or it is not the one that was written before.
    pub fn write(&mut self, metrics: &impl Serialize) -> Result<(), ObserveError> {
        let mut line = serde_json::to_vec(metrics).expect("numbers");
        line.push(b'\n');
        let appended = self.0.append(&line);
        ObserveError::of_append(self.0.path(), appended)
    }
}

/// The steps in a metrics file, in order; lines that are not metrics are left out.
pub fn read_metrics(path: &Path) -> Result<Vec<StepMetrics>, ObserveError> {
    let text = fs::read_to_string(path).map_err(|source| ObserveError::Read { path: path.to_path_buf(), source })?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::super::metrics::{ExpertMetrics, PairMetrics};
    use super::*;
    use crate::message::PoolName;
    use std::collections::BTreeMap;

    fn metrics(step: u64) -> StepMetrics {
        StepMetrics { step, loss: 1.5 / (step + 1) as f64, ..Default::default() }
    }

    #[test]
    fn a_resumed_run_overwrites_what_it_computes_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut file = MetricsFile::open(&path, 0).unwrap();
        (0..5).for_each(|step| file.write(&metrics(step)).unwrap());
        file.0.append(b"{\"step\":5,\"lo").unwrap();
        let mut file = MetricsFile::open(&path, 3).unwrap();
        file.write(&metrics(3)).unwrap();
        assert_eq!(read_metrics(&path).unwrap(), (0..4).map(metrics).collect::<Vec<_>>());
        MetricsFile::open(&path, 0).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
    }

    #[test]
    fn not_a_number_stays_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut file = MetricsFile::open(&path, 0).unwrap();
        let experts =
            BTreeMap::from([(PoolName::FOUNDATION, ExpertMetrics { grad_norm: f64::NAN, ..Default::default() })]);
        let pairs = PairMetrics { rejected_reward: f64::INFINITY, accuracy: f64::NAN, ..Default::default() };
        let skipped = StepMetrics {
            loss: f64::NAN,
            grad_norm: f64::INFINITY,
            skipped: true,
            pairs: Some(pairs),
            experts,
            ..metrics(0)
        };
        file.write(&skipped).unwrap();
        file.write(&metrics(1)).unwrap();
        assert!(fs::read_to_string(&path).unwrap().contains("\"loss\":null"));
        let read = read_metrics(&path).unwrap();
        assert_eq!(read.iter().map(|step| (step.step, step.skipped)).collect::<Vec<_>>(), [(0, true), (1, false)]);
        assert!(read[0].loss.is_nan() && read[0].grad_norm.is_nan() && read[0].pairs.unwrap().accuracy.is_nan());
        assert_eq!(read[1], metrics(1));
        let error = MetricsFile::open(Path::new("/no/such/metrics.jsonl"), 0).err().unwrap();
        assert!(error.to_string().contains("/no/such/metrics.jsonl"));
    }

    #[test]
    fn a_file_that_somebody_removed_is_missed_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut file = MetricsFile::open(&path, 0).unwrap();
        file.write(&metrics(0)).unwrap();
        fs::remove_file(&path).unwrap();
        let error = file.write(&metrics(1)).unwrap_err().to_string();
        assert!(error.contains("metrics.jsonl was removed or replaced"), "{error}");
        file.write(&metrics(2)).unwrap();
        assert_eq!(read_metrics(&path).unwrap(), [metrics(1), metrics(2)]);
    }
}
