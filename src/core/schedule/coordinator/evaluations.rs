//! Evaluations between steps: when one is due, what it is made of, and what it has come to.
//!
//! A set has passes: held-out samples that are computed for one purpose, such as scoring or generating. The samples of a pass
//! are computed a plan at a time. Sets may be due at different steps.

use crate::message::{EvaluationReport, Purpose, SampleId, Sigma, StepId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;

/// Held-out samples that are evaluated while a run goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationSpec {
    pub sets: Vec<EvaluationSet>,
    /// The set whose loss says which step is the best one, if any is scored.
    pub decisive: Option<usize>,
    /// The best step is saved, even where no checkpoint is due.
    pub save_best: bool,
    /// Evaluations without a lower loss after which the run ends.
    pub patience: Option<u64>,
    /// Samples of one plan.
    pub batch_size: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationSet {
    pub name: String,
    /// Steps from one evaluation to the next; there is one after the last step in any case.
    pub every: u64,
    /// There is one before the first step.
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

    /// Returns whether pictures or clips are made of it, and nothing else.
    fn is_made(&self) -> bool {
        self.passes.iter().all(|pass| pass.purpose.is_sample())
    }
}

/// Held-out samples and what is computed of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationPass {
    pub purpose: Purpose,
    /// The stream of [`SampleId::held_out`], and how many of its first samples are taken.
    pub stream: u16,
    pub num_samples: u64,
    /// Most samples of a pack, besides the run's own limit.
    pub max_samples: usize,
    /// The noise level at which samples of a diffusion model are scored, or that at which they are begun: it chooses the
    /// transformer, where there are two.
    pub sigma: Option<Sigma>,
}

/// Holds what the evaluations so far have come to; a checkpoint holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// Steps that were done at the last one.
    pub at: Option<StepId>,
    pub best: Option<Best>,
    /// Evaluations since the best one.
    pub without_progress: u64,
}

/// The evaluation with the lowest loss of the decisive set.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Steps that were done then.
    pub step: StepId,
    pub loss: f64,
}

impl Evaluated {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One evaluation of all sets.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluationSummary {
    /// Steps that are done: the parameters are those with which this step begins.
    pub step: StepId,
    /// The sets that were due, but those that pictures or clips are made of.
    pub sets: Vec<SetResult>,
    /// The set of these that decides, and whether its loss is lower than ever before.
    pub decisive: Option<usize>,
    pub is_best: bool,
    /// Pictures and clips that were made, as names of files in the run's folder.
    pub made: Vec<(SampleId, String)>,
    pub evaluated: Evaluated,
    /// The run ends, since the loss has not become lower for as many evaluations as `patience`.
    pub stops: bool,
}

/// Holds what was found of one set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SetResult {
    pub name: String,
    /// Samples that were scored.
    pub num_samples: u64,
    /// Samples that could not be used.
    pub num_bad: u64,
    pub found: EvaluationReport,
    /// Holds what was found at each noise level.
    pub levels: Vec<(Sigma, EvaluationReport)>,
}

impl SetResult {
    /// Mean loss of a target, of tokens the cross-entropy in nats; not a number where there was none.
    pub fn loss(&self) -> f64 {
        self.found.loss_sum / self.found.num_targets as f64
    }

    /// Part of the targets that are predicted.
    pub fn accuracy(&self) -> Option<f64> {
        let correct = self.found.num_correct.filter(|_| self.found.num_targets > 0)?;
        Some(correct as f64 / self.found.num_targets as f64)
    }
}

/// Describes which evaluation is due or going on.
#[derive(Serialize, Deserialize)]
pub(super) struct Evaluations {
    spec: Option<EvaluationSpec>,
    /// Steps of the whole run.
    steps: u64,
    evaluated: Evaluated,
    round: Option<Round>,
    /// Plans of all evaluations so far.
    num_plans: u32,
    /// Samples that were told to be bad.
    bad: BTreeSet<SampleId>,
}

#[derive(Serialize, Deserialize)]
struct Round {
    set: usize,
    pass: usize,
    /// Samples of the pass that were taken.
    taken: u64,
    /// Samples that data actors were asked for.
    asked: Option<Vec<SampleId>>,
    /// A plan is in flight.
    open: bool,
    /// Which sets are due.
    due: Vec<bool>,
    results: Vec<SetResult>,
}

impl Evaluations {
    /// Goes on from what was evaluated before, of a run of so many steps; `None`: nothing is evaluated.
    pub fn new(spec: Option<EvaluationSpec>, steps: u64, evaluated: Evaluated) -> Self {
        Self { spec, steps, evaluated, round: None, num_plans: 0, bad: BTreeSet::new() }
    }

    /// Returns what a checkpoint keeps of evaluations.
    pub fn evaluated(&self) -> Evaluated {
        self.evaluated
    }

    /// Returns whether there is one to be done before `step`.
    pub fn is_due(&self, step: StepId) -> bool {
        let Some(spec) = &self.spec else { return false };
        let is_at = spec.sets.iter().any(|set| set.is_due(step, self.steps));
        is_at && self.evaluated.at < Some(step) && !self.stops()
    }

    /// The run ends early.
    pub fn stops(&self) -> bool {
        let patience = self.spec.as_ref().and_then(|spec| spec.patience);
        patience.is_some_and(|patience| self.evaluated.without_progress >= patience)
    }

    /// Returns whether the best checkpoint is kept.
    pub fn saves_best(&self) -> bool {
        self.spec.as_ref().is_some_and(|spec| spec.save_best)
    }

    /// A plan is in flight.
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
        let begin = || Round {
            set: 0,
            pass: 0,
            taken: 0,
            asked: None,
            open: false,
            due: spec.sets.iter().map(|set| set.is_due(step, steps)).collect(),
            results: spec.sets.iter().map(result).collect(),
        };
        Some((spec, self.round.get_or_insert_with(begin)))
    }

    /// The samples to ask data actors for now, in the evaluation before `step`: those of the next plan, if nobody was asked for
    /// them.
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

    /// The samples that were asked for.
    pub fn asked(&self) -> Option<&[SampleId]> {
        self.round.as_ref()?.asked.as_deref()
    }

    /// Takes the samples that were asked for: the pass that they are of, and a number for their plan.
    pub fn take(&mut self) -> Option<(EvaluationPass, u32)> {
        let (spec, round) = (self.spec.as_ref()?, self.round.as_mut()?);
        let asked = round.asked.take()?;
        let pass = spec.sets[round.set].passes[round.pass].clone();
        round.taken += asked.len() as u64;
        self.num_plans = self.num_plans.wrapping_add(1);
        Some((pass, self.num_plans))
    }

    /// A plan of so many samples is sent, and others could not be used.
    pub fn planned(&mut self, num_samples: usize) {
        let Some(round) = &mut self.round else { return };
        round.open = true;
        let Some(spec) = &self.spec else { return };
        if spec.sets[round.set].passes[round.pass].purpose.is_score() && !round.scores_again(spec) {
            round.results[round.set].num_samples += num_samples as u64;
        }
    }

    /// Counts a bad sample; true where it was not told before.
    pub fn bad(&mut self, sample: SampleId) -> bool {
        if let Some((spec, round)) = self.spec.as_ref().zip(self.round.as_mut())
            && !round.scores_again(spec)
        {
            round.results[round.set].num_bad += 1;
        }
        self.bad.insert(sample)
    }

    /// Takes what was found of the plan in flight.
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

    /// The plan in flight is forgotten by all engines.
    pub fn closed(&mut self) {
        if let Some(round) = &mut self.round {
            round.open = false;
        }
    }

    /// Ends the evaluation before `step`, of which nothing is left to do.
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
        let is_lower = |loss: &f64| loss.is_finite() && self.evaluated.best.is_none_or(|best| *loss < best.loss);
        let best = loss.filter(is_lower);
        if let Some(loss) = best {
            (self.evaluated.best, self.evaluated.without_progress) = (Some(Best { step, loss }), 0);
        } else if decisive.is_some() {
            self.evaluated.without_progress += 1;
        }
        let (is_best, evaluated, stops) = (best.is_some(), self.evaluated, self.stops());
        Some(EvaluationSummary { step, sets, decisive, is_best, made, evaluated, stops })
    }

    /// Forgets the evaluation that goes on: the run is to stop.
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

    /// The next pass that has samples left; what is asked for then is of that pass. Not while a plan of another set is in
    /// flight, whose results are still to come.
    fn skip_to<'a>(&mut self, spec: &'a EvaluationSpec) -> Option<&'a EvaluationPass> {
        loop {
            let set = spec.sets.get(self.set)?;
            match set.passes.get(self.pass).filter(|_| self.due[self.set]) {
                Some(pass) if self.taken < pass.num_samples => return Some(pass),
                _ if self.open => return None,
                Some(_) => (self.pass, self.taken) = (self.pass + 1, 0),
                None => (self.set, self.pass, self.taken) = (self.set + 1, 0, 0),
            }
        }
    }
}
