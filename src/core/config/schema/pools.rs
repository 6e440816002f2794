//! Actors, and the bounds of everything between them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{Size, Threads, TimeSpan};

/// How many actors of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Pools {
    /// `separate` encoder and foundation actors, or `colocated` in one actor.
    pub placement: Placement,
    /// Actors that read, tokenize and measure samples.
    pub data: DataPool,
    /// Actors that run the vision tower.
    pub encoder: ComputePool,
    /// Actors that run the language model.
    pub foundation: ComputePool,
}

/// Actors that read, tokenize and measure samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DataPool {
    /// Number of actors.
    #[schemars(range(min = 1, max = 1024))]
    pub replicas: usize,
    /// Bytes of samples that one actor keeps until their step; what is read beyond that is read again then.
    pub memory: Size,
}

/// Actors that compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ComputePool {
    /// Number of actors.
    #[schemars(range(min = 1, max = 1024))]
    pub replicas: usize,
    /// Intra-operation threads of each actor; `auto`: an even share of the cores, 1 under `run.deterministic`.
    pub threads: Threads,
}

/// Where encoder and foundation run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Placement {
    #[default]
    Separate,
    Colocated,
}

/// The pools of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolName {
    Data,
    Encoder,
    Foundation,
}

/// How many bytes may be in flight between pools. No credit, no send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Edges {
    /// Pixels from data to encoder actors.
    pub pixels: Edge,
    /// Tokens from data to foundation actors.
    pub tokens: Edge,
    /// Features from encoder to foundation actors and their gradients back; the credit holds in each direction.
    pub features: Edge,
}

/// One edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    /// Bytes that may be in flight.
    pub credit: Size,
}

/// The scheduler actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Scheduler {
    /// Steps that data actors, and encoders where they are frozen, may work ahead.
    #[schemars(range(min = 1, max = 64))]
    pub prefetch_steps: usize,
    /// Length of every mailbox and command queue.
    #[schemars(range(min = 1, max = 65536))]
    pub queue: usize,
    /// What work costs when it is shared out: by the model's shape, or `fitted` to the times that actors take.
    pub balance: Balance,
    /// How long actors may take to join before the run is given up.
    pub join_timeout: TimeSpan,
}

/// What work costs when it is shared out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Balance {
    // By the model's shape.
    #[default]
    Static,
    // As measured while the run goes on.
    Fitted,
}

impl Default for DataPool {
    fn default() -> Self {
        Self { replicas: 1, memory: Size::from_mib(1024) }
    }
}

impl Default for ComputePool {
    fn default() -> Self {
        Self { replicas: 1, threads: Threads::Auto }
    }
}

impl Default for Edges {
    fn default() -> Self {
        let edge = |mib| Edge { credit: Size::from_mib(mib) };
        Self { pixels: edge(64), tokens: edge(16), features: edge(64) }
    }
}

impl Default for Scheduler {
    fn default() -> Self {
        Self { prefetch_steps: 2, queue: 64, balance: Balance::Static, join_timeout: TimeSpan::from_secs(60) }
    }
}
