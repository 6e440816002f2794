//! Describes what an engine tells of its time, beside the run and never in its way.

use super::activity::Activity;
use super::ids::ActorId;
use serde::{Deserialize, Serialize};

/// One stretch of an engine's time, in nanoseconds of its process's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSpan {
    pub activity: Activity,
    /// The step that it belongs to, or the last that the engine was in.
    pub step: u64,
    /// The index of the unit or pack.
    pub index: Option<u32>,
    pub start: u64,
    pub end: u64,
}

/// Describes how full an outgoing edge is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeLoad {
    pub to: ActorId,
    /// Bytes in flight, of the edge's credit.
    pub in_flight: u64,
    pub credit: u64,
    /// Parcels that wait for credit.
    pub num_unsent: u32,
}

/// An engine's last stretch of time, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// The process's clock as this was sent: what the receiver tells the clocks' offset from.
    pub now: u64,
    pub spans: Vec<TraceSpan>,
    /// Spans that were not kept, or not sent because the scheduler had no time for them.
    pub num_lost: u64,
    pub edges: Vec<EdgeLoad>,
}
