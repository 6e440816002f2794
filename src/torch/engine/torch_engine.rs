//! Steps of an actor that computes with libtorch: its encoder, its foundation, or both.

mod commands;
mod saving;

use super::elastic::Membership;
use super::encoder::EncoderWorker;
use super::export_files::Exports;
use super::foundation::FoundationWorker;
use super::saver::Saver;
use super::step_profile::StepProfile;
use crate::native::MemoryWatch;
use crate::train::TrainState;
use loongforge_core::engine::{Engine, EngineError, Ports, fault};
use loongforge_core::message::{
    Activity, ActorId, Epoch, Event, MemoryReport, Regroup, SaveTo, StepId, StepPlan, StepReport, Timings, Tower,
    Version,
};
use loongforge_core::transport::Parcel;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// An encoder, a foundation, or both in one actor.
///
/// Stop: drops everything at once, since a step that was not applied leaves no trace. A peer that is gone is an error.
pub struct TorchEngine {
    encoder: Option<EncoderWorker>,
    foundation: Option<FoundationWorker>,
    exports: Exports,
    savers: BTreeMap<SaveTo, Saver>,
    /// The saves that are due at the end of these steps.
    due: Vec<(StepId, SaveTo, PathBuf)>,
    /// Steps that were applied or aborted: the step that is computed now.
    version: Version,
    planned: VecDeque<Arc<StepPlan>>,
    /// Parcels of steps whose plan is still on its way here: peers may have had theirs earlier. Their credit bounds them.
    early: Vec<(ActorId, Parcel)>,
    /// The number of planned steps, the first ones, that are reduced and wait for their commits: one at most, unless encoders are frozen
    /// and go ahead. Where members come and go, a step may be finished and wait to be told to reduce.
    num_reported: usize,
    options: EngineOptions,
}

/// Settings of an engine, and what watches it.
pub struct EngineOptions {
    /// An encoder reports steps as soon as it has sent what it makes for them: the scheduler knows it to be frozen, and does not
    /// tell it to reduce.
    pub goes_ahead: bool,
    /// The encoder's learning rate over the run's.
    pub encoder_lr: f64,
    /// Samples are made with the weights, even where there are averages of them.
    pub samples_own_weights: bool,
    /// Checkpoints are written beside the steps, which else wait.
    pub saves_in_background: bool,
    /// Counts what the engine's thread allocates, since before the engine was built.
    pub memory: MemoryWatch,
    /// The profile of some steps.
    pub profile: Option<StepProfile>,
}

impl TorchEngine {
    /// `first_step` is 0, or where a checkpoint was taken. The peak of memory counts from here.
    pub fn new(
        encoder: Option<EncoderWorker>,
        foundation: Option<FoundationWorker>,
        exports: Exports,
        first_step: StepId,
        mut options: EngineOptions,
    ) -> Self {
        options.memory.reset_peak();
        Self {
            encoder,
            foundation,
            exports,
            savers: BTreeMap::new(),
            due: Vec::new(),
            version: Version(first_step.0),
            planned: VecDeque::new(),
            early: Vec::new(),
            num_reported: 0,
            options,
        }
    }

    /// Returns whether it encodes items of this tower, and waits for gradients.
    pub(super) fn trains_encoder(&self, tower: Tower) -> bool {
        self.encoder.as_ref().is_some_and(|worker| worker.is_trained(tower))
    }

    pub(super) fn foundation(&self) -> Option<&FoundationWorker> {
        self.foundation.as_ref()
    }

    /// Returns the most memory that was taken since the engine was built.
    pub(super) fn memory(&self) -> MemoryReport {
        let [activations, parameters, gradients, optimizer, buffers] =
            self.options.memory.at_peak().map(|bytes| bytes.max(0) as u64);
        let states = self
            .encoder
            .iter()
            .map(|worker| &worker.state)
            .chain(self.foundation.iter().map(|worker| &worker.rank.state));
        let offloaded = states.map(TrainState::offloaded_bytes).sum();
        MemoryReport { parameters, gradients, optimizer, activations, buffers, offloaded }
    }

    fn states(&mut self) -> impl Iterator<Item = &mut TrainState> {
        let encoder = self.encoder.iter_mut().map(|worker| &mut worker.state);
        encoder.chain(self.foundation.iter_mut().map(|worker| &mut worker.rank.state))
    }

    fn is_finished(&self) -> bool {
        self.encoder.as_ref().is_none_or(|worker| worker.is_finished(0))
            && self.foundation.as_ref().is_none_or(FoundationWorker::is_finished)
    }

    fn membership(&mut self) -> Option<&mut Membership> {
        self.encoder.as_mut()?.membership.as_mut()
    }

    /// Returns, for an encoder that goes ahead and with which nobody waits to reduce, the next step of which it has sent everything. This
    /// must not wait for a pause in the encoder's work: others could not end the step meanwhile.
    fn sent(&self, ports: &Ports) -> Option<StepId> {
        let worker = self.encoder.as_ref().filter(|_| self.options.goes_ahead)?;
        let step = self.planned.get(self.num_reported)?.step;
        (worker.is_finished(self.num_reported) && ports.num_unsent_until(step) == 0).then_some(step)
    }

    fn report_sent(&mut self, step: StepId, ports: &mut Ports) {
        self.num_reported += 1;
        let epoch = self.membership().map_or(Epoch(0), |membership| membership.epoch());
        ports.timings.memory = self.memory();
        report_encoder((step, epoch), 0.0, ports);
    }

    /// Returns whether the first step is an evaluation.
    fn evaluates(&self) -> bool {
        self.planned.front().is_some_and(|plan| plan.purpose.is_evaluation())
    }

    /// Reports the result of the evaluation: there is nothing to reduce.
    fn report_evaluation(&mut self, step: StepId, ports: &mut Ports) {
        self.num_reported = 1;
        let epoch = self.membership().map_or(Epoch(0), |membership| membership.epoch());
        let evaluation = self.foundation.as_mut().map(|worker| Box::new(worker.take_evaluation()));
        let timings = std::mem::take(&mut ports.timings);
        ports.emit(Event::Reduced(StepReport { step, epoch, timings, evaluation, ..StepReport::default() }));
    }

    /// Has done its units of the first step: tells so, or reduces at once.
    fn finish(&mut self, step: StepId, ports: &mut Ports) -> Result<(), EngineError> {
        if self.evaluates() {
            self.report_evaluation(step, ports);
            return Ok(());
        }
        match self.membership().map(|membership| membership.epoch()) {
            Some(epoch) => {
                self.num_reported = 1;
                ports.emit(Event::Finished { step, epoch });
                Ok(())
            }
            None => self.reduce(step, ports),
        }
    }

    /// All members have done their units.
    fn reduce_members(&mut self, step: StepId, epoch: Epoch, ports: &mut Ports) -> Result<(), EngineError> {
        let plan = self.planned.front().filter(|plan| plan.step == step).cloned();
        let (Some(plan), Some(worker)) = (plan, &mut self.encoder) else {
            return Err(format!("step {step} cannot be reduced now").into());
        };
        let Some(membership) = worker.membership.as_mut().filter(|membership| membership.epoch() == epoch) else {
            return Ok(());
        };
        match membership.reduce(&mut worker.state, &plan) {
            Ok(grad_square_sum) => {
                ports.timings.memory = self.memory();
                report_encoder((step, epoch), grad_square_sum, ports);
            }
            Err(error) => ports.emit(Event::Broken { step, epoch, error: error.to_string() }),
        }
        Ok(())
    }

    /// An encoder pool has other members.
    fn regroup(&mut self, regroup: &Regroup, ports: &mut Ports) -> Result<(), EngineError> {
        if let Some(worker) = &mut self.foundation {
            worker.regroup(regroup);
        }
        // Of another pool nothing changes for an encoder.
        if let Some(worker) = self.encoder.as_mut().filter(|worker| worker.pool_name() == regroup.pool) {
            if self.planned.is_empty() {
                // One that has just joined: it takes the parameters of this version when the pool first reduces.
                self.version = Version(regroup.step.0);
            }
            worker.regroup(regroup);
            self.planned.retain(|plan| plan.step < regroup.step);
            // Those are decided; all others are reported anew.
            self.num_reported = self.planned.len();
            self.planned.extend(regroup.plans.iter().cloned());
        }
        let early_features = self.foundation.as_mut().map_or(Vec::new(), FoundationWorker::take_early_features);
        let early = std::mem::take(&mut self.early);
        let mut waiting =
            early_features.into_iter().chain(early).filter(|(from, _)| !ports.is_gone(*from)).collect::<Vec<_>>();
        waiting.drain(..).try_for_each(|(from, parcel)| self.arrive(from, parcel, ports))
    }

    fn reduce(&mut self, step: StepId, ports: &mut Ports) -> Result<(), EngineError> {
        // The loss before the collectives: reading it waits for the device's packs, and for nobody else's.
        let start = Instant::now();
        let loss = self.foundation.as_ref().map_or(0.0, FoundationWorker::loss);
        if self.foundation.is_some() {
            ports.timings.packs += start.elapsed().as_secs_f64();
            ports.trace.span(Activity::Pack, Some((step, None)), start);
        }
        let start = Instant::now();
        let mut grad_square_sum = 0.0;
        let is_past = self.foundation.as_ref().is_some_and(FoundationWorker::is_past_fault_point);
        if !is_past && fault::poison(ports.me(), "nan_gradient", &[]) {
            self.states().for_each(TrainState::poison);
        }
        // The foundation's on every replica before the encoder's: one that has packs has begun already.
        self.states().try_for_each(TrainState::begin_sums)?;
        // Encoder first on every replica: collectives of two groups in two orders would wait for each other.
        for state in self.states() {
            grad_square_sum += state.reduce()?;
        }
        ports.trace.span(Activity::Reduce, Some((step, None)), start);
        self.num_reported = 1;
        let timings = Timings { memory: self.memory(), ..std::mem::take(&mut ports.timings) };
        let routing = self.foundation.as_mut().map_or(Ok(None), FoundationWorker::reduce_routing)?;
        let pairs = self.foundation.as_ref().and_then(FoundationWorker::pairs).map(Box::new);
        let report = StepReport { step, loss, grad_square_sum, routing, pairs, timings, ..StepReport::default() };
        ports.emit(Event::Reduced(report));
        Ok(())
    }

    fn finish_step(&mut self, step: StepId, ports: &mut Ports) -> Result<(), EngineError> {
        let evaluates = self.evaluates();
        let expected = self.planned.pop_front().map(|plan| plan.step);
        if expected != Some(step) {
            let expected =
                expected.map_or_else(|| "none is planned".to_owned(), |step| format!("expected step {step}"));
            return Err(format!("step {step} finished out of order ({expected})").into());
        }
        if let Some(worker) = &mut self.encoder {
            worker.finish_step();
        }
        let claims = self.foundation.as_mut().map_or(Vec::new(), FoundationWorker::finish_step);
        for (peer, kind) in claims.into_iter().filter(|(peer, _)| !ports.is_gone(*peer)) {
            ports.emit(Event::Refused {
                peer,
                reason: format!("{kind:?} should have been sent by another actor"),
                lacks: None,
            });
        }
        self.num_reported = self.num_reported.saturating_sub(1);
        if !evaluates {
            self.version = Version(step.0 + 1);
            self.options.profile.iter_mut().for_each(|profile| profile.after(step));
        }
        ports.emit(Event::Applied { step });
        Ok(())
    }
}

/// Reports a step of an actor that is an encoder alone.
fn report_encoder((step, epoch): (StepId, Epoch), grad_square_sum: f64, ports: &mut Ports) {
    let timings = std::mem::take(&mut ports.timings);
    ports.emit(Event::Reduced(StepReport { step, epoch, grad_square_sum, timings, ..StepReport::default() }));
}
