//! The traces that a run leaves: its steps, and the weights that it has learned.

use anyhow::{Context, bail};
use loongforge_core::checkpoint::{MANIFEST, latest};
use loongforge_core::numbers::median;
use loongforge_core::observe::read_metrics;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

pub struct Traces {
    pub dir: PathBuf,
    /// Bits of each step's loss, and the chain of the samples up to it.
    pub steps: Vec<(u64, String)>,
    /// Milliseconds of each step.
    pub step_ms: Vec<f64>,
    /// Seconds from the end of the first step to that of the last one. A run that was not watched says how long it was active; the time
    /// between its starts is not in it.
    pub seconds: f64,
    /// Files of weights and optimizer state in the last checkpoint, with their hashes.
    pub files: BTreeMap<String, String>,
}

impl Traces {
    /// # Errors
    /// There is no run in `dir`.
    pub fn read(dir: &Path) -> anyhow::Result<Self> {
        let metrics = read_metrics(&dir.join("metrics.jsonl"))?;
        let (Some(first), Some(last)) = (metrics.first(), metrics.last()) else {
            bail!("{}: no step was run there", dir.display());
        };
        let files = match latest(&dir.join("checkpoints"))? {
            Some(checkpoint) => hashes(&checkpoint)?,
            None => BTreeMap::new(),
        };
        Ok(Self {
            dir: dir.to_owned(),
            steps: metrics.iter().map(|step| (step.loss.to_bits(), step.ledger.clone())).collect(),
            step_ms: metrics.iter().map(|step| step.step_ms).collect(),
            seconds: last.active_s - first.active_s,
            files,
        })
    }

    /// Returns the median time of a step, in seconds.
    pub fn median(&self) -> f64 {
        median(&mut self.step_ms.clone()) / 1e3
    }
}

fn hashes(checkpoint: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let path = checkpoint.join(MANIFEST);
    let named = || path.display().to_string();
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(&path).with_context(named)?).with_context(named)?;
    let files = manifest["files"].as_object().with_context(named)?.iter();
    let tensors = files.filter(|(name, _)| name.ends_with(".safetensors"));
    let hash = |entry: &serde_json::Value| entry["sha256"].as_str().unwrap_or_default().to_owned();
    let step = checkpoint.file_name().unwrap_or_default().to_string_lossy();
    Ok(tensors.map(|(name, entry)| (format!("{step}/{name}"), hash(entry))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::observe::StepMetrics;

    #[test]
    fn time_between_steps_counts() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Traces::read(dir.path()).is_err());
        // Steps of 100 ms, before the last of which the run began again.
        let step = |(step, active_s)| StepMetrics { step, active_s, step_ms: 100.0, ..StepMetrics::default() };
        let steps = [(0, 1.5), (1, 1.75), (2, 5.5)].map(step);
        let lines: String = steps.iter().map(|step| serde_json::to_string(step).unwrap() + "\n").collect();
        fs::write(dir.path().join("metrics.jsonl"), lines).unwrap();
        let traces = Traces::read(dir.path()).unwrap();
        assert_eq!((traces.seconds, traces.median(), traces.steps.len()), (4.0, 0.1, 3));
    }
}
