//! The last steps' timeline: as a chart, and as a trace for `ui.perfetto.dev` or `chrome://tracing`.

use super::Board;
use crate::message::{Role, TraceSpan};
use crate::simulate::{Gantt, Span};
use serde_json::{Value, json};

/// Most rows of the chart.
const MAX_ROWS: usize = 40;
/// Most spans of the chart: a browser draws them all.
const MAX_SPANS: usize = 6000;

impl Board {
    /// Returns the last `num_steps` steps, of as many actors as fit.
    pub fn gantt(&self, num_steps: u64) -> Gantt {
        let last = self.actors.seen.values().filter_map(|seen| seen.spans.back()).map(|span| span.step).max();
        let Some(last) = last else { return Gantt::default() };
        let first = (last + 1).saturating_sub(num_steps);
        let mut gantt = Gantt { start: f64::INFINITY, end: f64::NEG_INFINITY, ..Gantt::default() };
        for (id, seen) in &self.actors.seen {
            if gantt.rows.len() == MAX_ROWS {
                gantt.num_left_out += 1;
                continue;
            }
            let row = gantt.rows.len() as u32;
            gantt.rows.push(id.to_string());
            for span in seen.spans.iter().filter(|span| span.step >= first) {
                let (start, end) = (seen.offset.seconds(span.start), seen.offset.seconds(span.end));
                gantt.spans.push(Span { row, start, end, activity: span.activity, step: span.step });
                // What data actors do is of later steps: it does not widen the picture.
                if id.role != Role::Data {
                    (gantt.start, gantt.end) = (gantt.start.min(start), gantt.end.max(end));
                }
            }
        }
        if gantt.start > gantt.end {
            return Gantt::default();
        }
        let (start, end) = (gantt.start, gantt.end);
        gantt.spans.retain_mut(|span| {
            (span.start, span.end) = (span.start.max(start), span.end.min(end));
            span.start < span.end
        });
        // The shortest are left out first.
        if gantt.spans.len() > MAX_SPANS {
            let mut lengths: Vec<f64> = gantt.spans.iter().map(|span| span.end - span.start).collect();
            lengths.sort_by(|a, b| b.total_cmp(a));
            let shortest = lengths[MAX_SPANS];
            gantt.spans.retain(|span| span.end - span.start > shortest);
        }
        gantt
    }

    /// Returns every kept span of every actor, in the Trace Event Format: a process an actor, times in microseconds.
    pub fn chrome_trace(&self) -> Value {
        let mut events = Vec::new();
        let begin =
            self.actors.seen.values().filter_map(|seen| seen.spans.front().map(|s| seen.offset.seconds(s.start)));
        let begin = begin.fold(f64::INFINITY, f64::min);
        for (pid, (id, seen)) in self.actors.seen.iter().enumerate() {
            let order = match id.role {
                Role::Scheduler => 0,
                Role::Data => 1,
                Role::Encoder => 2,
                Role::Foundation => 3,
            };
            let about = |name, args: Value| json!({ "ph": "M", "pid": pid, "tid": 0, "name": name, "args": args });
            events.push(about("process_name", json!({ "name": id.to_string() })));
            events.push(about("process_sort_index", json!({ "sort_index": order * 100_000 + id.index })));
            let time = |at| (seen.offset.seconds(at) - begin) * 1e6;
            for span in &seen.spans {
                let (start, end) = (time(span.start), time(span.end));
                events.push(json!({
                    "ph": "X",
                    "pid": pid,
                    "tid": 0,
                    "ts": start,
                    "dur": end - start,
                    "name": name(span),
                    "cat": if span.activity.is_busy() { "work" } else { "wait" },
                    "args": { "step": span.step },
                }));
            }
        }
        json!({
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "otherData": { "run": self.info.name, "version": self.info.version },
        })
    }
}

/// Returns the name of a span, such as `encode unit 3.1` or `idle`.
pub(super) fn name(span: &TraceSpan) -> String {
    let wait = if span.activity.is_busy() { "" } else { "waits for " };
    match span.index {
        Some(index) => format!("{wait}{} {}.{index}", span.activity.name(), span.step),
        None => format!("{wait}{}", span.activity.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::board::tests::{SECOND, board, span};
    use super::*;
    use crate::message::{Activity, ActorId, Trace};
    use crate::observe::watch::{News, RunInfo};

    #[test]
    fn clocks_that_differ_are_laid_over_each_other() {
        let mut board = Board::new(RunInfo::default(), 1, 5);
        // The foundation's clock is an hour ahead.
        for (actor, ahead) in [(ActorId::encoder(0), 0), (ActorId::foundation(0), 3600 * SECOND)] {
            let spans = vec![span(Activity::Pack, 1, ahead + SECOND, ahead + 2 * SECOND)];
            let trace = Trace { now: ahead + 3 * SECOND, spans, ..Trace::default() };
            board.take(News::Trace(actor, trace), 3 * SECOND, 0);
        }
        let gantt = board.gantt(1);
        assert_eq!((gantt.rows.len(), gantt.start, gantt.end), (2, 1.0, 2.0));
        assert!(gantt.spans.iter().all(|span| (span.start, span.end) == (1.0, 2.0)));
    }

    #[test]
    fn the_chart_has_the_steps_that_were_asked_for() {
        let gantt = board().gantt(1);
        assert_eq!(gantt.spans.iter().map(|span| span.step).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(Board::new(RunInfo::default(), 1, 1).gantt(5), Gantt::default());
    }

    #[test]
    fn a_trace_has_a_process_an_actor_and_every_span() {
        let trace = board().chrome_trace();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |ph: &str| events.iter().filter(|event| event["ph"] == ph).collect::<Vec<_>>();
        assert_eq!((of("M").len(), of("X").len()), (4, 4));
        assert_eq!(of("X")[0]["ts"], 0.0);
        assert_eq!(of("X")[0]["dur"], 500_000.0);
        assert_eq!(of("X")[3]["name"], "forward + backward");
    }
}
