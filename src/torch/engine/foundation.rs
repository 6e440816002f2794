//! The foundation's part of a step: its packs in order, each as soon as its tokens and features are there.
//!
//! A rank does the tasks of its schedule; without a pipeline these are a forward and a backward of every pack. What
//! waits for tokens or features is the leader's first stage alone: other ranks wait for their neighbors. Where experts are
//! spread over ranks two packs go in turns, and sums over replicas begin with the last backward.

mod acting;
mod arrivals;
mod continuing;
mod evaluate;
mod evaluating;
mod filling;
mod making;
mod training;

pub use self::acting::Actor;
use self::evaluating::{Evaluating, one_by_one};
pub use self::making::{Finish, HandOver, SampleMaking, SamplePart};
use super::activations::Activations;
use super::pack_work::{EncoderPeers, PackUnit, PackWork, Return};
use super::routing::StepRouting;
use super::stages::Stages;
use crate::comm::Started;
use crate::model::{Column, ExpertSet, FeatureInput};
use crate::native::NativeError;
use crate::parallel::pipeline::PipelineRun;
use crate::train::TrainState;
use loongforge_core::config::LossWeighting;
use loongforge_core::engine::{EngineError, Ports, Progress};
use loongforge_core::message::{
    Activity, ActorId, Pack, PairReport, PoolName, Replica, RoutingReport, StepId, StepPlan, UnitId, Version,
};
use loongforge_core::schedule::Pass;
use loongforge_core::transport::{Parcel, ParcelKind};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Instant;
use tch::Tensor;

/// Computes the packs of one foundation replica, or this rank's part of them.
pub struct FoundationWorker {
    replica: Replica,
    stages: Stages,
    expert_sets: Vec<ExpertSet>,
    pub(super) state: TrainState,
    /// The encoders whose features it reads, by pool.
    encoders: BTreeMap<PoolName, EncoderPeers>,
    /// Features come from ranks that wait for each other within a step: all are taken in before it begins.
    gathers_first: bool,
    /// Encoders live in the foundation's actors.
    colocated: bool,
    activations: Activations,
    steps: VecDeque<Step>,
    /// Features from another encoder than the plan names: the `Regroup` that gives it the unit may be on its way.
    early_features: Vec<(ActorId, Parcel)>,
    /// Holds what ends a continuation.
    stop_token_ids: Vec<i64>,
    /// Says how samples are made of prompts, where some are.
    making: Option<SampleMaking>,
    /// Makes actions, where the model is a policy.
    actor: Option<Actor>,
}

struct Step {
    id: StepId,
    /// Of all targets together: the denominator of the mean.
    weight: f64,
    /// Nothing is trained in it.
    evaluation: Option<Evaluating>,
    packs: Vec<PackWork>,
    run: PipelineRun,
    /// The pack and the chunk of each micro-batch; a filler is behind the packs.
    micro_batches: Vec<(usize, usize)>,
    sent: Vec<Started>,
    /// Summed on the device, and read once the step is done: reading waits for it.
    loss: Option<Tensor>,
    /// What is measured of pairs of answers, summed likewise.
    measures: Option<Tensor>,
    routing: StepRouting,
    /// Gradients of the units that are done: an encoder in place of one that died needs them again.
    returned: BTreeMap<UnitId, Vec<Tensor>>,
    /// Tells which encoder each unit of this replica is given to.
    owners: BTreeMap<UnitId, ActorId>,
    /// A task of it was done.
    begun: bool,
    /// The point where a fault may break its gradients lies behind.
    is_past_fault_point: bool,
    /// Units of the step have moved between encoders: features are taken out of their edges at once, so that none waits behind another.
    is_regrouped: bool,
}

impl FoundationWorker {
    /// One rank of foundation replica `replica`, which reads the features of these encoder pools.
    pub fn new(
        replica: Replica,
        stages: Stages,
        state: TrainState,
        encoders: BTreeMap<PoolName, EncoderPeers>,
    ) -> Self {
        let expert_sets = stages.models.iter().flat_map(|model| model.expert_sets()).collect();
        Self {
            replica,
            stages,
            expert_sets,
            state: state.in_buckets(),
            encoders,
            gathers_first: false,
            colocated: false,
            activations: Activations::default(),
            steps: VecDeque::new(),
            early_features: Vec::new(),
            stop_token_ids: Vec::new(),
            making: None,
            actor: None,
        }
    }

    /// Encoders live in the foundation's actors.
    pub fn with_colocated_encoders(self) -> Self {
        Self { gathers_first: self.meets_others(), colocated: true, ..self }
    }

    /// Returns whether some encoders want gradients of their features.
    fn has_trained_encoders(&self) -> bool {
        self.encoders.values().any(|peers| peers.trained)
    }

    /// These tokens end continuations.
    pub fn with_stop_tokens(self, stop_token_ids: Vec<i64>) -> Self {
        Self { stop_token_ids, ..self }
    }

    /// Sets a budget for activations.
    pub fn with_activations(self, activations: Activations) -> Self {
        Self { activations, ..self }
    }

    /// Returns whether data actors send columns of samples.
    pub(super) fn has_columns(&self) -> bool {
        !self.stages.any().columns().is_empty()
    }

    /// What data actors send of samples.
    pub(super) fn columns(&self) -> Rc<[Column]> {
        self.stages.any().columns().clone()
    }

    pub(super) fn pool_name(&self) -> PoolName {
        self.replica.pool
    }

    /// The features that it reads.
    pub(super) fn inputs(&self) -> &[FeatureInput] {
        self.stages.any().inputs()
    }

    pub(super) fn plan(&mut self, plan: &StepPlan) {
        let has_columns = self.has_columns();
        let work = |pack| PackWork::new(pack, plan, has_columns);
        let packs: Vec<PackWork> = plan.packs_of(self.replica).map(work).collect();
        let mut chunks: Vec<usize> = packs.iter().map(|work| self.stages.num_chunks(work.pack.num_tokens())).collect();
        if self.stages.in_step(self.state.params()) {
            let of_replica = |pack: &Pack| plan.packs_of(pack.replica).count();
            let of_pool = plan.packs.iter().filter(|pack| pack.replica.pool == self.replica.pool);
            let most = of_pool.map(of_replica).max().unwrap_or(0);
            chunks.resize(most, 1);
        }
        let is_alone = self.continues_alone() || plan.purpose.is_sample() || plan.purpose.is_act();
        let to_continue = if is_alone { packs.len() } else { chunks.len() };
        let evaluation = Evaluating::of(plan.purpose, to_continue);
        if one_by_one(plan.purpose) {
            chunks.clear();
        }
        let mut run = PipelineRun::new(self.stages.mesh.clone(), self.stages.pipeline, &chunks);
        if self.stages.in_pairs() {
            run = run.in_pairs();
        }
        if evaluation.is_some() {
            run = run.forward_only();
        }
        let numbered = chunks.iter().enumerate();
        let micro_batches = numbered.flat_map(|(pack, count)| (0..*count).map(move |chunk| (pack, chunk))).collect();
        self.steps.push_back(Step {
            id: plan.step,
            weight: weight_of(plan, self.stages.any().weighting()),
            evaluation,
            packs,
            run,
            micro_batches,
            sent: Vec::new(),
            loss: None,
            measures: None,
            routing: StepRouting::default(),
            returned: BTreeMap::new(),
            owners: self.owners(plan),
            begun: false,
            is_past_fault_point: false,
            is_regrouped: false,
        });
    }

    /// Does the next task of the step of this `version`, if what it needs is here.
    pub(super) fn work(&mut self, version: Version, ports: &mut Ports) -> Result<Progress, EngineError> {
        let Some(step) = self.steps.front_mut().filter(|step| step.id.0 == version.0) else {
            return Ok(Progress::Idle);
        };
        if let Some(max_new_tokens) = step.evaluation.as_ref().and_then(Evaluating::generates) {
            return self.generate_next(max_new_tokens, ports);
        }
        if step.evaluation.as_ref().is_some_and(Evaluating::makes) {
            return self.make_next(ports);
        }
        if step.evaluation.as_ref().is_some_and(Evaluating::acts) {
            return self.act_next(ports);
        }
        let tasks = step.run.together().to_vec();
        let Some(pass) = tasks.first().map(|task| task.pass) else { return Ok(Progress::Idle) };
        // Once it has begun, other ranks wait in it, and cannot send what has waited for credit.
        let units = || step.packs.iter().flat_map(|pack| &pack.units);
        let gathers = self.gathers_first && self.stages.mesh.is_leader();
        if gathers && !step.begun && units().any(PackUnit::waits) {
            return Ok(Progress::Idle);
        }
        let step_evaluates = step.evaluation.is_some();
        let packs: Vec<usize> = tasks.iter().map(|task| step.micro_batches[task.micro_batch].0).collect();
        for pack in packs {
            let is_empty = self.steps[0].packs.get(pack).is_some_and(|work| work.chunks.is_empty());
            if is_empty && !self.fill(pack)? {
                return Ok(Progress::Idle);
            }
        }
        let start = Instant::now();
        let activity = match pass {
            Pass::Forward if step_evaluates => {
                self.score(&tasks)?;
                Activity::Forward
            }
            Pass::Forward => {
                self.forward(&tasks)?;
                Activity::Forward
            }
            Pass::Backward => {
                self.backward(&tasks, version, ports)?;
                Activity::Backward
            }
        };
        for task in tasks {
            ports.trace.span(activity, Some((StepId(version.0), Some(task.micro_batch as u32))), start);
        }
        let step = &mut self.steps[0];
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

    fn returns(&self, version: Version) -> Return {
        Return { encoders: self.encoders.clone(), version }
    }

    /// Returns whether ranks of the pool wait for each other within a step.
    pub(super) fn meets_others(&self) -> bool {
        self.stages.mesh.replica.world() > 1 || self.stages.in_step(self.state.params())
    }

    /// Returns whether a task of the first step was done.
    pub(super) fn has_begun(&self) -> bool {
        self.steps.front().is_some_and(|step| step.begun)
    }

    /// Returns whether every pack of the first step is done.
    pub(super) fn is_finished(&self) -> bool {
        let has_answered = |step: &Step| step.evaluation.as_ref().is_none_or(|it| !it.has_left());
        self.steps.front().is_none_or(|step| step.run.next().is_none() && has_answered(step))
    }

    /// Summed loss of the first step.
    pub(super) fn loss(&self) -> f64 {
        let sum = self.steps.front().and_then(|step| step.loss.as_ref());
        sum.map_or(0.0, |sum| sum.double_value(&[]))
    }

    /// The pairs of answers of the first step; `None` where samples are none.
    pub(super) fn pairs(&self) -> Option<PairReport> {
        let sums = self.steps.front()?.measures.as_ref()?;
        let sums: Vec<f64> = Vec::try_from(sums).expect("a row of numbers");
        Some(PairReport::new(sums.try_into().expect("as many measures as a report has")))
    }

    /// Sums the first step's loads over the pool; `None` of a model without experts. Every replica calls it once a step.
    ///
    /// # Errors
    /// A replica is gone or did not come in time.
    pub(super) fn reduce_routing(&mut self) -> Result<Option<RoutingReport>, NativeError> {
        // A replica without a pack in this step has loads of zero and yet takes part.
        let device = self.state.params().flat().device();
        match self.steps.front_mut().filter(|_| !self.expert_sets.is_empty()) {
            Some(step) => {
                let mut report = step.routing.reduce(&self.expert_sets, &self.state, device)?;
                // Ranks that compute the same row have the same losses.
                if !self.stages.counts_loss() {
                    (report.aux_loss, report.z_loss, report.indexer_loss) = (None, None, None);
                }
                Ok(Some(report))
            }
            None => Ok(None),
        }
    }

    /// Moves the routers' biases against the loads of the first step, which is applied.
    pub(super) fn balance(&self) {
        let rate = self.stages.any().bias_update_rate();
        if let Some(step) = self.steps.front().filter(|_| rate > 0.0 && self.state.is_trained()) {
            step.routing.balance(&self.expert_sets, rate);
        }
    }

    /// Forgets the first step, which was applied or aborted. Returns who has sent features for it that were others' to send.
    pub(super) fn finish_step(&mut self) -> Vec<(ActorId, ParcelKind)> {
        let Some(step) = self.steps.pop_front() else { return Vec::new() };
        let late = self.early_features.extract_if(.., |(_, parcel)| parcel.header.kind.step() <= step.id);
        late.map(|(from, parcel)| (from, parcel.header.kind)).collect()
    }
}

/// What the targets of a plan weigh together. The same for every layout: samples are summed by their positions in the stream.
fn weight_of(plan: &StepPlan, weighting: LossWeighting) -> f64 {
    if weighting == LossWeighting::Token {
        return plan.num_targets.max(1) as f64;
    }
    let samples = plan.packs.iter().flat_map(|pack| pack.samples.iter());
    let by_id: BTreeMap<_, _> = samples.map(|sample| (sample.id, sample.num_targets)).collect();
    let of_sample = |num_targets: u32| f64::from(num_targets) * weighting.of_target(num_targets);
    let sum: f64 = by_id.into_values().map(of_sample).sum();
    if sum > 0.0 { sum } else { 1.0 }
}

#[cfg(test)]
#[path = "foundation_tests.rs"]
mod tests;
