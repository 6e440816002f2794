//! Evaluations while a run trains, under every order of events that chance finds.

use super::{STEPS, pools, reference_of};
use crate::fake::{self, Script, rules, spec};
use crate::world::{Log, World};
use loongforge_core::config::SavePoints;
use loongforge_core::message::*;
use loongforge_core::schedule::*;
use proptest::prelude::*;

/// Steps between samples, and prompts of them.
const MADE_EVERY: u64 = 3;
const PROMPTS: u64 = 4;

/// The checkpoint of a run that goes on from memory or from another folder is not in its own.
#[test]
fn the_best_step_is_saved_where_a_run_goes_on_unless_its_checkpoint_is_there() {
    let of = |every_steps, is_kept| {
        let save_points = SavePoints { every_steps, at_end: true };
        evaluated(CoordinatorSpec { save_points, is_kept, ..spec(&pools(2, 2, 1), STEPS) }, 2)
    };
    let (log, _) = World::new(of(2, true), &Script::default(), 3).run(None);
    let (last, state, _) = log.published.iter().min_by_key(|(step, ..)| *step).unwrap();
    let first_step = StepId(last.0 + 1);
    let saved = |is_kept: bool| {
        let mut rest = CoordinatorSpec { first_step, state: state.clone(), ..of(0, is_kept) };
        rest.evaluation.as_mut().unwrap().save_best = true;
        let script = Script { first_step: first_step.0, ..Script::default() };
        let (log, result) = World::new(rest, &script, 5).run(None);
        assert_eq!(result, Ok(Outcome::Completed));
        assert!(log.evaluated[0].step == first_step && log.evaluated[0].is_best, "{:?}", log.evaluated[0]);
        log.published.iter().any(|(step, ..)| step == last)
    };
    assert_eq!([false, true].map(saved), [true, false]);
}

#[test]
fn a_held_out_sample_that_killed_encoders_is_reported_once() {
    let pools = pools(2, 2, 1);
    let mut held_out = (0..17).map(|at| fake::sample(SampleId::held_out(0, at).0, 2));
    let sample = held_out.find(|sample| !fake::is_bad(sample.id.0) && !sample.items.is_empty()).unwrap().id;
    let known = PoisonItem { item: ItemId { sample, index: 0 }, deaths: MAX_CRASHES };
    let state = SchedulerState { poison_items: vec![known], ..SchedulerState::default() };
    let spec = CoordinatorSpec { encoders: rules(&pools, true, true), state, ..spec(&pools, STEPS) };
    let (log, result) = World::new(evaluated(spec, 1), &Script::default(), 7).run(None);
    assert_eq!((result, log.evaluated.len() as u64), (Ok(Outcome::Completed), STEPS + 1));
    assert_eq!(log.bad.iter().filter(|bad| bad.id == sample).count(), 1);
}

/// Makes a run that is evaluated every so many steps; samples are made in steps of their own.
fn evaluated(spec: CoordinatorSpec, every: u64) -> CoordinatorSpec {
    let purpose = Purpose::Score { draw: 0 };
    let pass = |stream, num_samples| EvaluationPass { purpose, stream, num_samples, max_samples: 4, sigma: None };
    let set = |name: &str, passes| EvaluationSet { name: name.to_owned(), every, at_start: false, passes };
    let generate = EvaluationPass { purpose: Purpose::Generate { max_new_tokens: 3 }, ..pass(1, 5) };
    let at = |sigma| EvaluationPass { sigma: Some(Sigma::new(sigma)), ..pass(2, 6) };
    let make = EvaluationPass { purpose: Purpose::Sample { draw: 0 }, ..pass(4, PROMPTS) };
    let made = EvaluationSet { every: MADE_EVERY, at_start: true, ..set("samples", vec![make]) };
    let sets = vec![set("held_out", vec![pass(0, 17), generate]), made, set("val", vec![at(0.1), at(0.9)])];
    let (decisive, save_best, patience) = (Some(2), false, None);
    let evaluation = EvaluationSpec { sets, decisive, save_best, patience, min_delta: 0.0, batch_size: 7 };
    CoordinatorSpec { evaluation: Some(evaluation), ..spec }
}

/// Returns what a run computed, without what evaluations add to its checkpoints and bad samples.
fn trained(log: &Log) -> (Vec<StepPlan>, Vec<StepSummary>, Vec<(StepId, SchedulerState)>) {
    let plans = log.plans.iter().filter(|plan| !plan.purpose.is_evaluation()).cloned().collect();
    let state = |state: &SchedulerState| SchedulerState { evaluated: Evaluated::default(), ..state.clone() };
    (plans, log.steps.clone(), log.published.iter().map(|(step, at, _)| (*step, state(at))).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Encoders die, come and go meanwhile; training is as if nothing was evaluated, and the results are those of one encoder.
    #[test]
    fn evaluations_change_nothing_of_training(
        seed: u64,
        encoders in 1_u32..4,
        foundation in 1_u32..3,
        every in 1_u64..5,
        frozen: bool,
        changes in prop::collection::vec((0_usize..40, 0_usize..4), 0..10),
    ) {
        let pools = pools(2, encoders, foundation);
        let script = Script { frozen, ..Script::default() };
        let plain = CoordinatorSpec { encoders: rules(&pools, false, !frozen), ..spec(&pools, STEPS) };
        let elastic = CoordinatorSpec { encoders: rules(&pools, true, !frozen), ..evaluated(plain.clone(), every) };
        let (log, result, _) = World::new(elastic, &script, seed).run_changing(&changes);
        if let Err(failure) = result {
            prop_assert!(!frozen && failure.is_loss(), "{failure}");
            return Ok(());
        }
        let whole = reference_of(evaluated(plain.clone(), every), &script);
        prop_assert_eq!(trained(&log), trained(&reference_of(plain, &script)));
        prop_assert_eq!(&log.evaluated, &whole.evaluated);
        let steps = |wanted: &dyn Fn(&EvaluationSummary) -> bool| {
            log.evaluated.iter().filter(|summary| wanted(summary)).map(|summary| summary.step.0).collect::<Vec<_>>()
        };
        let due = |every: u64| move |step: &u64| step.is_multiple_of(every) || *step == STEPS;
        prop_assert_eq!(steps(&|summary| !summary.sets.is_empty()), (1..=STEPS).filter(due(every)).collect::<Vec<_>>());
        prop_assert_eq!(steps(&|summary| !summary.made.is_empty()), (0..=STEPS).filter(due(MADE_EVERY)).collect::<Vec<_>>());
        let usable = (0..PROMPTS).filter(|&at| !fake::is_bad(SampleId::held_out(4, at).0)).count();
        prop_assert!(log.evaluated.iter().all(|summary| summary.made.is_empty() || summary.made.len() == usable));
        let first = log.evaluated.iter().find(|summary| !summary.sets.is_empty()).unwrap();
        let sets = &first.sets;
        let [(_, low), (_, high)] = &sets[1].levels[..] else { panic!("two noise levels") };
        prop_assert!(low.num_targets == high.num_targets && low.loss_sum < high.loss_sum);
        prop_assert_eq!(sets[0].num_samples + sets[0].num_bad, 17 + (0..5).filter(|&at| fake::is_bad(SampleId::held_out(1, at).0)).count() as u64);
        prop_assert!(sets[1].loss() > 0.0 && sets[1].found.num_targets > 0);
    }

    /// A run that is stopped and goes on evaluates no sample twice and leaves none out.
    #[test]
    fn a_stopped_run_is_evaluated_as_a_whole_one(seed: u64, stop_at in 0_usize..600, every in 1_u64..5, frozen: bool) {
        let script = Script { frozen, ..Script::default() };
        let spec = || evaluated(CoordinatorSpec { encoders: rules(&pools(2, 2, 1), false, !frozen), ..spec(&pools(2, 2, 1), STEPS) }, every);
        let (log, result) = World::new(spec(), &script, seed).run(Some(stop_at));
        let whole = reference_of(spec(), &script);
        let mut all = log.evaluated.clone();
        if let (Ok(Outcome::Preempted), Some((last, state, _))) = (&result, log.published.last()) {
            let first_step = StepId(last.0 + 1);
            let rest = CoordinatorSpec { first_step, state: state.clone(), ..spec() };
            let script = Script { first_step: first_step.0, ..script };
            let (rest, result) = World::new(rest, &script, seed ^ 3).run(None);
            prop_assert_eq!(result, Ok(Outcome::Completed));
            // The checkpoint may be older than the last evaluation, which is done again then.
            all.retain(|summary| rest.evaluated.iter().all(|other| other.step != summary.step));
            all.extend(rest.evaluated);
        }
        if !all.is_empty() {
            prop_assert_eq!(&all, &whole.evaluated);
        }
    }

    /// The best step is saved, and without progress the run ends where it is.
    #[test]
    fn the_best_step_is_saved_and_patience_ends_a_run(seed: u64, every in 1_u64..3, patience in 1_u64..3) {
        let (pools, script) = (pools(2, 2, 1), Script::default());
        let mut spec = evaluated(CoordinatorSpec { save_points: SavePoints { every_steps: 0, at_end: true }, ..spec(&pools, STEPS) }, every);
        let evaluation = spec.evaluation.as_mut().unwrap();
        (evaluation.save_best, evaluation.patience) = (true, Some(patience));
        let (log, result) = World::new(spec.clone(), &script, seed).run(None);
        prop_assert_eq!(result, Ok(Outcome::Completed));
        let last = log.evaluated.last().unwrap();
        prop_assert_eq!(last.stops, last.evaluated.without_progress == patience);
        prop_assert_eq!(log.steps.len() as u64, if last.stops { last.step.0 } else { STEPS });
        prop_assert!(last.sets.len() == 2 && !last.made.is_empty(), "all sets are evaluated after the last step: {last:?}");
        let best = last.evaluated.best.unwrap();
        let scored = log.evaluated.iter().filter(|summary| !summary.sets.is_empty());
        let losses = scored.map(|summary| (summary.step, summary.sets[1].loss()));
        let lowest = losses.min_by(|one, other| one.1.total_cmp(&other.1)).unwrap();
        prop_assert_eq!((best.step, best.loss), lowest);
        let saved: Vec<u64> = log.published.iter().map(|(step, ..)| step.0 + 1).collect();
        prop_assert!(saved.contains(&best.step.0) && saved.contains(&(log.steps.len() as u64)), "{saved:?}");
        let (_, state, _) = log.published.last().unwrap();
        if last.stops {
            // Who goes on with it has nothing to do.
            let first_step = StepId(log.steps.len() as u64);
            let again = CoordinatorSpec { first_step, state: SchedulerState { evaluated: last.evaluated, ..state.clone() }, ..spec };
            let script = Script { first_step: first_step.0, ..script };
            let (log, result) = World::new(again, &script, seed).run(None);
            prop_assert_eq!((result, log.steps.len()), (Ok(Outcome::Completed), 0));
        }
    }
}
