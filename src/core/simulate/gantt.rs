//! Tells who did what when: spans of a few ranks over a few steps, to be drawn.

use super::Activity;
use super::SimSpec;
use super::rank::Rank;
use crate::message::Role;

/// Rows that are drawn of each role.
const MAX_ROWS: [(Role, usize); 3] = [(Role::Data, 2), (Role::Encoder, 8), (Role::Foundation, 16)];
/// Most spans that are kept.
const MAX_SPANS: usize = 100_000;

/// Spans by row; all times in seconds of the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gantt {
    /// `encoder/1`, `foundation/0 stage 2`.
    pub rows: Vec<String>,
    /// Ranks that have no row.
    pub num_left_out: usize,
    pub spans: Vec<Span>,
    pub start: f64,
    pub end: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    pub row: u32,
    pub start: f64,
    pub end: f64,
    pub activity: Activity,
    /// The step that the rank is in; of data actors the first that is drawn.
    pub step: u64,
}

/// Collects spans while a simulation runs.
pub(super) struct Recorder {
    /// The row of each rank.
    rows: Vec<Option<u32>>,
    steps: std::ops::Range<u64>,
    /// A compute rank is in one of the steps.
    running: bool,
    gantt: Gantt,
}

impl Recorder {
    /// Chooses the ranks and the steps to be drawn: a few of each role, behind the warm-up.
    pub fn new(spec: &SimSpec, ranks: &[Rank]) -> Self {
        let first = spec.coordinator.first_step.0 + spec.warm_up;
        let stages = spec.cluster.stages.max(1);
        let mut gantt = Gantt::default();
        let mut counts = [0; 3];
        let rows = ranks.iter().enumerate().map(|(at, rank)| {
            let which = MAX_ROWS.iter().position(|(role, _)| *role == rank.actor.role)?;
            counts[which] += 1;
            if counts[which] > MAX_ROWS[which].1 || spec.drawn_steps == 0 {
                gantt.num_left_out += 1;
                return None;
            }
            let base = ranks.len() - spec.coordinator.pools.num_foundations() as usize * stages as usize;
            gantt.rows.push(match rank.stage {
                Some(_) if stages > 1 => {
                    format!("{} stage {}", rank.actor, (at - base) % stages as usize)
                }
                _ => rank.actor.to_string(),
            });
            Some(gantt.rows.len() as u32 - 1)
        });
        let rows = rows.collect();
        Self { rows, steps: first..first + spec.drawn_steps, running: false, gantt }
    }

    /// Returns whether a rank has a row.
    pub fn draws(&self, rank: u32) -> bool {
        self.rows[rank as usize].is_some()
    }

    /// Records what a rank did until now.
    pub fn span(&mut self, rank: u32, state: &Rank, now: f64) {
        let Some(row) = self.rows[rank as usize] else {
            return;
        };
        let computes = state.actor.role != Role::Data;
        let drawn = self.steps.contains(&state.version);
        if computes {
            self.running = drawn;
        }
        if self.gantt.spans.len() < MAX_SPANS && (drawn && computes || self.running && !computes) {
            let step = state.version.max(self.steps.start);
            self.gantt.spans.push(Span { row, start: state.since, end: now, activity: state.doing, step });
        }
    }

    /// Ends the drawing; time begins with the first computation.
    pub fn finish(mut self) -> Gantt {
        let is_data = |span: &Span| self.gantt.rows[span.row as usize].starts_with(Role::Data.name());
        let compute = self.gantt.spans.iter().filter(|span| !is_data(span));
        let (start, end) =
            compute.fold((f64::INFINITY, 0.0_f64), |(start, end), span| (start.min(span.start), end.max(span.end)));
        if start > end {
            return Gantt::default();
        }
        self.gantt.spans.retain_mut(|span| {
            (span.start, span.end) = (span.start.max(start), span.end.min(end));
            span.start < span.end
        });
        (self.gantt.start, self.gantt.end) = (start, end);
        self.gantt
    }
}
