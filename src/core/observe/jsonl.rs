//! `metrics.jsonl`: one JSON object a step. `eval.jsonl` is written in the same way.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::ObserveError;
use super::metrics::StepMetrics;
use crate::files::{AppendFile, draft_of, if_there};

/// The field of a line that is read before it is known whether the line stays.
#[derive(Deserialize)]
struct Line {
    step: u64,
}

/// Appends a line a step; each line is in the file when [`MetricsFile::write`] returns.
pub struct MetricsFile(AppendFile);

impl MetricsFile {
    /// Keeps the lines of steps before `first_step`, which the run is about to compute, and drops the others:
    /// those of a run that got further before it was stopped, and half a line at the end.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn open(path: &Path, first_step: u64) -> Result<Self, ObserveError> {
        let write = |error| ObserveError::write(path, error);
        let read = |source| ObserveError::Read { path: path.to_path_buf(), source };
        let stays = |line: &[u8]| serde_json::from_slice::<Line>(line).is_ok_and(|line| line.step < first_step);
        let mut all_stay = true;
        if let Some(file) = if_there(File::open(path)).map_err(read)? {
            let judged = each_line(file, |line| {
                all_stay &= line.ends_with(b"\n") && stays(line);
                Ok(())
            });
            judged.map_err(read)?;
        }
        if !all_stay {
            let draft = draft_of(path);
            copy_lines(path, &draft, stays).and_then(|()| fs::rename(&draft, path)).map_err(write)?;
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

/// Returns the steps in a metrics file, in order, without the loads of experts, which would take most of the memory; lines that are not
/// metrics are left out.
///
/// # Errors
/// The file cannot be read.
pub fn read_metrics(path: &Path) -> Result<Vec<StepMetrics>, ObserveError> {
    let mut steps = Vec::new();
    let read = File::open(path).and_then(|file| {
        each_line(file, |line| {
            let step = serde_json::from_slice::<StepMetrics>(line).ok();
            steps.extend(step.map(|step| StepMetrics { expert_loads: Vec::new(), ..step }));
            Ok(())
        })
    });
    read.map_err(|source| ObserveError::Read { path: path.to_path_buf(), source })?;
    Ok(steps)
}

/// Calls `take` with each line, its end included. The whole of a long run's file would be gigabytes.
fn each_line(file: File, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let (mut file, mut line) = (BufReader::new(file), Vec::new());
    while file.read_until(b'\n', &mut line)? > 0 {
        take(&line)?;
        line.clear();
    }
    Ok(())
}

/// Copies the lines that stay, each with an end.
fn copy_lines(from: &Path, to: &Path, stays: impl Fn(&[u8]) -> bool) -> io::Result<()> {
    let mut copy = BufWriter::new(File::create(to)?);
    each_line(File::open(from)?, |line| match stays(line) {
        true => copy.write_all(line.strip_suffix(b"\n").unwrap_or(line)).and_then(|()| copy.write_all(b"\n")),
        false => Ok(()),
    })?;
    copy.flush()
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
        // Of a line without an end all is there but that.
        fs::write(&path, b"{\"step\":0}\n{\"step\":9}\n\xff\n{\"step\":1}").unwrap();
        MetricsFile::open(&path, 2).unwrap().write(&metrics(2)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("{\"step\":0}\n{\"step\":1}\n{\"step\":2,") && text.ends_with("}\n"), "{text}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
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
