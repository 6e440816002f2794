//! `tracking.json` in the run's folder: which runs of W&B and MLflow are this one's, so that a later start goes on with them.

use crate::clock::since_epoch;
use crate::observe::error::ObserveError;
use crate::observe::track::files::write_whole;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;

const FILE: &str = "tracking.json";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Kept {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wandb: Option<KeptWandb>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlflow: Option<KeptMlflow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptWandb {
    pub id: String,
    /// The name of the run's folder in `log.wandb.dir`.
    pub folder: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptMlflow {
    pub experiment_id: String,
    pub run_id: String,
}

impl Kept {
    /// Reads what an earlier start left; nothing where there is no such file, or names that lead elsewhere.
    pub fn read(dir: &Path) -> Self {
        let text = fs::read_to_string(dir.join(FILE)).unwrap_or_default();
        let kept: Self = serde_json::from_str(&text).unwrap_or_default();
        let is_plain =
            |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        Self {
            wandb: kept.wandb.filter(|kept| is_plain(&kept.id) && is_plain(&kept.folder)),
            mlflow: kept.mlflow.filter(|kept| is_plain(&kept.experiment_id) && is_plain(&kept.run_id)),
        }
    }

    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), ObserveError> {
        let text = serde_json::to_string(self).expect("texts");
        write_whole(&dir.join(FILE), &(text + "\n"))
    }
}

/// Returns a name that no run has had, of `len` letters: of the time, the process and the folder. Nothing that is computed depends on it.
pub(super) fn fresh_id(dir: &Path, len: usize, letters: &[u8]) -> String {
    let seed = format!("{}/{}/{}", since_epoch().as_nanos(), std::process::id(), dir.display());
    let digest = Sha256::digest(seed);
    digest.iter().cycle().take(len).map(|byte| char::from(letters[usize::from(*byte) % letters.len()])).collect()
}
