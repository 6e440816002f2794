//! Plans made on a thread of their own, ahead of the events that need them: what is in a step depends on the samples
//! alone, not on the clock, and planning thousands of ranks takes as long as all that happens to them.

use super::Samples;
use crate::message::{SampleId, SampleMeta, StepId, StepPlan};
use crate::schedule::coordinator::{Batches, CoordinatorSpec, Planner};
use crate::schedule::{PlanSpec, plan_step};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::Scope;

/// Plans that wait for the events.
const MAX_AHEAD: usize = 4;

/// A planner that has the plans of `spec` made by a thread of `scope`, by the same function of the same arguments. Where
/// the coordinator plans by other numbers than it began with, or the thread met an error, it plans as the coordinator does.
pub(super) fn planner<'scope>(
    scope: &'scope Scope<'scope, '_>,
    spec: &'scope CoordinatorSpec,
    samples: &'scope dyn Samples,
) -> Planner {
    let known = plan_spec(spec);
    let (sender, plans) = sync_channel(MAX_AHEAD);
    if !spec.fitted && spec.state.held.is_empty() {
        let known = known.clone();
        scope.spawn(move || plan_all(spec, &known, samples, &sender));
    }
    Box::new(move |spec, step, batch, cursor| {
        let plan = if *spec == known { plans.recv().ok() } else { None };
        let Some(plan) = plan else { return plan_step(spec, step, batch, cursor) };
        assert_eq!((plan.step, plan.cursor), (step, cursor), "the thread reads the same stream");
        debug_assert_eq!(Ok(&plan), plan_step(spec, step, batch, cursor).as_ref());
        Ok(plan)
    })
}

/// What the coordinator plans by as long as no encoder comes or goes.
fn plan_spec(spec: &CoordinatorSpec) -> PlanSpec {
    let mut plan = spec.plan.clone();
    if spec.pools.encoder > 0 {
        plan.encoder_replicas = spec.pools.encoder;
        plan.num_lanes = if spec.fixed_lanes { plan.num_lanes } else { spec.pools.encoder };
    }
    plan
}

/// Until all steps are planned, something is wrong, or nobody wants more.
fn plan_all(spec: &CoordinatorSpec, plan: &PlanSpec, samples: &dyn Samples, plans: &SyncSender<StepPlan>) {
    let num_data = u64::from(spec.pools.data.max(1));
    let mut batches = Batches::new(spec);
    let mut step = spec.first_step;
    for position in spec.state.cursor.0.. {
        let (id, owner) = (SampleId(position), (position % num_data) as u32);
        let sample = SampleMeta { id, owner, ..samples.sample(position) };
        if batches.push(sample, SampleId(position + 1)).is_err() {
            return;
        }
        while let Some(formed) = batches.pop() {
            let planned = plan_step(plan, step, formed.batch, formed.cursor);
            let went = planned.is_ok_and(|planned| plans.send(planned).is_ok());
            step = StepId(step.0 + 1);
            if !went || step.0 >= spec.steps {
                return;
            }
        }
    }
}
