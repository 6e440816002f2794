//! The whole control plane with fake engines on one thread, under every order of events that chance finds.

mod endings;
mod evaluations;

use crate::fake;
use crate::fake::{Script, rules, spec};
use crate::world::{Log, World};
use loongforge_core::config::SavePoints;
use loongforge_core::message::*;
use loongforge_core::schedule::*;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;

const STEPS: u64 = 8;

fn pools(data: u32, encoder: u32, foundation: u32) -> PoolSizes {
    PoolSizes::of_roles(data, encoder, foundation)
}

thread_local! {
    /// Runs that cases of a test are compared with, by their settings.
    static REFERENCES: RefCell<BTreeMap<String, Log>> = const { RefCell::new(BTreeMap::new()) };
}

/// Runs the order-free reference: one encoder, one order.
fn reference(pools: &PoolSizes, script: &Script) -> Log {
    reference_of(spec(pools, STEPS), script)
}

/// Runs once for all cases that are compared with the same.
fn reference_of(mut spec: CoordinatorSpec, script: &Script) -> Log {
    spec.pools.encoders.iter_mut().for_each(|pool| pool.actors = 1);
    spec.plan.encoders.iter_mut().for_each(|pool| pool.replicas = 1);
    let of = format!("{spec:?} {script:?}");
    if let Some(log) = REFERENCES.with_borrow(|known| known.get(&of).cloned()) {
        return log;
    }
    let (log, result) = World::new(spec, script, 1).run(None);
    assert_eq!(result, Ok(Outcome::Completed));
    REFERENCES.with_borrow_mut(|known| known.insert(of, log.clone()));
    log
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A checkpoint that cannot be published is tried again: the run is the same, and its end is saved.
    #[test]
    fn saves_that_fail_change_nothing_but_when_is_saved(seed: u64, num_failing in 1_usize..5, every in 1_u64..4) {
        let (pools, script) = (pools(1, 2, 1), Script::default());
        let spec = CoordinatorSpec { save_points: SavePoints { every_steps: every, at_end: true }, ..spec(&pools, STEPS) };
        let mut world = World::new(spec, &script, seed);
        world.num_failing = num_failing;
        while world.result.is_none() {
            world.something();
        }
        prop_assert_eq!(world.result, Some(Ok(Outcome::Completed)));
        prop_assert_eq!(world.num_failing, 0);
        prop_assert_eq!(world.lasting.last(), Some(&StepId(STEPS - 1)));
        prop_assert_eq!(world.log.steps, reference(&pools, &script).steps);
    }

    #[test]
    fn any_order_and_any_number_of_encoders_give_the_same_run(
        seed: u64,
        encoders in prop::sample::select(vec![1_u32, 2, 4]),
        data in 1_u32..3,
        foundation in 1_u32..3,
        frozen: bool,
    ) {
        let pools = pools(data, encoders, foundation);
        let script = Script { frozen, ..Script::default() };
        let (log, result) = World::new(spec(&pools, STEPS), &script, seed).run(None);
        prop_assert_eq!(result, Ok(Outcome::Completed));
        prop_assert_eq!(&log, &reference(&pools, &script));

        let steps: Vec<u64> = log.steps.iter().map(|summary| summary.step.0).collect();
        prop_assert_eq!(steps, (0..STEPS).collect::<Vec<_>>());
        prop_assert!(log.steps.iter().all(|summary| summary.applied && summary.num_samples == 5));
        let norm: f64 = if frozen { 4.0 } else { 5.0 };
        prop_assert!(log.steps.iter().all(|summary| summary.grad_norm == norm));
        let published: Vec<u64> = log.published.iter().map(|(step, ..)| step.0).collect();
        prop_assert_eq!(published, [2, 5, 7]);
        let read: Vec<u64> = log.plans.iter().flat_map(|plan| &plan.packs).flat_map(|pack| &pack.samples).map(|s| s.id.0).collect();
        let good = (0..).filter(|&position| !fake::is_bad(position)).take(5 * STEPS as usize);
        let mut sorted = read.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, good.collect::<Vec<_>>());
        let bad: Vec<u64> = log.bad.iter().map(|bad| bad.id.0).collect();
        prop_assert!(!bad.is_empty() && bad.is_sorted() && bad.iter().all(|&position| fake::is_bad(position)));
    }

    #[test]
    fn what_is_not_finite_is_skipped_by_all(seed: u64, loss in 0..STEPS, gradient in 0..STEPS) {
        let script = Script { nan_loss: vec![loss], infinite_gradient: vec![gradient], ..Script::default() };
        let (log, result) = World::new(spec(&pools(1, 2, 1), STEPS), &script, seed).run(None);
        prop_assert_eq!(result, Ok(Outcome::Completed));
        let skipped: Vec<u64> = log.steps.iter().filter(|summary| !summary.applied).map(|summary| summary.step.0).collect();
        let mut wanted = vec![loss, gradient];
        wanted.sort_unstable();
        wanted.dedup();
        prop_assert_eq!(skipped, wanted);
        prop_assert_eq!(log.steps.len() as u64, STEPS);
    }

    #[test]
    fn a_failing_engine_ends_the_run_and_is_named(
        seed: u64,
        who in 0_usize..5,
        after in 0_usize..120,
        frozen: bool,
    ) {
        let pools = pools(1, 2, 2);
        let actor = pools.actors().nth(who).unwrap();
        let script = Script { frozen, failure: Some((actor, after)), ..Script::default() };
        let (_, result) = World::new(spec(&pools, STEPS), &script, seed).run(None);
        match result {
            Err(failure) => prop_assert_eq!(failure.to_string(), format!("{actor}: injected failure")),
            Ok(outcome) => prop_assert_eq!(outcome, Outcome::Completed),
        }
    }

    #[test]
    fn encoders_that_die_hang_come_and_go_change_nothing(
        seed: u64,
        encoders in 1_u32..5,
        foundation in 1_u32..3,
        frozen: bool,
        changes in prop::collection::vec((0_usize..40, 0_usize..4), 1..12),
    ) {
        let pools = pools(2, encoders, foundation);
        let script = Script { frozen, ..Script::default() };
        let elastic = CoordinatorSpec { encoders: rules(&pools, true, !frozen), ..spec(&pools, STEPS) };
        let (log, result, num_changes) = World::new(elastic, &script, seed).run_changing(&changes);
        match result {
            // The last one that had the parameters has died.
            Err(failure) => prop_assert!(!frozen && failure.is_loss() && failure.actor.role == Role::Encoder, "{failure}"),
            Ok(outcome) => {
                prop_assert_eq!(outcome, Outcome::Completed);
                prop_assert_eq!(&log, &reference(&pools, &script));
            }
        }
        prop_assert!(num_changes <= 2 * changes.len());
    }

    /// Two encoder pools, each with encoders that die, hang, come and go: the run is that of one encoder in each.
    #[test]
    fn pools_change_each_by_itself(
        seed: u64,
        audio in 1_u32..4,
        vision in 1_u32..4,
        foundation in 1_u32..3,
        frozen: bool,
        changes in prop::collection::vec((0_usize..40, 0_usize..4), 0..12),
    ) {
        let size = |name: &str, actors| PoolSize { name: name.parse().unwrap(), actors };
        let pools = PoolSizes { encoders: vec![size("audio", audio), size("vision", vision)], ..pools(2, 0, foundation) };
        let script = Script { frozen, hears: true, ..Script::default() };
        let elastic = CoordinatorSpec { encoders: rules(&pools, true, !frozen), ..spec(&pools, STEPS) };
        let (log, result, _) = World::new(elastic, &script, seed).run_changing(&changes);
        match result {
            Err(failure) => prop_assert!(!frozen && failure.is_loss() && failure.actor.role == Role::Encoder, "{failure}"),
            Ok(outcome) => {
                prop_assert_eq!(outcome, Outcome::Completed);
                let reference = reference(&pools, &script);
                prop_assert_eq!(&log, &reference);
                let towers = |tower| log.plans.iter().flat_map(|plan| &plan.units).any(|unit| unit.tower() == tower);
                prop_assert!(towers(Tower::Audio) && towers(Tower::Vision));
            }
        }
    }

    /// An item kills two encoders and is left out, and whoever knows of it loses none and computes the same.
    #[test]
    fn an_item_that_kills_encoders_kills_no_third_one(seed: u64, encoders in 3_u32..6, which in 0_usize..25, frozen: bool) {
        let pools = pools(2, encoders, 2);
        let elastic = |state| CoordinatorSpec { encoders: rules(&pools, true, !frozen), state, ..spec(&pools, STEPS) };
        let with_items = (0..).map(|position| fake::sample(position, 2)).filter(|sample| !fake::is_bad(sample.id.0) && !sample.items.is_empty());
        let item = ItemId { sample: with_items.clone().nth(which).unwrap().id, index: 0 };
        let script = Script { frozen, deadly: Some(item), ..Script::default() };
        let mut world = World::new(elastic(SchedulerState::default()), &script, seed);
        while world.result.is_none() {
            world.something();
        }
        prop_assert_eq!(&world.result, &Some(Ok(Outcome::Completed)));
        let deaths = |world: &World| world.killed.iter().filter(|poison| poison.item == item).map(|poison| poison.deaths).collect::<Vec<_>>();
        prop_assert_eq!(deaths(&world), [1, 2]);
        let quarantined = |log: &Log| log.bad.iter().filter(|bad| bad.reason == "killed 2 encoders").map(|bad| bad.id).collect::<Vec<_>>();
        prop_assert!(quarantined(&world.log).contains(&item.sample));
        prop_assert_eq!(world.log.steps.len() as u64, STEPS);

        let known = SchedulerState { poison_items: world.killed.clone(), ..SchedulerState::default() };
        let (again, result) = World::new(elastic(known), &script, seed ^ 1).run(None);
        prop_assert_eq!(result, Ok(Outcome::Completed));
        prop_assert_eq!(quarantined(&again), quarantined(&world.log));
        prop_assert_eq!(again.steps, world.log.steps);
    }

    #[test]
    fn a_stop_ends_with_a_checkpoint_from_which_the_rest_follows(
        seed: u64,
        stop_at in 0_usize..150,
        frozen: bool,
        stream: bool,
        data in 1_u32..4,
    ) {
        let script = Script { frozen, ..Script::default() };
        let pools = pools(2, 2, 1);
        let spec = |pools: &PoolSizes| if stream { streamed(pools, STEPS) } else { spec(pools, STEPS) };
        let (log, result) = World::new(spec(&pools), &script, seed).run(Some(stop_at));
        let done = log.steps.len() as u64;
        prop_assert_eq!(result, Ok(if done < STEPS { Outcome::Preempted } else { Outcome::Completed }));
        let last = log.published.last().map(|(step, state, _)| (step.0 + 1, state.clone()));
        let whole = reference_of(spec(&pools), &script);
        prop_assert_eq!(&log.steps[..], &whole.steps[..done as usize]);

        let (first, state) = last.unwrap_or_default();
        prop_assert_eq!(first, done);
        let others = PoolSizes { data, ..pools.clone() };
        let rest = CoordinatorSpec { first_step: StepId(first), state, ..spec(&others) };
        let script = Script { first_step: first, ..script };
        let (log, result) = World::new(rest, &script, seed).run(None);
        prop_assert_eq!(result, Ok(Outcome::Completed));
        // Who reads decides how parcels are put together, and nothing else.
        let plain = |plans: &[StepPlan]| plans.iter().map(without_owners).collect::<Vec<_>>();
        prop_assert_eq!(plain(&log.plans), plain(&whole.plans[done as usize..]));
        if data == pools.data {
            prop_assert_eq!(&log.steps[..], &whole.steps[done as usize..]);
        }
    }

    #[test]
    fn a_packed_stream_is_the_same_for_any_order_and_any_readers(
        seed: u64,
        data in 1_u32..4,
        encoder in 1_u32..4,
        foundation in 1_u32..3,
    ) {
        let pools = pools(data, encoder, foundation);
        let script = Script::default();
        let (log, result) = World::new(streamed(&pools, STEPS), &script, seed).run(None);
        prop_assert_eq!(result, Ok(Outcome::Completed));
        prop_assert_eq!(&log, &reference_of(streamed(&pools, STEPS), &script));
        let one = reference_of(streamed(&PoolSizes { data: 1, ..pools.clone() }, STEPS), &script);
        let plain = |plans: &[StepPlan]| plans.iter().map(without_owners).collect::<Vec<_>>();
        prop_assert_eq!(plain(&log.plans), plain(&one.plans));
        prop_assert!(log.plans.iter().all(|plan| plan.packs.len() == 5));

        // The packs are those of the packer alone over the good samples.
        let spec = streamed(&pools, STEPS);
        let mut packer = StreamPacker::new(spec.plan.pack, LOOK_AHEAD);
        let mut wanted: Vec<Vec<u64>> = Vec::new();
        for position in (0..).filter(|&position| !fake::is_bad(position)) {
            packer.push(fake::sample(position, 1)).unwrap();
            let packs = std::iter::from_fn(|| packer.pop());
            wanted.extend(packs.map(|pack| pack.iter().map(|sample| sample.id.0).collect()));
            if wanted.len() >= 5 * STEPS as usize {
                break;
            }
        }
        for (plan, wanted) in log.plans.iter().zip(wanted.chunks_mut(5)) {
            let mut packs: Vec<Vec<u64>> =
                plan.packs.iter().map(|pack| pack.samples.iter().map(|sample| sample.id.0).collect()).collect();
            packs.sort_unstable();
            wanted.sort_unstable();
            prop_assert_eq!(packs, wanted);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Samples go to two foundation pools by their route, and a pool that nobody trains delivers a column of every sample:
    /// the run is that of one encoder in each pool, whichever encoders die, hang, come and go, and stopped and resumed.
    #[test]
    fn two_foundation_pools_and_a_delivered_column_are_the_run_of_one_encoder_each(
        seed: u64,
        high in 1_u32..3,
        low in 1_u32..3,
        stream: bool,
        changes in prop::collection::vec((0_usize..40, 0_usize..4), 0..12),
        stop_at in 0_usize..150,
    ) {
        let (pools, script) = (fake::routed(high, low), Script::routed());
        let of = |first: u64, state| CoordinatorSpec {
            first_step: StepId(first),
            state,
            encoders: fake::routed_rules(&pools),
            ..if stream { streamed(&pools, STEPS) } else { spec(&pools, STEPS) }
        };
        let whole = reference_of(of(0, SchedulerState::default()), &script);
        let samples = |pool: &PoolSize| {
            let packs = whole.plans.iter().flat_map(|plan| &plan.packs).filter(|pack| pack.replica.pool == pool.name);
            packs.flat_map(|pack| &pack.samples).map(|sample| sample.route).collect::<Vec<_>>()
        };
        for (pool, route) in pools.foundations.iter().zip(0..) {
            let found = samples(pool);
            prop_assert!(found.len() > 5 && found.iter().all(|&of_sample| of_sample == route), "{route}: {found:?}");
        }
        let has_column = |sample: &SampleMeta| sample.items.iter().any(|item| item.tower == fake::REFERENCE);
        prop_assert!(whole.plans.iter().flat_map(|plan| &plan.packs).flat_map(|pack| &pack.samples).all(has_column));

        let (log, result, _) = World::new(of(0, SchedulerState::default()), &script, seed).run_changing(&changes);
        match result {
            // The last one of the trained pool has died; the other one's parameters are anybody's.
            Err(failure) => prop_assert!(failure.is_loss() && failure.actor.pool.as_str() == "vision", "{failure}"),
            Ok(outcome) => {
                prop_assert_eq!(outcome, Outcome::Completed);
                prop_assert_eq!(&log, &whole);
            }
        }

        let (log, result) = World::new(of(0, SchedulerState::default()), &script, seed).run(Some(stop_at));
        let done = log.steps.len();
        prop_assert_eq!(result, Ok(if done < STEPS as usize { Outcome::Preempted } else { Outcome::Completed }));
        let (first, state) = log.published.last().map(|(step, state, _)| (step.0 + 1, state.clone())).unwrap_or_default();
        prop_assert_eq!(first as usize, done);
        let resumed = Script { first_step: first, ..script };
        let (rest, result) = World::new(of(first, state), &resumed, seed).run(None);
        prop_assert_eq!(result, Ok(Outcome::Completed));
        prop_assert_eq!([&log.steps[..], &rest.steps[..]].concat(), whole.steps);
        prop_assert_eq!([&log.plans[..done], &rest.plans[..]].concat(), whole.plans);
    }
}

/// Samples that the packer of a streamed run chooses from.
const LOOK_AHEAD: usize = 17;

fn streamed(pools: &PoolSizes, steps: u64) -> CoordinatorSpec {
    CoordinatorSpec { look_ahead: Some(LOOK_AHEAD), ..spec(pools, steps) }
}

/// Returns the plan as if one data actor had read everything.
fn without_owners(plan: &StepPlan) -> StepPlan {
    let mut plan = plan.clone();
    plan.packs.iter_mut().flat_map(|pack| &mut pack.samples).for_each(|sample| sample.owner = 0);
    plan.units.iter_mut().flat_map(|unit| &mut unit.items).for_each(|item| item.owner = 0);
    plan
}

/// Frozen encoders have the same parameters after every step: whoever is left can write those of an earlier one.
#[test]
fn what_a_frozen_encoder_was_to_save_another_one_saves() {
    let (pools, script) = (pools(2, 2, 2), Script { frozen: true, ..Script::default() });
    let elastic = CoordinatorSpec { encoders: rules(&pools, true, false), ..spec(&pools, STEPS) };
    let changes = [(35, 3), (37, 3), (39, 3), (33, 1), (35, 0), (34, 0)];
    let (log, result, _) = World::new(elastic, &script, 11908501885165738868).run_changing(&changes);
    assert_eq!(result, Ok(Outcome::Completed));
    assert_eq!(log.published, reference(&pools, &script).published);
}

#[test]
fn costs_are_fitted_to_what_engines_report() {
    let pools = pools(1, 2, 2);
    let fitted = CoordinatorSpec { fitted: true, ..spec(&pools, 40) };
    let (log, result) = World::new(fitted.clone(), &Script::default(), 7).run(None);
    assert_eq!(result, Ok(Outcome::Completed));
    let costs = log.steps.last().unwrap().costs.clone().unwrap();
    let costs_of: BTreeMap<PoolName, _> = costs.seconds().collect();
    let [pair, token, one] = costs_of[&PoolName::FOUNDATION].unwrap();
    // A sample's cost, as the engines have it.
    for tokens in [5.0, 15.0, 25.0] {
        let (found, want) = (pair * tokens * tokens + token * tokens + one, fake::seconds(tokens));
        assert!((found / want - 1.0).abs() < 0.05, "{tokens} tokens: {found} s, should be {want} s");
    }
    let (_, state, _) = log.published.last().unwrap();
    assert_eq!(state.costs.as_ref(), Some(&costs));
    // A resumed run goes by them from its first step.
    let (step, state, _) = log.published[log.published.len() - 2].clone();
    let first = step.0 + 1;
    let rest = CoordinatorSpec { first_step: StepId(first), state: state.clone(), ..fitted };
    let script = Script { first_step: first, ..Script::default() };
    let (rest, result) = World::new(rest, &script, 7).run(None);
    assert_eq!(result, Ok(Outcome::Completed));
    let before = state.costs.unwrap().0[&PoolName::FOUNDATION].num_observations();
    let after = rest.steps[0].costs.as_ref().unwrap().0[&PoolName::FOUNDATION].num_observations();
    assert_eq!(after, before + 2, "one measurement a replica");
    assert!(log.steps.iter().all(|step| step.balance.foundation.measured >= 1.0 && step.balance.fill > 0.3));
}
