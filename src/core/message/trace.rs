//! Trace data about an engine's time, sent beside the run without blocking it.

use super::activity::Activity;
use super::ids::ActorId;
use serde::{Deserialize, Serialize};

/// One stretch of an engine's time, in nanoseconds of its process's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSpan {
    pub activity: Activity,
    /// The step that it belongs to, or the engine's latest step.
    pub step: u64,
    /// The index of the unit or pack.
    pub index: Option<u32>,
    pub start: u64,
    pub end: u64,
}

/// Fill level of an outgoing edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeLoad {
    pub to: ActorId,
    /// Bytes in flight, out of the edge's credit.
    pub in_flight: u64,
    pub credit: u64,
    /// Parcels that wait for credit.
    pub num_unsent: u32,
}

/// The latest spans of an engine, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// The process's clock when this was sent, from which the receiver computes the clock offset.
    pub now: u64,
    pub spans: Vec<TraceSpan>,
    /// Number of spans that were not recorded, or not sent because the scheduler was busy.
    pub num_lost: u64,
    pub edges: Vec<EdgeLoad>,
}
