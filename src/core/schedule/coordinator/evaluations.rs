//! Evaluations between steps: when one is due, what it consists of, and its results.
//!
//! A set has passes: held-out samples that are computed for one purpose, such as scoring or generating. The samples of a pass are
//! computed one plan at a time. Sets may be due at different steps.

use crate::message::{EvaluationReport, Purpose, SampleId, Sigma, StepId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;

/// Held-out samples that are evaluated during a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationSpec {
    pub sets: Vec<EvaluationSet>,
    /// The set whose loss determines the best step, if any set is scored.
    pub decisive: Option<usize>,
    /// True if the best step is saved even if no checkpoint is due.
    pub save_best: bool,
    /// Number of evaluations without progress after which the run ends.
    pub patience: Option<u64>,
    /// The least decrease of the loss since the last progress that counts as progress; 0: any lower loss counts.
    pub min_delta: f64,
    /// Samples per plan.
    pub batch_size: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationSet {
    pub name: String,
    /// Number of steps between evaluations; there is always one after the last step, also where patience ends the run.
    pub every: u64,
    /// True if there is one before the first step.
    pub at_start: bool,
    pub passes: Vec<EvaluationPass>,
}

impl EvaluationSet {
    fn is_due(&self, step: StepId, steps: u64) -> bool {
        match step.0 {
            0 => self.at_start,
            step => step == steps || (self.every > 0 && step.is_multiple_of(self.every)),
        }
    }

    /// Returns whether the set is only used to generate pictures or clips.
    fn is_made(&self) -> bool {
        self.passes.iter().all(|pass| pass.purpose.is_sample())
    }
}

/// Held-out samples and what is computed from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationPass {
    pub purpose: Purpose,
    /// The stream of [`SampleId::held_out`], and how many of its first samples are used.
    pub stream: u16,
    pub num_samples: u64,
    /// Maximum number of samples per pack, in addition to the run's own limit.
    pub max_samples: usize,
    /// Noise level at which samples of a diffusion model are scored, or at which generation starts: it selects the transformer if
    /// there are two.
    pub sigma: Option<Sigma>,
}

/// Results of the evaluations so far, which checkpoints contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// Number of steps done at the last evaluation.
    pub at: Option<StepId>,
    pub best: Option<Best>,
    /// Loss at the last progress; `None` in a checkpoint from before `min_delta`, where it is that of the best evaluation.
    #[serde(default)]
    pub progress: Option<f64>,
    /// Number of evaluations since the last progress.
    pub without_progress: u64,
}

/// The evaluation with the lowest loss of the decisive set.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Number of steps done at that time.
    pub step: StepId,
    pub loss: f64,
}

impl Evaluated {
    /// Returns whether nothing has been evaluated yet.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether `loss` is the lowest so far.
    fn is_lower(&self, loss: f64) -> bool {
        loss.is_finite() && self.best.is_none_or(|best| loss < best.loss)
    }

    /// Returns whether `loss` is progress: lower than at the last progress by more than `min_delta`.
    fn is_progress(&self, loss: f64, min_delta: f64) -> bool {
        let last = self.progress.or(self.best.map(|best| best.loss));
        loss.is_finite() && last.is_none_or(|last| loss < last - min_delta)
    }
}

/// One evaluation of all sets.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluationSummary {
    /// Number of steps done: the parameters are those with which this step begins.
    pub step: StepId,
    /// The sets that were due, except those used to generate pictures or clips.
    pub sets: Vec<SetResult>,
    /// The decisive set among them, and whether its loss is the lowest so far.
    pub decisive: Option<usize>,
    pub is_best: bool,
    /// Generated pictures and clips, as names of files in the run's folder.
    pub made: Vec<(SampleId, String)>,
    pub evaluated: Evaluated,
    /// The run ends: `patience` evaluations have brought no progress.
    pub stops: bool,
}

/// Results of one set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SetResult {
    pub name: String,
    /// Number of scored samples.
    pub num_samples: u64,
    /// Number of unusable samples.
    pub num_bad: u64,
    pub found: EvaluationReport,
    /// Results at each noise level.
    pub levels: Vec<(Sigma, EvaluationReport)>,
}

impl SetResult {
    /// Returns the mean loss of a target; for tokens, the cross-entropy in nats; NaN if there were no targets.
    pub fn loss(&self) -> f64 {
        self.found.loss_sum / self.found.num_targets as f64
    }

    /// Returns the fraction of the targets that are predicted.
    pub fn accuracy(&self) -> Option<f64> {
        let correct = self.found.num_correct.filter(|_| self.found.num_targets > 0)?;
        Some(correct as f64 / self.found.num_targets as f64)
    }
}

/// The evaluation that is due or in progress.
#[derive(Serialize, Deserialize)]
pub(super) struct Evaluations {
    spec: Option<EvaluationSpec>,
    /// Number of steps of the whole run.
    steps: u64,
    evaluated: Evaluated,
    round: Option<Round>,
    /// Number of plans of all evaluations so far.
    num_plans: u32,
    /// Samples reported as bad.
    bad: BTreeSet<SampleId>,
}

#[derive(Serialize, Deserialize)]
struct Round {
    set: usize,
    pass: usize,
    /// Number of samples of the pass that were taken.
    taken: u64,
    /// Number of samples requested from data actors.
    asked: Option<Vec<SampleId>>,
    /// True if a plan is in flight.
    open: bool,
    /// True for the sets that are due.
    due: Vec<bool>,
    /// True for the sets that are evaluated now: first all of them, then those that are due because the run ends.
    present: Vec<bool>,
    results: Vec<SetResult>,
}

impl Evaluations {
    /// Continues from earlier evaluations, for a run of this many steps; `None`: nothing is evaluated.
    pub fn new(spec: Option<EvaluationSpec>, steps: u64, evaluated: Evaluated) -> Self {
        Self { spec, steps, evaluated, round: None, num_plans: 0, bad: BTreeSet::new() }
    }

    /// Returns the results to store in a checkpoint.
    pub fn evaluated(&self) -> Evaluated {
        self.evaluated
    }

    /// Returns whether an evaluation is due before `step`.
    pub fn is_due(&self, step: StepId) -> bool {
        let Some(spec) = &self.spec else { return false };
        let is_at = spec.sets.iter().any(|set| set.is_due(step, self.steps));
        is_at && self.evaluated.at < Some(step) && !self.stops()
    }

    /// Returns whether the run ends early.
    pub fn stops(&self) -> bool {
        let patience = self.spec.as_ref().and_then(|spec| spec.patience);
        patience.is_some_and(|patience| self.evaluated.without_progress >= patience)
    }

    /// Returns whether the best checkpoint is kept.
    pub fn saves_best(&self) -> bool {
        self.spec.as_ref().is_some_and(|spec| spec.save_best)
    }

    /// Returns whether a plan is in flight.
    pub fn is_open(&self) -> bool {
        self.round.as_ref().is_some_and(|round| round.open)
    }

    fn begin(&mut self, step: StepId) -> Option<(&EvaluationSpec, &mut Round)> {
        let (spec, steps) = (self.spec.as_ref()?, self.steps);
        let result = |set: &EvaluationSet| SetResult {
            name: set.name.clone(),
            found: EvaluationReport { num_correct: Some(0), ..EvaluationReport::default() },
            ..SetResult::default()
        };
        let begin = || {
            let due: Vec<bool> = spec.sets.iter().map(|set| set.is_due(step, steps)).collect();
            let results = spec.sets.iter().map(result).collect();
            Round { set: 0, pass: 0, taken: 0, asked: None, open: false, present: due.clone(), due, results }
        };
        Some((spec, self.round.get_or_insert_with(begin)))
    }

    /// Returns the samples to request from data actors now, in the evaluation before `step`: those of the next plan, unless they
    /// were requested already.
    pub fn ask(&mut self, step: StepId) -> Option<Vec<SampleId>> {
        let (spec, round) = self.begin(step)?;
        if round.asked.is_some() {
            return None;
        }
        let pass = round.skip_to(spec)?;
        let range: Range<u64> = round.taken..pass.num_samples.min(round.taken + spec.batch_size as u64);
        let asked: Vec<SampleId> = range.map(|index| SampleId::held_out(pass.stream, index)).collect();
        round.asked = Some(asked.clone());
        Some(asked)
    }

    /// Returns the samples that were requested and not yet taken.
    pub fn asked(&self) -> Option<&[SampleId]> {
        self.round.as_ref()?.asked.as_deref()
    }

    /// Takes the requested samples: the pass that they belong to, and a number for their plan.
    pub fn take(&mut self) -> Option<(EvaluationPass, u32)> {
        let (spec, round) = (self.spec.as_ref()?, self.round.as_mut()?);
        let asked = round.asked.take()?;
        let pass = spec.sets[round.set].passes[round.pass].clone();
        round.taken += asked.len() as u64;
        self.num_plans = self.num_plans.wrapping_add(1);
        Some((pass, self.num_plans))
    }

    /// Records that a plan of this many samples is sent.
    pub fn planned(&mut self, num_samples: usize) {
        let Some(round) = &mut self.round else { return };
        round.open = true;
        let Some(spec) = &self.spec else { return };
        if spec.sets[round.set].passes[round.pass].purpose.is_score() && !round.scores_again(spec) {
            round.results[round.set].num_samples += num_samples as u64;
        }
    }

    /// Counts a bad sample; returns whether it was not reported before.
    pub fn bad(&mut self, sample: SampleId) -> bool {
        if let Some((spec, round)) = self.spec.as_ref().zip(self.round.as_mut())
            && !round.scores_again(spec)
        {
            round.results[round.set].num_bad += 1;
        }
        self.bad.insert(sample)
    }

    /// Notes a planned sample that turned out to be bad; returns whether it was not reported before.
    pub fn turned_bad(&mut self, sample: SampleId) -> bool {
        self.bad.insert(sample)
    }

    /// Adds the results of the plan in flight.
    pub fn found(&mut self, found: EvaluationReport) {
        let Some((spec, round)) = self.spec.as_ref().zip(self.round.as_mut()) else { return };
        let result = &mut round.results[round.set];
        if let Some(sigma) = spec.sets[round.set].passes[round.pass].sigma {
            match result.levels.iter_mut().find(|(level, _)| *level == sigma) {
                Some((_, at_level)) => at_level.add(found.clone()),
                None => result.levels.push((sigma, found.clone())),
            }
        }
        result.found.add(found);
    }

    /// Records that all engines have dropped the plan in flight.
    pub fn closed(&mut self) {
        if let Some(round) = &mut self.round {
            round.open = false;
        }
    }

    /// Goes on with the sets that were not due, if what was found ends the run. Returns whether there are some.
    pub fn goes_on(&mut self) -> bool {
        let Some((spec, round)) = self.spec.as_ref().zip(self.round.as_mut()) else { return false };
        let is_progress = |loss: f64| self.evaluated.is_progress(loss, spec.min_delta);
        let is_decided = spec.decisive.is_some_and(|set| round.due[set] && !is_progress(round.results[set].loss()));
        let is_last = spec.patience.is_some_and(|patience| self.evaluated.without_progress + 1 >= patience);
        let is_whole = round.due.iter().all(|due| *due);
        if !is_decided || !is_last || is_whole {
            return false;
        }
        round.present = round.due.iter().map(|due| !due).collect();
        round.due.fill(true);
        (round.set, round.pass, round.taken) = (0, 0, 0);
        true
    }

    /// Ends the evaluation before `step`, which has nothing left to do.
    pub fn conclude(&mut self, step: StepId) -> Option<EvaluationSummary> {
        let (spec, round) = (self.spec.as_ref()?, self.round.take()?);
        let (mut sets, mut made, mut decisive) = (Vec::new(), Vec::new(), None);
        let results = spec.sets.iter().zip(round.results).zip(round.due).enumerate();
        for (number, ((set, result), _)) in results.filter(|(_, (_, is_due))| *is_due) {
            if set.is_made() {
                made.extend(result.found.made);
                continue;
            }
            decisive = decisive.or((spec.decisive == Some(number)).then_some(sets.len()));
            sets.push(result);
        }
        self.evaluated.at = Some(step);
        let loss = decisive.map(|decisive: usize| sets[decisive].loss());
        let progress = loss.filter(|loss| self.evaluated.is_progress(*loss, spec.min_delta));
        let best = loss.filter(|loss| self.evaluated.is_lower(*loss));
        if progress.is_some() {
            (self.evaluated.progress, self.evaluated.without_progress) = (progress, 0);
        } else if decisive.is_some() {
            // A checkpoint from before `min_delta` has no such loss, and the best one may change now.
            self.evaluated.progress = self.evaluated.progress.or(self.evaluated.best.map(|best| best.loss));
            self.evaluated.without_progress += 1;
        }
        if let Some(loss) = best {
            self.evaluated.best = Some(Best { step, loss });
        }
        let (is_best, evaluated, stops) = (best.is_some(), self.evaluated, self.stops());
        Some(EvaluationSummary { step, sets, decisive, is_best, made, evaluated, stops })
    }

    /// Drops the current evaluation: the run is to stop.
    pub fn abandon(&mut self) {
        self.round = None;
    }
}

impl Round {
    /// Returns whether the samples of the pass are those of an earlier one, at another noise level.
    fn scores_again(&self, spec: &EvaluationSpec) -> bool {
        let passes = &spec.sets[self.set].passes;
        let first = passes.iter().position(|pass| pass.purpose.is_score());
        passes[self.pass].purpose.is_score() && first != Some(self.pass)
    }

    /// Returns the next pass that has samples left; samples are then requested for that pass. There is none while a plan of another set
    /// is in flight, whose results are still to come.
    fn skip_to<'a>(&mut self, spec: &'a EvaluationSpec) -> Option<&'a EvaluationPass> {
        loop {
            let set = spec.sets.get(self.set)?;
            match set.passes.get(self.pass).filter(|_| self.present[self.set]) {
                Some(pass) if self.taken < pass.num_samples => return Some(pass),
                _ if self.open => return None,
                Some(_) => (self.pass, self.taken) = (self.pass + 1, 0),
                None => (self.set, self.pass, self.taken) = (self.set + 1, 0, 0),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluates a set once for each loss; returns the best step, the evaluations without progress and whether the run ends.
    fn course(min_delta: f64, before: Evaluated, losses: &[f64]) -> Vec<(u64, u64, bool)> {
        let purpose = Purpose::Score { draw: 0 };
        let pass = EvaluationPass { purpose, stream: 0, num_samples: 1, max_samples: 1, sigma: None };
        let set = EvaluationSet { name: "val".to_owned(), every: 1, at_start: false, passes: vec![pass] };
        let (decisive, save_best, patience) = (Some(0), true, Some(3));
        let spec = EvaluationSpec { sets: vec![set], decisive, save_best, patience, min_delta, batch_size: 1 };
        let mut evaluations = Evaluations::new(Some(spec), 100, before);
        let evaluate = |(at, loss): (usize, &f64)| {
            let step = StepId(before.at.map_or(1, |step| step.0 + 1) + at as u64);
            evaluations.ask(step);
            evaluations.found(EvaluationReport { loss_sum: *loss, num_targets: 1, ..EvaluationReport::default() });
            let EvaluationSummary { evaluated, stops, .. } = evaluations.conclude(step).unwrap();
            (evaluated.best.map_or(0, |best| best.step.0), evaluated.without_progress, stops)
        };
        losses.iter().enumerate().map(evaluate).collect()
    }

    #[test]
    fn noise_below_the_least_improvement_does_not_reset_patience() {
        let losses = [1.0, 0.995, 0.99, 0.985];
        let none = Evaluated::default();
        assert_eq!(course(0.0, none, &losses), [(1, 0, false), (2, 0, false), (3, 0, false), (4, 0, false)]);
        // The lowest loss is the best one all the same.
        assert_eq!(course(0.02, none, &losses), [(1, 0, false), (2, 1, false), (3, 2, false), (4, 3, true)]);
        // Small improvements add up, and exactly the least one is none.
        let counts = course(0.25, none, &[1.0, 0.875, 0.75, 0.625]);
        assert_eq!(counts, [(1, 0, false), (2, 1, false), (3, 2, false), (4, 0, false)]);
        assert_eq!(course(0.25, none, &[f64::NAN, 1.0]), [(0, 1, false), (2, 0, false)]);
    }

    #[test]
    fn a_checkpoint_from_before_the_least_improvement_counts_from_its_best_loss() {
        let old = r#"{"at": 4, "best": {"step": 2, "loss": 1.0}, "without_progress": 1}"#;
        let old: Evaluated = serde_json::from_str(old).unwrap();
        assert_eq!(course(0.25, old, &[0.9, 0.7]), [(5, 2, false), (6, 0, false)]);
        assert_eq!(course(0.25, old, &[0.9, 0.8]), [(5, 2, false), (6, 3, true)]);
    }
}
