//! Trace recorder of an engine's thread: a bounded list of spans that is sent periodically, without blocking. It is not a profiler:
//! it records pieces of work, not operators.

use crate::message::{Activity, EdgeLoad, StepId, Trace, TraceSpan};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The interval at which spans are sent.
const INTERVAL: Duration = Duration::from_millis(250);
/// Maximum number of spans between two sends.
const MAX_SPANS: usize = 2048;
/// Equal activities separated by a shorter break are merged into one span; in nanoseconds.
const BREAK: u64 = 20_000;

/// Spans of one engine since the last send.
pub struct Recorder {
    spans: Vec<TraceSpan>,
    num_lost: u64,
    /// The latest step.
    step: u64,
    sent: Instant,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { spans: Vec::new(), num_lost: 0, step: 0, sent: Instant::now() }
    }
}

impl Recorder {
    /// Records what was done from `start` until now; `of`: the step, and its unit or pack, if known.
    pub fn span(&mut self, activity: Activity, of: Option<(StepId, Option<u32>)>, start: Instant) {
        self.step = of.map_or(self.step, |(step, _)| step.0);
        let index = of.and_then(|(_, index)| index);
        self.push(TraceSpan { activity, step: self.step, index, start: clock(start), end: clock(Instant::now()) });
    }

    fn push(&mut self, span: TraceSpan) {
        let alike = |last: &&mut TraceSpan| {
            let same = (last.activity, last.step, last.index) == (span.activity, span.step, span.index);
            same && span.start.saturating_sub(last.end) <= BREAK
        };
        let has_room = self.spans.len() < MAX_SPANS;
        match self.spans.last_mut().filter(alike) {
            Some(last) => last.end = span.end,
            None if has_room => self.spans.push(span),
            None => self.num_lost += 1,
        }
    }

    pub(super) fn is_due(&self) -> bool {
        self.sent.elapsed() >= INTERVAL
    }

    /// Returns the trace that is due to be sent, if any.
    pub(super) fn take(&mut self, edges: Vec<EdgeLoad>) -> Option<Trace> {
        let now = Instant::now();
        self.sent = now;
        (!self.spans.is_empty()).then(|| Trace {
            now: clock(now),
            spans: std::mem::take(&mut self.spans),
            num_lost: std::mem::take(&mut self.num_lost),
            edges,
        })
    }

    /// Counts spans that could not be sent.
    pub(super) fn lose(&mut self, num_spans: u64) {
        self.num_lost += num_spans;
    }
}

/// Returns the process's clock in nanoseconds, with an arbitrary origin.
fn clock(at: Instant) -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    // Whatever was begun before the first look is as if it began then.
    at.saturating_duration_since(*BEGIN.get_or_init(Instant::now)).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(index: u32, start: u64, end: u64) -> TraceSpan {
        TraceSpan { activity: Activity::Encode, step: 3, index: Some(index), start, end }
    }

    #[test]
    fn equal_work_without_a_break_is_one_span() {
        let mut recorder = Recorder::default();
        for each in
            [span(0, 0, 10), span(0, 20, 30), span(0, 30 + BREAK + 1, 40 + BREAK), span(1, 50 + BREAK, 60 + BREAK)]
        {
            recorder.push(each);
        }
        let trace = recorder.take(Vec::new()).unwrap();
        assert_eq!(trace.spans, [span(0, 0, 30), span(0, 31 + BREAK, 40 + BREAK), span(1, 50 + BREAK, 60 + BREAK)]);
        assert_eq!(recorder.take(Vec::new()), None);
    }

    #[test]
    fn what_is_too_much_is_counted() {
        let mut recorder = Recorder::default();
        (0..MAX_SPANS as u32 + 5).for_each(|index| recorder.push(span(index, 0, 1)));
        recorder.lose(7);
        let trace = recorder.take(Vec::new()).unwrap();
        assert_eq!((trace.spans.len(), trace.num_lost), (MAX_SPANS, 12));
    }

    #[test]
    fn a_step_that_is_not_named_is_the_last() {
        let mut recorder = Recorder::default();
        recorder.span(Activity::Pack, Some((StepId(4), Some(1))), Instant::now());
        recorder.span(Activity::WaitMail, None, Instant::now());
        let spans = recorder.take(Vec::new()).unwrap().spans;
        let seen: Vec<_> = spans.iter().map(|span| (span.activity, span.step, span.index)).collect();
        assert_eq!(seen, [(Activity::Pack, 4, Some(1)), (Activity::WaitMail, 4, None)]);
        assert!(spans[0].end <= spans[1].end);
    }
}
