//! Where and how often checkpoints are written.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Folder and frequency of checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoint {
    /// Directory of the checkpoints.
    pub dir: PathBuf,
    /// Save every N steps; 0 without `every_epochs`: only at the end.
    pub every_steps: u64,
    /// Instead of `every_steps`, with `train.epochs`: save every N epochs, such as 1 or 0.5, in steps rounded up.
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub every_epochs: Option<f64>,
    /// Also save after the last step and when the run is stopped. False: only `every_steps` or `every_epochs` makes checkpoints;
    /// without them there are none (for benchmarks), except when SIGUSR1 requests one or numbers are not finite.
    pub at_end: bool,
    /// Number of newest checkpoints to keep.
    #[schemars(range(min = 1))]
    pub keep_last: usize,
    /// Write while the next steps are computed, from a copy in memory; otherwise steps wait until the checkpoint is written, and no
    /// copy is needed.
    #[serde(rename = "async")]
    pub in_background: bool,
    /// A failed checkpoint is retried; the run ends after this many consecutive failures.
    #[schemars(range(min = 1))]
    pub max_failures: usize,
    /// With `--processes`: keep a checkpoint in memory every N steps, from which the run restarts after a process has died; 0:
    /// never.
    pub snapshot_every: u64,
    /// With `lora`: merge the adapters into the saved weights, so that a checkpoint is a plain model; otherwise save only the
    /// adapters, in PEFT's layout.
    pub merge_lora: bool,
    /// Also copy each checkpoint to this folder of an object store, `s3://BUCKET/FOLDER`, while training continues; `--resume` also
    /// looks there.
    pub upload: Option<String>,
    /// Number of newest checkpoints to keep in the store; `null`: as `keep_last`.
    #[schemars(range(min = 1))]
    pub upload_keep_last: Option<usize>,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self {
            dir: "${run.dir}/checkpoints".into(),
            every_steps: 0,
            every_epochs: None,
            at_end: true,
            keep_last: 3,
            in_background: true,
            max_failures: 5,
            snapshot_every: 0,
            merge_lora: false,
            upload: None,
            upload_keep_last: None,
        }
    }
}
