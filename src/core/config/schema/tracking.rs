//! Folders for programs that list runs, and the form of log messages.

use crate::config::{Address, TimeSpan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A run of Weights & Biases as its client leaves it offline, for `wandb sync`. Files alone are written: nothing is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Wandb {
    /// The project that `wandb sync` puts the run into.
    pub project: String,
    /// User or team of the project; `null`: whoever runs `wandb sync`.
    pub entity: Option<String>,
    /// Name of the run; `null`: `run.name`.
    pub name: Option<String>,
    /// Group of the run.
    pub group: Option<String>,
    /// Type of the run; `null`: `train`.
    pub job_type: Option<String>,
    /// A remark on the run.
    pub notes: Option<String>,
    /// Tags of the run.
    pub tags: Vec<String>,
    /// Folder of offline runs; `null`: `wandb` in the run's folder.
    pub dir: Option<PathBuf>,
}

/// A run in a file store of MLflow. Files alone are written: nothing is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Mlflow {
    /// Name of the experiment; it is made where the store has none of this name.
    pub experiment: String,
    /// Name of the run; `null`: `run.name`.
    pub name: Option<String>,
    /// Tags of the run, by name.
    pub tags: BTreeMap<String, String>,
    /// The store, which several runs may share; `null`: `mlruns` in the run's folder.
    pub dir: Option<PathBuf>,
}

/// Metrics and traces for a collector of OpenTelemetry: OTLP over HTTP, as JSON, without encryption.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Otlp {
    /// Where the collector listens, `HOST:PORT`; usually `127.0.0.1:4318`, a collector on this host.
    pub endpoint: Address,
    /// Time between two exports.
    #[serde(default = "Otlp::default_every")]
    pub every: TimeSpan,
    /// Send spans of the actors' time as well.
    #[serde(default = "Otlp::default_traces")]
    pub traces: bool,
}

impl Otlp {
    fn default_every() -> TimeSpan {
        TimeSpan::from_secs(10)
    }

    fn default_traces() -> bool {
        true
    }
}

/// Steps whose operators are recorded; none without `watch.profile`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProfiledSteps {
    /// First step that is recorded, at least 2: the first steps of a run are slower than others.
    #[schemars(range(min = 2))]
    pub first: u64,
    /// Number of steps that are recorded, at most 100.
    #[schemars(range(min = 1, max = 100))]
    pub steps: u64,
}

impl Default for ProfiledSteps {
    fn default() -> Self {
        Self { first: 10, steps: 1 }
    }
}

/// The form of log messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

impl Default for Wandb {
    fn default() -> Self {
        Self {
            project: "loongforge".into(),
            entity: None,
            name: None,
            group: None,
            job_type: None,
            notes: None,
            tags: Vec::new(),
            dir: None,
        }
    }
}

impl Default for Mlflow {
    fn default() -> Self {
        Self { experiment: "loongforge".into(), name: None, tags: BTreeMap::new(), dir: None }
    }
}
