//! Plans made on threads of their own, ahead of the events that need them: what is in a step depends on the samples
//! alone, not on the clock, and planning thousands of ranks takes as long as all that happens to them.

use super::step::{Sizes, Step};
use super::{Samples, SimSpec};
use crate::message::{SampleId, SampleMeta, StepId, StepPlan};
use crate::schedule::{Batches, CoordinatorSpec, Formed, Planner};
use crate::schedule::{PlanSpec, PoolSize, plan_step};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Scope, available_parallelism};

/// Plans, and batches for one, that wait.
const MAX_AHEAD: usize = 4;
/// Threads that plan, each every so many-th step.
const MAX_PLANNERS: usize = 4;
/// Things that wait to be thrown away.
const MAX_SPENT: usize = 16;

type Spent = Box<dyn Send>;

/// The channels of these threads besides that of plans: the steps that come from them, and the spent ones that they take away.
pub(super) struct Ahead {
    /// The steps of plans that the coordinator has taken.
    steps: Receiver<(StepId, Step)>,
    spent: SyncSender<Spent>,
}

struct Planned {
    plan: StepPlan,
    step: Step,
}

impl Ahead {
    /// Starts threads of `scope` that make the plans of `spec`, by the same function of the same arguments, and returns the planner that
    /// takes them. Where the coordinator plans by other numbers than it began with, or they met an error, it plans as the coordinator
    /// does.
    pub fn new<'scope>(
        scope: &'scope Scope<'scope, '_>,
        spec: &'scope SimSpec,
        samples: &'scope dyn Samples,
    ) -> (Self, Planner) {
        let coordinator = &spec.coordinator;
        let known = plan_spec(coordinator);
        let (spent, old) = sync_channel(MAX_SPENT);
        let num_planners = available_parallelism().map_or(1, |cores| cores.get() - 1).clamp(1, MAX_PLANNERS);
        let (mut batches, mut plans) = (Vec::new(), Vec::new());
        if !coordinator.fitted && coordinator.state.held.is_empty() {
            for planner in 0..num_planners {
                let (batch_sender, formed) = sync_channel(1);
                let (sender, receiver) = sync_channel(MAX_AHEAD.div_ceil(num_planners));
                let (known, first) = (known.clone(), coordinator.first_step.0 + planner as u64);
                let numbers = (first..).step_by(num_planners).map(StepId);
                scope.spawn(move || plan_all(&known, &Sizes::new(spec), numbers.zip(formed), &sender));
                batches.push(batch_sender);
                plans.push(receiver);
            }
            scope.spawn(move || {
                form_all(coordinator, samples, batches, &old);
                old.into_iter().for_each(drop);
            });
        }
        let (step_sender, steps) = sync_channel(coordinator.prefetch_steps + 1);
        let (first_step, trash) = (coordinator.first_step, spent.clone());
        let planner: Planner = Box::new(move |spec, step, batch, cursor| {
            let turn = (step.0 - first_step.0) as usize % plans.len().max(1);
            let planned = plans.get(turn).filter(|_| *spec == known).and_then(|plans| plans.recv().ok());
            let Some(Planned { plan, step: indices }) = planned else { return plan_step(spec, step, batch, cursor) };
            assert_eq!((plan.step, plan.cursor), (step, cursor), "the threads read the same stream");
            debug_assert_eq!(Ok(&plan), plan_step(spec, step, batch.clone(), cursor).as_ref());
            // Nobody may wait for this: then the world makes it again.
            drop(step_sender.try_send((step, indices)));
            drop(trash.try_send(Box::new(batch)));
            Ok(plan)
        });
        (Self { steps, spent }, planner)
    }

    /// Indices of a plan, where they were made with it.
    pub fn step(&self, number: StepId) -> Option<Step> {
        self.steps.try_iter().find_map(|(step, indices)| (step == number).then_some(indices))
    }

    /// Thousands of small pieces of memory take their time: another thread's, if it has some.
    pub fn throw_away(&self, step: Step) {
        drop(self.spent.try_send(Box::new(step)));
    }
}

/// Returns the spec that the coordinator plans by as long as no encoder comes or goes.
fn plan_spec(spec: &CoordinatorSpec) -> PlanSpec {
    let mut plan = spec.plan.clone();
    for &PoolSize { name, actors } in &spec.pools.encoders {
        let Some(pool) = plan.encoder_pool(name) else { continue };
        pool.replicas = actors;
        pool.num_lanes = if spec.fixed_lanes { pool.num_lanes } else { actors };
    }
    plan
}

/// Batches of all steps, to each planner in turn, until something is wrong or nobody wants more; throws away in between.
fn form_all(spec: &CoordinatorSpec, samples: &dyn Samples, planners: Vec<SyncSender<Formed>>, spent: &Receiver<Spent>) {
    let num_data = u64::from(spec.pools.data.max(1));
    let mut batches = Batches::new(spec);
    let mut turns = planners.iter().cycle().take(spec.steps.saturating_sub(spec.first_step.0) as usize);
    for position in spec.state.cursor.0.. {
        let (id, owner) = (SampleId(position), (position % num_data) as u32);
        let sample = SampleMeta { id, owner, ..samples.sample(position) };
        if batches.push(sample, SampleId(position + 1)).is_err() {
            return;
        }
        while let Some(formed) = batches.pop() {
            spent.try_iter().for_each(drop);
            let went = turns.next().is_some_and(|planner| planner.send(formed).is_ok());
            if !went {
                return;
            }
        }
    }
}

/// Plans steps until an error is met or the receiver is gone.
fn plan_all(
    spec: &PlanSpec,
    sizes: &Sizes,
    batches: impl Iterator<Item = (StepId, Formed)>,
    plans: &SyncSender<Planned>,
) {
    for (step, Formed { batch, cursor, .. }) in batches {
        let planned = plan_step(spec, step, batch, cursor).map(|plan| Planned { step: Step::new(&plan, sizes), plan });
        if !planned.is_ok_and(|planned| plans.send(planned).is_ok()) {
            return;
        }
    }
}
