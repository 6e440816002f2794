//! Runs that end early: values that are not finite, bad samples, packs beyond a credit.

use super::{STEPS, pools, reference};
use crate::fake::{self, Script, rules, spec};
use crate::world::World;
use loongforge_core::config::SavePoints;
use loongforge_core::message::*;
use loongforge_core::schedule::*;
use proptest::prelude::*;

#[test]
fn too_many_skipped_steps_in_a_row_end_the_run() {
    let script = Script { nan_loss: (1..100).collect(), ..Script::default() };
    let (log, result) = World::new(spec(&pools(1, 1, 1), STEPS), &script, 3).run(None);
    assert!(log.steps.iter().all(|step| step.applied == (step.step.0 == 0)), "nothing is applied after the first");
    let failure = result.unwrap_err();
    assert!(failure.is_numeric() && !failure.is_loss());
    let cause = failure.to_string();
    assert!(
        cause.contains("step 4: loss NaN") && cause.contains("`train.on_nonfinite.max_consecutive` = 3"),
        "{cause}"
    );
    let samples: Vec<u64> = (0..).filter(|&position| !fake::is_bad(position)).skip(20).take(5).collect();
    assert!(cause.ends_with(&format!("samples {samples:?}")), "{cause}");
}

/// It waited forever for steps that were planned ahead, which the engines were not to reduce any more.
#[test]
fn a_run_that_is_asked_to_stop_while_too_many_steps_are_not_finite_ends() {
    let script = Script { nan_loss: (1..100).collect(), ..Script::default() };
    let mut num_failed = 0;
    for (seed, stop_at) in (0..4).flat_map(|seed| (0..120).map(move |stop_at| (seed, stop_at))) {
        let (log, result) = World::new(spec(&pools(1, 2, 1), STEPS), &script, seed).run(Some(stop_at));
        match result {
            Ok(outcome) => assert_eq!(outcome, Outcome::Preempted, "seed {seed}, after {stop_at} events"),
            Err(failure) => {
                assert!(failure.is_numeric(), "seed {seed}, after {stop_at} events: {failure}");
                num_failed += 1;
            }
        }
        assert!(log.steps.iter().all(|step| step.applied == (step.step.0 == 0)));
    }
    assert!(num_failed > 0);
}

/// The scheduler panicked where the checkpoint of the last good step was on its way, and a later one of the same weights had failed.
#[test]
fn the_last_good_step_is_saved_again_only_when_its_checkpoint_is_published() {
    let script = Script { nan_loss: (1..100).collect(), ..Script::default() };
    let save_points = SavePoints { every_steps: 1, at_end: true };
    for seed in 0..10 {
        let spec = CoordinatorSpec { save_points, max_nonfinite: 1, ..spec(&pools(1, 2, 1), STEPS) };
        let mut world = World::new(spec, &script, seed);
        world.publishes_late = true;
        while world.log.published.len() < 2 {
            world.something();
        }
        assert!(world.lasting.is_empty());
        world.input(Input::PublishFailed(StepId(1), SaveTo::Disk, "no space".into()));
        while world.result.is_none() {
            world.something();
        }
        assert!(world.result.unwrap().unwrap_err().is_numeric());
        assert!(world.log.published.iter().all(|(step, ..)| step.0 < 2));
        assert!(world.lasting.contains(&StepId(0)));
    }
}

#[test]
fn weights_that_are_in_no_folder_are_saved_where_no_step_is_finite() {
    let saved = |is_kept: bool| {
        let save_points = SavePoints { every_steps: 0, at_end: true };
        let first_step = StepId(2);
        let spec = CoordinatorSpec { first_step, is_kept, save_points, ..spec(&pools(1, 1, 1), STEPS) };
        let script = Script { first_step: first_step.0, nan_loss: (0..100).collect(), ..Script::default() };
        let (log, result) = World::new(spec, &script, 3).run(None);
        assert!(result.unwrap_err().is_numeric());
        log.published.iter().map(|(step, ..)| step.0).collect::<Vec<_>>()
    };
    assert_eq!([false, true].map(saved), [vec![1], vec![]]);
}

#[test]
fn samples_are_computed_again_at_the_noise_levels_that_they_had() {
    let mut spec = spec(&pools(1, 1, 1), STEPS);
    let flow = FlowShape { boundary: None, auto_shift: AutoShift::QWEN };
    spec.plan.sigma = Some(SigmaSpec::new(5, None, None, flow));
    let script = Script { noised: true, nan_loss: (1..100).collect(), ..Script::default() };
    let mut world = World::new(spec, &script, 3);
    while world.result.is_none() {
        world.something();
    }
    let found = world.not_finite.clone().unwrap();
    let (again, ..) = found.recomputed.unwrap();
    let levels = |step: StepId| {
        let plan = world.log.plans.iter().find(|plan| plan.step == step).unwrap();
        let samples = plan.packs.iter().flat_map(|pack| &pack.samples);
        let mut levels: Vec<_> = samples.map(|sample| (sample.id, sample.target.unwrap().sigma)).collect();
        levels.sort_unstable_by_key(|(id, _)| *id);
        levels
    };
    assert_eq!(levels(again), levels(found.step));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// The run tells apart what is wrong, whatever step it is at, and saves the last good state, however often that fails at first.
    #[test]
    fn data_machines_and_weights_are_told_apart(
        seed: u64, first in 1..STEPS - 4, prefetch in 1_usize..4, which in 0_usize..3, num_failing in 0_usize..4,
    ) {
        let pools = pools(2, 2, 1);
        let planned = reference(&pools, &Script::default()).plans;
        let samples = |step: u64| planned[step as usize].packs.iter().flat_map(|pack| &pack.samples).map(|sample| sample.id.0);
        let script = match which {
            // One sample in each of four batches.
            0 => Script { nan_samples: (first..first + 4).map(|step| samples(step).min().unwrap()).collect(), ..Script::default() },
            1 => Script { nan_loss: (first..first + 4).collect(), ..Script::default() },
            _ => Script { nan_loss: (first..1000).collect(), ..Script::default() },
        };
        let spec = CoordinatorSpec { prefetch_steps: prefetch, save_points: SavePoints { every_steps: 0, at_end: true }, ..spec(&pools, STEPS) };
        let mut world = World::new(spec, &script, seed);
        world.num_failing = num_failing;
        while world.result.is_none() {
            world.something();
        }
        let result = world.result.clone().unwrap();
        prop_assert!(result.as_ref().is_err_and(|failure| failure.is_numeric()), "{:?}", result);
        let found = world.not_finite.clone().unwrap();
        let verdict = [Verdict::Data, Verdict::Transient, Verdict::Persistent][which];
        prop_assert_eq!(found.verdict, verdict, "{:?}", found);
        let mut wanted: Vec<u64> = samples(first + 3).collect();
        wanted.sort_unstable();
        prop_assert_eq!(found.samples.iter().map(|sample| sample.0).collect::<Vec<_>>(), wanted);
        prop_assert_eq!((found.num_in_row, found.last_applied), (4, Some(StepId(first - 1))));
        // Nothing was applied after the last good step, and that is what was saved.
        prop_assert_eq!(world.log.steps.iter().filter(|step| step.applied).count() as u64, first);
        let (step, state, _) = world.log.published.last().unwrap();
        prop_assert_eq!((*step, state.cursor), (StepId(first - 1), planned[first as usize - 1].cursor));
        prop_assert_eq!(&world.lasting, &[StepId(first - 1)]);
    }
}

/// Without a checkpoint at the end there are only those of every so many steps; if a run writes some, a stop adds one.
#[test]
fn no_checkpoint_of_the_last_step_is_written_where_none_is_wanted() {
    let run = |every: u64, stop_at: Option<usize>| {
        let spec = CoordinatorSpec {
            save_points: SavePoints { every_steps: every, at_end: false },
            ..spec(&pools(1, 2, 1), STEPS)
        };
        let (log, result) = World::new(spec, &Script::default(), 3).run(stop_at);
        let last = log.steps.last().map(|step| step.step.0);
        (log.published.iter().map(|(step, ..)| step.0).collect::<Vec<_>>(), last, result)
    };
    assert_eq!(run(0, None), (vec![], Some(STEPS - 1), Ok(Outcome::Completed)));
    assert_eq!(run(3, None), (vec![2, 5], Some(STEPS - 1), Ok(Outcome::Completed)));
    let (published, last, result) = run(0, Some(60));
    assert_eq!((published, result), (vec![], Ok(Outcome::Preempted)));
    assert!(last.is_some_and(|last| last < STEPS - 1), "{last:?}");
    let (published, last, result) = run(100, Some(60));
    assert_eq!((published.last().copied(), result), (last, Ok(Outcome::Preempted)));
    assert!(last.is_some_and(|last| last < STEPS - 1), "{last:?}");
}

#[test]
fn steps_wait_where_checkpoints_are_written_faster_than_they_are_published() {
    let pools = pools(1, 2, 1);
    let spec = CoordinatorSpec { save_points: SavePoints { every_steps: 1, at_end: true }, ..spec(&pools, STEPS) };
    let mut world = World::new(spec, &Script::default(), 3);
    world.publishes_late = true;
    while world.result.is_none() {
        world.something();
    }
    assert_eq!(world.result, Some(Ok(Outcome::Completed)));
    assert_eq!(world.most_unpublished, 2);
    assert_eq!(world.held, (2..STEPS).map(StepId).collect::<Vec<_>>());
    assert_eq!(world.lasting, (0..STEPS).map(StepId).collect::<Vec<_>>());
    assert_eq!(world.log.steps, reference(&pools, &Script::default()).steps);
}

#[test]
fn too_many_bad_samples_end_the_run() {
    let mut strict = spec(&pools(1, 1, 1), 100);
    strict.bad_samples.max_fraction = 0.01;
    let (log, result) = World::new(strict, &Script::default(), 3).run(None);
    let cause = result.unwrap_err().to_string();
    assert!(cause.contains("`data.on_bad_sample.max_fraction` = 0.01"), "{cause}");
    assert!(cause.contains(&log.bad.last().unwrap().source), "{cause}");
}

#[test]
fn a_pack_beyond_a_credit_is_named_before_it_is_sent() {
    let mut small = spec(&pools(1, 1, 1), 4);
    small.plan.credits.features = 8;
    let (_, result) = World::new(small, &Script::default(), 3).run(None);
    let cause = result.unwrap_err().to_string();
    assert!(cause.contains("step 0") && cause.contains("`edges.features.credit`"), "{cause}");
}

/// A process that is lost has a run started again, which would come to the same steps.
#[test]
fn a_run_of_which_no_step_is_finite_fails_for_that_though_its_encoder_dies_when_all_is_saved() {
    for frozen in [false, true] {
        let pools = pools(1, 1, 1);
        let save_points = SavePoints { every_steps: 0, at_end: true };
        let spec = CoordinatorSpec { encoders: rules(&pools, true, !frozen), save_points, ..spec(&pools, STEPS) };
        let script = Script { frozen, nan_loss: (1..100).collect(), ..Script::default() };
        let mut world = World::new(spec, &script, 3);
        world.publishes_late = true;
        while world.log.published.is_empty() {
            world.something();
        }
        world.kill(ActorId::encoder(0));
        while world.result.is_none() {
            world.something();
        }
        let failure = world.result.unwrap().unwrap_err();
        assert!(failure.is_numeric(), "frozen: {frozen}: {failure}");
        assert_eq!((world.paused, world.lasting), (None, vec![StepId(0)]));
    }
}

/// Returns a run with one encoder in which all engines have written the last checkpoint, which is not published.
fn written(frozen: bool) -> World {
    let pools = pools(1, 1, 1);
    let spec = CoordinatorSpec { encoders: rules(&pools, true, !frozen), ..spec(&pools, STEPS) };
    let mut world = World::new(spec, &Script { frozen, ..Script::default() }, 3);
    world.publishes_late = true;
    while world.log.published.last().is_none_or(|(step, ..)| step.0 < STEPS - 1) {
        world.something();
    }
    world
}

#[test]
fn a_run_whose_last_encoder_dies_when_it_has_done_its_part_ends_in_order() {
    for frozen in [false, true] {
        let mut world = written(frozen);
        world.kill(ActorId::encoder(0));
        while world.result.is_none() {
            world.something();
        }
        assert_eq!((world.result, world.paused), (Some(Ok(Outcome::Completed)), None), "frozen: {frozen}");
        assert_eq!(world.lasting.last(), Some(&StepId(STEPS - 1)));
    }
}

#[test]
fn a_run_without_encoders_that_is_stopped_keeps_the_checkpoint_that_is_being_written() {
    for is_grace_over in [false, true] {
        let pools = pools(1, 1, 1);
        let spec = CoordinatorSpec { encoders: rules(&pools, true, false), ..spec(&pools, STEPS) };
        let mut world = World::new(spec, &Script { frozen: true, ..Script::default() }, 3);
        world.publishes_late = true;
        while world.log.published.is_empty() {
            world.something();
        }
        world.kill(ActorId::encoder(0));
        world.input(Input::StopRequested);
        if is_grace_over {
            let (pool, epoch) = world.paused.unwrap();
            world.input(Input::GraceOver(pool, epoch));
        }
        while world.result.is_none() {
            world.something();
        }
        assert_eq!((world.result, world.lasting), (Some(Ok(Outcome::Preempted)), vec![StepId(2)]));
    }
}

/// A batch system asks all processes of a job: the scheduler's is not always the first.
#[test]
fn a_run_whose_actors_are_asked_to_stop_before_its_user_asks_ends_in_order() {
    let asked_by = |num_times: usize| {
        let mut world = World::new(spec(&pools(1, 1, 1), STEPS), &Script::default(), 3);
        while world.log.published.is_empty() {
            world.something();
        }
        world.input(Input::Event(ActorId::data(0), Event::Leaving));
        world.input(Input::Event(ActorId::foundation(0), Event::Leaving));
        (0..num_times).for_each(|_| world.input(Input::StopRequested));
        while world.result.is_none() {
            world.something();
        }
        world.result.unwrap()
    };
    assert_eq!(asked_by(0), Ok(Outcome::Preempted));
    assert_eq!(asked_by(1), Ok(Outcome::Preempted));
    assert!(asked_by(2).unwrap_err().to_string().contains("on a second request"));
}

#[test]
fn a_last_checkpoint_that_must_be_written_again_needs_an_encoder_within_the_grace_period() {
    for frozen in [false, true] {
        let mut world = written(frozen);
        world.kill(ActorId::encoder(0));
        (world.publishes_late, world.num_failing) = (false, 1);
        while world.paused.is_none() {
            world.something();
        }
        let (pool, epoch) = world.paused.unwrap();
        world.input(Input::GraceOver(pool, epoch));
        while world.result.is_none() {
            world.something();
        }
        let failure = world.result.unwrap().unwrap_err();
        assert!(failure.is_loss() && failure.to_string().contains("no encoder is left"), "{failure}");
    }
}
