//! The foundation's part of a step: its packs in order, each as soon as its tokens and features are there.
//!
//! A rank does the tasks of its schedule; without a pipeline these are a forward and a backward of every pack. Only the leader's first
//! stage waits for tokens or features: other ranks wait for their neighbors. Where experts are spread over ranks two packs go in turns,
//! and sums over replicas begin with the last backward.

mod acting;
mod arrivals;
mod continuing;
mod evaluating;
mod evaluator;
mod making;
mod rank;
mod scoring;
mod step;
mod training;

pub use self::acting::Actor;
use self::arrivals::Arrivals;
use self::evaluating::{Evaluating, one_by_one};
use self::evaluator::Evaluator;
pub use self::making::{Finish, HandOver, SampleMaking, SamplePart, UntrainedPart};
use self::rank::Rank;
use self::scoring::score;
use self::step::Step;
use self::training::Trainer;
use super::activations::Activations;
use super::pack_work::EncoderPeers;
use super::stages::Stages;
use crate::comm::Started;
use crate::model::{Column, FeatureInput};
use crate::native::NativeError;
use crate::train::TrainState;
use loongforge_core::engine::{EngineError, Ports, Progress};
use loongforge_core::message::{
    Activity, ActorId, EvaluationReport, PairReport, PoolName, Regroup, Replica, RoutingReport, StepId, StepPlan,
    Version,
};
use loongforge_core::schedule::Pass;
use loongforge_core::transport::{Parcel, ParcelKind};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Instant;

/// Computes the packs of one foundation replica, or this rank's part of them.
pub struct FoundationWorker {
    pub(super) rank: Rank,
    arrivals: Arrivals,
    trainer: Trainer,
    evaluator: Evaluator,
    /// The steps that are planned and not ended; the first one is computed now.
    steps: VecDeque<Step>,
}

impl FoundationWorker {
    /// Returns one rank of foundation replica `replica`, which reads the features of these encoder pools.
    pub fn new(
        replica: Replica,
        stages: Stages,
        state: TrainState,
        encoders: BTreeMap<PoolName, EncoderPeers>,
    ) -> Self {
        Self {
            arrivals: Arrivals::new(encoders),
            trainer: Trainer::new(&stages),
            evaluator: Evaluator::default(),
            steps: VecDeque::new(),
            rank: Rank { replica, stages, state: state.in_buckets() },
        }
    }

    /// Encoders live in the foundation's actors.
    pub fn with_colocated_encoders(mut self) -> Self {
        self.arrivals.colocated = true;
        self
    }

    /// These tokens end continuations.
    pub fn with_stop_tokens(mut self, stop_token_ids: Vec<i64>) -> Self {
        self.evaluator.stop_token_ids = stop_token_ids;
        self
    }

    /// Sets a budget for activations.
    pub fn with_activations(mut self, activations: Activations) -> Self {
        self.trainer.activations = activations;
        self
    }

    /// Makes samples of prompts so.
    pub fn with_sample_making(mut self, making: Option<SampleMaking>) -> Self {
        self.evaluator.making = making;
        self
    }

    /// Acts so where that is asked for.
    pub fn with_actor(mut self, actor: Option<Actor>) -> Self {
        self.evaluator.actor = actor;
        self
    }

    /// Returns the columns that data actors send of samples.
    pub(super) fn columns(&self) -> Rc<[Column]> {
        self.rank.columns().clone()
    }

    pub(super) fn pool_name(&self) -> PoolName {
        self.rank.replica.pool
    }

    /// Returns the features that it reads.
    pub(super) fn inputs(&self) -> &[FeatureInput] {
        self.rank.inputs()
    }

    /// Takes a step that is planned, to be done after those before it.
    pub(super) fn plan(&mut self, plan: &StepPlan) {
        let owners = self.arrivals.owners(plan, self.rank.replica);
        self.steps.push_back(Step::new(plan, &self.rank, owners, self.arrivals.trained_towers()));
    }

    /// Other encoders compute units of these steps.
    pub(super) fn regroup(&mut self, regroup: &Regroup) {
        self.arrivals.regroup(regroup, self.rank.replica, &mut self.steps);
    }

    /// Takes tokens or features. A parcel of an encoder is compared with the unit that the encoder was given, and refused where it does
    /// not fit.
    pub(super) fn arrive(&mut self, from: ActorId, parcel: Parcel, ports: &mut Ports) -> Result<(), EngineError> {
        self.arrivals.arrive((from, parcel), &self.rank, &mut self.steps, ports)
    }

    /// Returns the features that came before the `Regroup` that tells whose they are: they are to arrive once more.
    pub(super) fn take_early_features(&mut self) -> Vec<(ActorId, Parcel)> {
        self.arrivals.take_early_features()
    }

    /// Does the next task of the step of this `version`, if what it needs is here.
    pub(super) fn work(&mut self, version: Version, ports: &mut Ports) -> Result<Progress, EngineError> {
        let Self { rank, arrivals, trainer, evaluator, steps } = self;
        let Some(step) = steps.front_mut().filter(|step| step.id.0 == version.0) else {
            return Ok(Progress::Idle);
        };
        // Once it has begun, other ranks wait in it, and cannot send what has waited for credit.
        let gathers = arrivals.gathers_first(rank) && rank.stages.mesh.is_leader();
        if gathers && !step.begun && step.waits() {
            return Ok(Progress::Idle);
        }
        if step.evaluation.as_ref().is_some_and(|evaluation| one_by_one(evaluation.purpose)) {
            let progress = evaluator.next(rank, step, ports)?;
            step.begun |= progress == Progress::Busy;
            return Ok(progress);
        }
        let tasks = step.run.together().to_vec();
        let Some(pass) = tasks.first().map(|task| task.pass) else { return Ok(Progress::Idle) };
        let packs: Vec<usize> = tasks.iter().map(|task| step.micro_batches[task.micro_batch].0).collect();
        for pack in packs {
            let is_empty = step.packs.get(pack).is_some_and(|work| work.chunks.is_empty());
            if is_empty && !step.fill(pack, rank)? {
                return Ok(Progress::Idle);
            }
        }
        let start = Instant::now();
        let activity = match pass {
            Pass::Forward if step.evaluation.is_some() => {
                score(rank, step, &tasks)?;
                Activity::Forward
            }
            Pass::Forward => {
                trainer.forward(rank, step, &tasks)?;
                Activity::Forward
            }
            Pass::Backward => {
                trainer.backward(rank, step, &tasks, &arrivals.returns(version), ports)?;
                Activity::Backward
            }
        };
        for task in tasks {
            ports.trace.span(activity, Some((StepId(version.0), Some(task.micro_batch as u32))), start);
        }
        step.begun = true;
        if step.run.next().is_none() {
            step.run.finish()?;
            step.sent.drain(..).try_for_each(Started::wait)?;
        }
        Ok(Progress::Busy)
    }

    /// Returns whether the first step has passed the point where a fault may break its gradients: their sums begin behind it.
    pub(super) fn is_past_fault_point(&self) -> bool {
        self.steps.front().is_some_and(|step| step.is_past_fault_point)
    }

    /// Returns whether ranks of the pool wait for each other within a step.
    pub(super) fn meets_others(&self) -> bool {
        self.rank.meets_others()
    }

    /// Returns whether a task of the first step was done.
    pub(super) fn has_begun(&self) -> bool {
        self.steps.front().is_some_and(|step| step.begun)
    }

    /// Returns whether every pack of the first step is done.
    pub(super) fn is_finished(&self) -> bool {
        self.steps.front().is_none_or(Step::is_finished)
    }

    /// Returns the summed loss of the first step.
    pub(super) fn loss(&self) -> f64 {
        self.steps.front().map_or(0.0, Step::loss)
    }

    /// Returns the pairs of answers of the first step; `None` where samples are none.
    pub(super) fn pairs(&self) -> Option<PairReport> {
        self.steps.front().and_then(Step::pairs)
    }

    /// Returns the results of the first step, an evaluation. Reading it waits for the device.
    pub(super) fn take_evaluation(&mut self) -> EvaluationReport {
        let evaluation = self.steps.front_mut().and_then(|step| step.evaluation.as_mut());
        evaluation.map(Evaluating::report).unwrap_or_default()
    }

    /// Sums the first step's loads over the pool; `None` of a model without experts. Every replica calls it once a step.
    ///
    /// # Errors
    /// A replica is gone or did not come in time.
    pub(super) fn reduce_routing(&mut self) -> Result<Option<RoutingReport>, NativeError> {
        match self.steps.front_mut() {
            Some(step) => self.trainer.reduce_routing(&self.rank, step),
            None => Ok(None),
        }
    }

    /// Moves the routers' biases against the loads of the first step, which is applied.
    pub(super) fn balance(&self) {
        if let Some(step) = self.steps.front() {
            self.trainer.balance(&self.rank, step);
        }
    }

    /// Forgets the first step, which was applied or aborted. Returns who has sent features for it that were others' to send.
    pub(super) fn finish_step(&mut self) -> Vec<(ActorId, ParcelKind)> {
        self.steps.pop_front().map_or(Vec::new(), |step| self.arrivals.late(step.id))
    }
}

#[cfg(test)]
#[path = "foundation_tests.rs"]
mod tests;
