//! Run folders for experiment trackers, telemetry export, and the format of log messages.

use crate::config::{Address, TimeSpan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A Weights & Biases run as its client stores it offline, for `wandb sync`. Only files are written; nothing is sent.
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
    /// Notes on the run.
    pub notes: Option<String>,
    /// Tags of the run.
    pub tags: Vec<String>,
    /// Folder of offline runs; `null`: `wandb` in the run's folder.
    pub dir: Option<PathBuf>,
}

/// A run in an MLflow file store. Only files are written; nothing is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Mlflow {
    /// Name of the experiment; created if the store has none of this name.
    pub experiment: String,
    /// Name of the run; `null`: `run.name`.
    pub name: Option<String>,
    /// Tags of the run, by name.
    pub tags: BTreeMap<String, String>,
    /// The store, which several runs may share; `null`: `mlruns` in the run's folder.
    pub dir: Option<PathBuf>,
}

/// Metrics and traces for an OpenTelemetry collector: OTLP over HTTP, as JSON, without encryption.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Otlp {
    /// Address of the collector, `HOST:PORT`; usually `127.0.0.1:4318`, a collector on this host.
    pub endpoint: Address,
    /// Time between two exports.
    #[serde(default = "Otlp::default_every")]
    pub every: TimeSpan,
    /// Also send spans of the actors' activity.
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
    /// First step to record, at least 2: the first steps of a run are slower than others.
    #[schemars(range(min = 2))]
    pub first: u64,
    /// Number of steps to record, at most 100.
    #[schemars(range(min = 1, max = 100))]
    pub steps: u64,
}

impl Default for ProfiledSteps {
    fn default() -> Self {
        Self { first: 10, steps: 1 }
    }
}

/// Format of log messages.
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
