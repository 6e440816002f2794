//! The part of the machine that runs an evaluation ([`Evaluations`](super::Evaluations)): held-out samples are measured, planned and
//! computed between two steps, with nothing else in flight.

use super::{Broken, Coordinator, InFlight, Output};
use crate::message::{ActorId, SampleMeta, SaveTo, SkippedSample, StepId, StepPlan};
use crate::schedule::coordinator::evaluations::EvaluationPass;
use crate::schedule::coordinator::intake::Measured;
use crate::schedule::{PackLimits, PlanSpec, SampleSize, plan_evaluation};

impl Coordinator {
    /// Returns whether a plan of an evaluation is in flight.
    pub(super) fn evaluates(&self) -> bool {
        self.in_flight.get(&self.current).is_some_and(InFlight::is_evaluation)
    }

    /// Returns whether the engines are dropping a plan of an evaluation; no epoch begins meanwhile.
    pub(super) fn ends_evaluation(&self) -> bool {
        self.evaluates() && self.in_flight.get(&self.current).is_some_and(InFlight::is_decided)
    }

    /// Returns whether an evaluation comes before the next plan.
    pub(super) fn is_to_evaluate(&self) -> bool {
        !self.stop_requested && !self.is_probing() && self.evaluations.is_due(self.next_plan)
    }

    /// Takes the next possible actions of a due evaluation.
    pub(super) fn evaluate(&mut self) -> Result<(), Broken> {
        while self.is_to_evaluate() {
            if let Some(asked) = self.evaluations.ask(self.next_plan) {
                let window = self.intake.read_again(asked);
                self.send_to_data(&window.command());
            }
            if self.current < self.next_plan || !self.in_flight.is_empty() {
                return Ok(());
            }
            let Some(asked) = self.evaluations.asked() else {
                if self.evaluations.goes_on() {
                    continue;
                }
                self.conclude_evaluation();
                return Ok(());
            };
            let Some(answers) = self.intake.take_answers(asked) else { return Ok(()) };
            let Some((pass, round)) = self.evaluations.take() else { return Ok(()) };
            let samples = self.usable(answers, &pass);
            if !samples.is_empty() {
                self.send_evaluation(&pass, round, samples)?;
            }
        }
        if self.stop_requested && !self.evaluations.is_open() {
            self.evaluations.abandon();
        }
        Ok(())
    }

    /// Assigns the units of a plan to the present encoders, whatever their speed.
    pub(super) fn place(&self, plan: &mut StepPlan) {
        for pool in self.encoders.iter() {
            let of_pool = plan.units.iter_mut().filter(|unit| pool.has(unit));
            of_pool.for_each(|unit| unit.encoder = pool.worker(unit.encoder.index, 0));
        }
    }

    /// Returns the samples that can be computed; the others are reported once.
    fn usable(&mut self, answers: Vec<Measured>, pass: &EvaluationPass) -> Vec<SampleMeta> {
        let (mut samples, mut told) = (Vec::new(), Vec::new());
        for answer in answers {
            let bad = match answer {
                Err(bad) => bad,
                Ok(mut sample) => {
                    if let (Some(target), Some(sigma)) = (&mut sample.target, pass.sigma) {
                        target.sigma = sigma;
                        sample.route = self.spec.plan.sigma.as_ref().map_or(0, |levels| levels.route(sigma));
                    }
                    let reason = match self.spec.plan.pack.check(sample.id, SampleSize::of(&sample)) {
                        Err(error) => error.to_string(),
                        Ok(()) if pass.purpose.is_score() && sample.num_targets == 0 => {
                            "no token of it counts in the loss".to_owned()
                        }
                        Ok(()) if pass.purpose.is_sample() && sample.target.is_none() => {
                            "it does not give the size of the picture or clip".to_owned()
                        }
                        Ok(()) => {
                            samples.push(sample);
                            continue;
                        }
                    };
                    SkippedSample {
                        id: sample.id,
                        source: format!("held-out sample {}", sample.id),
                        reason,
                        too_long: false,
                    }
                }
            };
            if self.evaluations.bad(bad.id) {
                told.push(bad);
            }
        }
        if !told.is_empty() {
            self.out.push(Output::Bad(told));
        }
        samples
    }

    fn send_evaluation(&mut self, pass: &EvaluationPass, round: u32, samples: Vec<SampleMeta>) -> Result<(), Broken> {
        let (step, num_samples) = (self.current, samples.len());
        let limits = self.spec.plan.pack;
        let pack = PackLimits { max_samples: limits.max_samples.min(pass.max_samples), ..limits };
        let spec = PlanSpec { pack, ..self.spec.plan.clone() };
        let mut plan = plan_evaluation(&spec, (step, round), pass.purpose, samples)
            .map_err(|error| (ActorId::SCHEDULER, format!("evaluation before step {step}: {error}")))?;
        self.place(&mut plan);
        let skipped = self.skip_poison_units(&plan)?;
        self.begin_step(plan, &skipped, Vec::new());
        self.evaluations.planned(num_samples);
        Ok(())
    }

    /// Concludes a complete evaluation: reports it, saves the best step, and ends the run if nothing improves.
    fn conclude_evaluation(&mut self) {
        let Some(summary) = self.evaluations.conclude(self.next_plan) else { return };
        self.stream.evaluated = self.evaluations.evaluated();
        let last = self.current.0.checked_sub(1).map(StepId).filter(|_| self.is_unkept());
        if let Some(last) = last.filter(|last| !self.saves.has(*last) && !self.saves.waits())
            && summary.is_best
            && self.evaluations.saves_best()
        {
            self.save(last, SaveTo::Disk, self.stream.clone());
        }
        if summary.stops {
            self.end = self.end.min(self.current);
        }
        self.out.push(Output::Evaluated(Box::new(summary)));
    }
}
