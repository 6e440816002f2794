//! The figures of a run's actors; those of actors that have left are not all kept.

use super::clocks::Offset;
use crate::message::{ActorId, EdgeLoad, Timings, Trace, TraceSpan};
use std::collections::{BTreeMap, VecDeque};

/// Most spans that are kept of one actor, whatever the steps.
pub(super) const MAX_SPANS: usize = 20_000;
/// Most actors that have left of which anything is kept: in a long run encoders are replaced again and again.
pub(super) const MAX_GONE: usize = 16;

/// The actors of a run, with the timeline of its last steps.
pub(super) struct Actors {
    pub seen: BTreeMap<ActorId, Seen>,
    /// The actors that have left, in this order.
    gone: VecDeque<ActorId>,
    trace_steps: u64,
}

/// One actor.
#[derive(Default)]
pub(super) struct Seen {
    pub state: String,
    pub timings: Timings,
    pub edges: Vec<EdgeLoad>,
    pub spans: VecDeque<TraceSpan>,
    pub lost_spans: u64,
    /// Seconds of the board's clock.
    pub heard: Option<f64>,
    pub offset: Offset,
}

impl Actors {
    /// Keeps the timeline of `trace_steps`.
    pub fn new(actors: &[ActorId], trace_steps: u64) -> Self {
        let seen = actors.iter().map(|&actor| (actor, Seen::default())).collect();
        Self { seen, gone: VecDeque::new(), trace_steps }
    }

    /// Returns the state of an actor, which may be new.
    pub fn get(&mut self, actor: ActorId) -> &mut Seen {
        self.seen.entry(actor).or_default()
    }

    /// Takes what an actor tells of its time, heard at `now` in nanoseconds of the board's clock.
    pub fn traced(&mut self, actor: ActorId, trace: Trace, now: u64) {
        let seen = self.get(actor);
        seen.offset.observe(trace.now, now);
        seen.heard = Some(now as f64 / 1e9);
        seen.edges = trace.edges;
        seen.lost_spans += trace.num_lost;
        seen.spans.extend(trace.spans);
        let excess = seen.spans.len().saturating_sub(MAX_SPANS);
        seen.spans.drain(..excess);
        self.forget();
    }

    /// Keeps what is known of an actor that has left, but for what it did last, which says nothing of its pool any more.
    pub fn left(&mut self, actor: ActorId, state: String) {
        let seen = self.get(actor);
        (seen.state, seen.timings, seen.edges) = (state, Timings::default(), Vec::new());
        self.gone.push_back(actor);
        if self.gone.len() > MAX_GONE
            && let Some(first) = self.gone.pop_front()
        {
            self.seen.remove(&first);
        }
    }

    /// Drops spans of steps that are out of the timeline.
    fn forget(&mut self) {
        let last = self.seen.values().filter_map(|seen| seen.spans.back()).map(|span| span.step).max().unwrap_or(0);
        let first = (last + 1).saturating_sub(self.trace_steps);
        for seen in self.seen.values_mut() {
            while seen.spans.front().is_some_and(|span| span.step < first) {
                seen.spans.pop_front();
            }
        }
    }
}
