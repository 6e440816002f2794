//! The board itself: bounded lists, and what is counted.

use super::actors::Actors;
use super::{News, RunInfo};
use crate::message::{ActorId, Timings};
use crate::observe::{EvalRecord, Goodput, StepMetrics};
use std::collections::{BTreeMap, VecDeque};

/// The state of a run, as far as it is known.
pub struct Board {
    pub(super) info: RunInfo,
    pub(super) actors: Actors,
    pub(super) steps: VecDeque<StepMetrics>,
    history: usize,
    goodput: Goodput,
    pub(super) counts: Counts,
    /// Seconds of the board's clock: at the last news, and when the first and the last step were applied.
    pub(super) now: f64,
    pub(super) begun: Option<f64>,
    pub(super) last_step: Option<f64>,
    pub(super) checkpoint: Option<u64>,
    /// Held-out losses by set, with the steps after which they were measured; of the last `history` evaluations.
    pub(super) evals: BTreeMap<String, VecDeque<(u64, f64)>>,
    /// The newest sheet of samples as PNG, and after how many steps they were made.
    pub(super) samples: Option<(u64, Vec<u8>)>,
    pub(super) ended: Option<String>,
}

/// The counts over the whole run of this process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub applied: u64,
    pub skipped: u64,
    pub tokens: u64,
    pub images: u64,
    pub bad_samples: u64,
    pub too_long: u64,
    pub uncopied: u64,
    pub checkpoints: u64,
    /// News that came faster than the board could take them.
    pub lost_news: u64,
    /// Seconds of publishing checkpoints.
    pub publishing: f64,
}

impl Board {
    /// Keeps the metrics of `history` steps and the timeline of `trace_steps`.
    pub fn new(info: RunInfo, history: usize, trace_steps: usize) -> Self {
        Self {
            actors: Actors::new(&info.actors, trace_steps as u64),
            info,
            steps: VecDeque::new(),
            history,
            goodput: Goodput::default(),
            counts: Counts::default(),
            now: 0.0,
            begun: None,
            last_step: None,
            checkpoint: None,
            evals: BTreeMap::new(),
            samples: None,
            ended: None,
        }
    }

    /// Begins with the steps that the run computed before this process, oldest first: they are shown in curves and means, and
    /// not counted.
    pub fn with_history(mut self, steps: Vec<StepMetrics>) -> Self {
        self.goodput = Goodput::of(&steps);
        let too_many = steps.len().saturating_sub(self.history);
        self.steps = steps.into_iter().skip(too_many).collect();
        self
    }

    /// Begins with the evaluations of the run before this process, oldest first.
    pub fn with_evaluations(mut self, evaluations: &[EvalRecord]) -> Self {
        for record in evaluations {
            if let Some(loss) = record.loss {
                self.evaluated(record.step, &record.set, loss);
            }
        }
        self
    }

    fn evaluated(&mut self, step: u64, set: &str, loss: f64) {
        let curve = self.evals.entry(set.to_owned()).or_default();
        curve.push_back((step, loss));
        curve.drain(..curve.len().saturating_sub(self.history));
    }

    /// Takes news at `now`, in nanoseconds of the board's clock; `lost`: news that were dropped so far.
    pub fn take(&mut self, news: News, now: u64, lost: u64) {
        self.counts.lost_news = lost;
        self.now = now as f64 / 1e9;
        match news {
            News::Step(metrics, timings) => self.step(*metrics, timings),
            News::Trace(actor, trace) => self.actors.traced(actor, trace, now),
            News::Evaluated { step, losses } => {
                losses.iter().for_each(|(set, loss)| self.evaluated(step, set, *loss));
            }
            News::Samples { step, png } => self.samples = Some((step, png)),
            News::Actor(actor, state) => self.actors.get(actor).state = state,
            News::Left(actor, state) => self.actors.left(actor, state),
            News::Checkpoint { step, took } => {
                self.counts.checkpoints += 1;
                self.counts.publishing += took.as_secs_f64();
                self.checkpoint = Some(step);
            }
            News::Ended(how) => self.ended = Some(how),
        }
    }

    /// Returns the newest sheet of samples, as PNG.
    pub fn samples(&self) -> Option<&[u8]> {
        self.samples.as_ref().map(|(_, png)| png.as_slice())
    }

    fn step(&mut self, metrics: StepMetrics, timings: Vec<(ActorId, Timings)>) {
        let now = self.now;
        let counts = &mut self.counts;
        counts.tokens += metrics.tokens;
        counts.images += metrics.images;
        counts.bad_samples = metrics.bad_samples;
        counts.too_long = metrics.too_long;
        counts.uncopied = metrics.uncopied_checkpoints;
        match metrics.skipped {
            true => counts.skipped += 1,
            false => counts.applied += 1,
        }
        self.goodput.add(&metrics);
        // The first step's own time is part of the run.
        self.begun.get_or_insert((now - metrics.step_ms / 1e3).max(0.0));
        self.last_step = Some(now);
        for (actor, timings) in timings {
            let seen = self.actors.get(actor);
            (seen.timings, seen.heard) = (timings, Some(now));
        }
        if self.steps.len() >= self.history {
            self.steps.pop_front();
        }
        // Of a large mixture of experts they are 100 kB a step, and only those of the last one are shown.
        if let Some(before) = self.steps.back_mut() {
            before.expert_loads = Vec::new();
        }
        self.steps.push_back(metrics);
    }

    /// Returns the goodput as [`Goodput`] defines it.
    pub(super) fn goodput(&self) -> Option<f64> {
        self.goodput.share()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::actors::{MAX_GONE, MAX_SPANS};
    use super::*;
    use crate::message::{Activity, EdgeLoad, ExpertLoads, Trace, TraceSpan};

    pub const SECOND: u64 = 1_000_000_000;

    /// Creates a span of a step without an index; `start` and `end` are in nanoseconds.
    pub fn span(activity: Activity, step: u64, start: u64, end: u64) -> TraceSpan {
        TraceSpan { activity, step, index: None, start, end }
    }

    /// Returns two actors, three steps, the last of them skipped.
    pub fn board() -> Board {
        let actors = vec![ActorId::encoder(0), ActorId::foundation(0)];
        let info = RunInfo { name: "a \"b\"".into(), actors, num_steps: 10, ..RunInfo::default() };
        let mut board = Board::new(info, 2, 2);
        for step in 0..3 {
            let at = (step + 1) * SECOND;
            for (actor, activity) in [(0, Activity::Encode), (1, Activity::Pack)] {
                let actor = if actor == 0 { ActorId::encoder(0) } else { ActorId::foundation(0) };
                let edges = vec![EdgeLoad { to: ActorId::foundation(0), in_flight: 10, credit: 100, num_unsent: 1 }];
                let spans = vec![span(activity, step, at - SECOND, at - SECOND / 2)];
                board.take(News::Trace(actor, Trace { now: at, spans, num_lost: 0, edges }), at, 0);
            }
            let loss = if step == 2 { f64::NAN } else { 4.0 };
            let skipped = step == 2;
            let active_s = (step + 1) as f64;
            let metrics =
                StepMetrics { step, loss, step_ms: 1e3, active_s, tokens: 100, skipped, ..StepMetrics::default() };
            let timings = Timings { busy: 0.75, idle: 0.25, ..Timings::default() };
            board.take(News::Step(Box::new(metrics), vec![(ActorId::foundation(0), timings)]), at, 4);
        }
        board
    }

    #[test]
    fn only_the_last_steps_are_kept() {
        let board = board();
        assert_eq!(board.steps.iter().map(|step| step.step).collect::<Vec<_>>(), [1, 2]);
        let kept: Vec<Vec<u64>> =
            board.actors.seen.values().map(|seen| seen.spans.iter().map(|span| span.step).collect()).collect();
        assert_eq!(kept, [vec![1, 2], vec![1, 2]]);
    }

    #[test]
    fn loads_of_experts_are_kept_of_the_last_step_alone() {
        let mut board = Board::new(RunInfo::default(), 9, 1);
        for step in 0..3 {
            let expert_loads = vec![ExpertLoads { layer: "layer 0".into(), tokens: vec![1, 2] }];
            let metrics = StepMetrics { step, expert_loads, ..StepMetrics::default() };
            board.take(News::Step(Box::new(metrics), Vec::new()), step * SECOND, 0);
        }
        assert_eq!(board.steps.iter().map(|step| step.expert_loads.len()).collect::<Vec<_>>(), [0, 0, 1]);
    }

    #[test]
    fn of_actors_that_have_left_the_last_ones_are_shown_and_their_times_do_not_count() {
        let mut board = board();
        let timings = Timings { busy: 0.0, idle: 1.0, ..Timings::default() };
        for index in 0..100 {
            let actor = ActorId::encoder(index);
            board.take(News::Step(Box::default(), vec![(actor, timings)]), 9 * SECOND, 0);
            if index < 99 {
                board.take(News::Left(actor, "has left: killed".into()), 9 * SECOND, 0);
            }
        }
        assert_eq!(board.actors.seen.len(), MAX_GONE + 2, "and the last encoder, and the foundation");
        let seen = &board.actors.seen[&ActorId::encoder(98)];
        assert_eq!((seen.state.as_str(), seen.timings.idle, seen.edges.len()), ("has left: killed", 0.0, 0));
        assert_eq!(board.actors.seen[&ActorId::encoder(99)].timings, timings);
    }

    #[test]
    fn the_newest_samples_are_kept() {
        let mut board = board();
        assert!(board.samples().is_none() && board.status()["samples_step"].is_null());
        for step in [1, 5] {
            board.take(News::Samples { step, png: vec![step as u8] }, 9 * SECOND, 0);
        }
        assert_eq!((board.samples(), board.status()["samples_step"].as_u64()), (Some(&[5][..]), Some(5)));
    }

    #[test]
    fn a_skipped_step_is_no_good() {
        let board = board();
        assert_eq!((board.counts.applied, board.counts.skipped, board.counts.lost_news), (2, 1, 4));
        assert!((board.goodput().unwrap() - 2.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn spans_of_one_endless_step_are_bounded() {
        let mut board = Board::new(RunInfo::default(), 1, 1);
        for at in 0..30 {
            let spans = (0..1000).map(|i| span(Activity::Read, 7, at * 1000 + i, at * 1000 + i + 1)).collect();
            board.take(News::Trace(ActorId::data(0), Trace { spans, ..Trace::default() }), at, 0);
        }
        assert_eq!(board.actors.seen[&ActorId::data(0)].spans.len(), MAX_SPANS);
    }
}
