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
    /// Files of weights and optimizer state in the last checkpoint, with their hashes.
    pub files: BTreeMap<String, String>,
}

impl Traces {
    /// # Errors
    /// There is no run in `dir`.
    pub fn read(dir: &Path) -> anyhow::Result<Self> {
        let metrics = read_metrics(&dir.join("metrics.jsonl"))?;
        if metrics.is_empty() {
            bail!("{}: no step was run there", dir.display());
        }
        let files = match latest(&dir.join("checkpoints"))? {
            Some(checkpoint) => hashes(&checkpoint)?,
            None => BTreeMap::new(),
        };
        Ok(Self {
            dir: dir.to_owned(),
            steps: metrics.iter().map(|step| (step.loss.to_bits(), step.ledger.clone())).collect(),
            step_ms: metrics.iter().map(|step| step.step_ms).collect(),
            files,
        })
    }

    /// Seconds that its steps took.
    pub fn seconds(&self) -> f64 {
        self.step_ms.iter().sum::<f64>() / 1e3
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
