//! Encoders that die, come, go and end by themselves at any moment, in one pool or two, frozen or trained, while a run trains, evaluates
//! and saves: it waits for nobody who is gone, and loses nobody's part of a checkpoint.

mod crowd;

use super::trust_tests::STEPS;
use super::{Input, Outcome, Output};
use crate::message::*;
use crowd::{Act, Crowd, pool_of, spec_of};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// It ends, as a whole one, or as it must where it was stopped or the trained parameters are lost.
    #[test]
    fn a_run_ends_whatever_happens_to_its_encoders(
        seed: u64,
        pools in prop::collection::vec((prop::bool::ANY, 1_u32..4), 1..3),
        writes_late: bool,
        stop_at in prop::option::of(0_usize..400),
        acts in prop::collection::vec((0_usize..40, act()), 0..16),
    ) {
        let mut crowd = Crowd::new(spec_of(&pools, STEPS), seed).writing_late(writes_late);
        let (mut num_events, mut since, mut next) = (0, 0, acts.iter().copied().peekable());
        let mut stops = stop_at;
        while crowd.result.is_none() {
            if stops.take_if(|stop_at| *stop_at == num_events).is_some() {
                crowd.input(Input::StopRequested);
            }
            if let Some((_, act)) = next.next_if(|(at, _)| *at <= since) {
                since = 0;
                crowd.act(act);
            } else {
                crowd.go(1);
                (num_events, since) = (num_events + 1, since + 1);
            }
        }
        let has = |act: Act| acts.iter().any(|(_, other)| *other == act);
        let is_lossy = [Act::Die, Act::End, Act::SayReady].into_iter().any(has);
        match crowd.result.expect("the loop has ended") {
            Ok(Outcome::Completed) => {
                prop_assert_eq!(crowd.steps.len() as u64, STEPS);
                prop_assert_eq!(crowd.evaluated.last(), Some(&StepId(STEPS)));
                prop_assert_eq!(crowd.lasting.last(), Some(&StepId(STEPS - 1)));
            }
            Ok(Outcome::Preempted) => {
                prop_assert!(stop_at.is_some() || has(Act::Leave));
                prop_assert!(is_lossy || crowd.lasting.last() == crowd.steps.last());
            }
            Err(failure) => prop_assert!(is_lossy && failure.is_loss(), "{failure}"),
        }
    }
}

fn act() -> impl Strategy<Value = Act> {
    use Act::{Die, End, FailSave, Join, Leave, Retire, Save, SayReady};
    prop::sample::select(vec![Die, Leave, Retire, Join, End, SayReady, FailSave, Save])
}

#[test]
fn a_run_in_which_nothing_happens_is_whole() {
    let pools = [vec![(true, 2)], vec![(false, 1)], vec![(true, 1), (false, 2)]];
    for (pools, writes_late) in pools.iter().zip([false, true, false]) {
        let crowd = Crowd::new(spec_of(pools, STEPS), 7).writing_late(writes_late).run();
        assert_eq!((crowd.result, crowd.steps.len() as u64), (Some(Ok(Outcome::Completed)), STEPS));
        let wanted = (Some(&StepId(STEPS)), Some(&StepId(STEPS - 1)));
        assert_eq!((crowd.evaluated.last(), crowd.lasting.last()), wanted);
    }
}

#[test]
fn many_encoders_that_are_to_leave_are_let_go_in_one_epoch() {
    let mut crowd = Crowd::new(spec_of(&[(false, 40)], 2), 1);
    let leaving = (1..40).map(|index| ActorId::encoder_of(pool_of(Tower::Vision), index)).collect();
    let outputs = crowd.coordinator.on(Input::Retire(leaving));
    let told = |what: fn(&Command) -> bool| {
        outputs.iter().filter(|output| matches!(output, Output::Send(_, command) if what(command))).count()
    };
    assert_eq!(told(|command| *command == Command::Stop), 39);
    // Data, the foundation and the encoder that stays.
    assert_eq!(told(|command| matches!(command, Command::Regroup(_))), 3);
}

/// The scheduler's actor panics where a queue is full.
#[test]
fn queues_have_room_for_what_follows_if_hundreds_of_encoders_die_at_once() {
    let spec = spec_of(&[(false, 300)], 2);
    let room = spec.max_unanswered();
    let mut crowd = Crowd::new(spec, 1);
    let mut num_told = 0;
    for index in 1..300 {
        let gone = Input::Gone(ActorId::encoder_of(pool_of(Tower::Vision), index), "killed".into());
        let outputs = crowd.coordinator.on(gone);
        num_told +=
            outputs.iter().filter(|output| matches!(output, Output::Send(who, _) if who.role == Role::Data)).count();
    }
    assert!(num_told >= 299 && num_told < room, "{num_told} commands, room for {room}");
}

/// Its process would have its memory and its GPU for as long as the run.
#[test]
fn an_encoder_that_is_let_go_and_does_not_stop_is_dropped() {
    let encoder = |index| ActorId::encoder_of(pool_of(Tower::Vision), index);
    let mut crowd = Crowd::new(spec_of(&[(false, 2)], 2), 1);
    let outputs = crowd.coordinator.on(Input::Retire(vec![encoder(1)]));
    assert!(outputs.contains(&Output::Send(encoder(1), Command::Stop)));
    let outputs = crowd.coordinator.on(Input::Gone(encoder(1), "did not stop".into()));
    assert!(outputs.contains(&Output::Evict(encoder(1))), "{outputs:?}");
}

/// The one that writes in its place wrote nothing, where it did not know yet that it was the first.
#[test]
fn a_checkpoint_has_the_weights_of_a_pool_whenever_their_writer_dies() {
    for (trained, seed) in [true, false].into_iter().flat_map(|trained| (0..4).map(move |seed| (trained, seed))) {
        for num_events in 0.. {
            let mut crowd = Crowd::new(spec_of(&[(trained, 2)], 2), seed).writing_late(true);
            crowd.go(num_events);
            let is_over = crowd.result.is_some();
            crowd.die(ActorId::encoder_of(pool_of(Tower::Vision), 0));
            let crowd = crowd.run();
            assert_eq!(crowd.result, Some(Ok(Outcome::Completed)), "seed {seed}, after {num_events} events");
            assert_eq!(crowd.lasting.last(), Some(&StepId(1)));
            if is_over {
                break;
            }
        }
    }
}

#[test]
fn a_run_whose_encoders_die_when_they_have_written_their_pool_s_files_ends_in_order() {
    let encoder = |index| ActorId::encoder_of(pool_of(Tower::Vision), index);
    let mut crowd = Crowd::new(spec_of(&[(true, 2)], 2), 3).writing_late(true);
    while crowd.said.values().any(|said| !said.is_empty()) {
        crowd.go(1);
    }
    assert_eq!((crowd.steps.len(), crowd.evaluated.len(), crowd.writing.len()), (2, 2, 3));
    let place = crowd.writing.iter().position(|(actor, _)| *actor == encoder(0)).unwrap();
    let (writer, written) = crowd.writing.swap_remove(place);
    crowd.input(Input::Event(writer, written));
    crowd.die(encoder(0));
    crowd.die(encoder(1));
    let crowd = crowd.run();
    assert_eq!((crowd.result, crowd.lasting.last()), (Some(Ok(Outcome::Completed)), Some(&StepId(1))));
}

/// A batch system starts a run again only if it does not say that it is complete.
#[test]
fn a_run_that_is_stopped_before_the_evaluation_after_its_last_step_is_not_complete() {
    let mut outcomes = Vec::new();
    for num_events in 0.. {
        let mut crowd = Crowd::new(spec_of(&[(true, 2)], 2), 5);
        crowd.go(num_events);
        if crowd.result.is_some() {
            break;
        }
        crowd.input(Input::StopRequested);
        let crowd = crowd.run();
        let is_evaluated = crowd.evaluated.last() == Some(&StepId(2));
        let outcome = if is_evaluated { Outcome::Completed } else { Outcome::Preempted };
        assert_eq!(crowd.result, Some(Ok(outcome)), "after {num_events} events");
        assert_eq!(crowd.lasting.last(), crowd.steps.last());
        outcomes.push((outcome, crowd.steps.len()));
    }
    assert!([(Outcome::Preempted, 2), (Outcome::Completed, 2)].iter().all(|outcome| outcomes.contains(outcome)));
}

/// Its process may be killed before the run has ended, and the trained parameters with it.
#[test]
fn a_run_stops_where_the_last_encoder_left_is_one_whose_process_was_asked_to_stop() {
    let encoder = |index| ActorId::encoder_of(pool_of(Tower::Vision), index);
    let mut num_stopped = 0;
    for (seed, num_events) in (0..6).flat_map(|seed| (0..60).map(move |num_events| (seed, num_events))) {
        let mut crowd = Crowd::new(spec_of(&[(true, 2)], STEPS), seed);
        crowd.go(num_events);
        crowd.input(Input::Event(encoder(1), Event::Leaving));
        if crowd.coordinator.leaving() != [encoder(1)] {
            // It is let go already.
            continue;
        }
        let num_steps = crowd.steps.len();
        crowd.die(encoder(0));
        let crowd = crowd.run();
        assert!(matches!(crowd.result, Some(Ok(_))), "seed {seed}, after {num_events} events: {:?}", crowd.result);
        assert!(crowd.steps.len() <= num_steps + 2 && crowd.lasting.last() == crowd.steps.last());
        num_stopped += 1;
    }
    assert!(num_stopped > 0);
}

#[test]
fn an_encoder_that_comes_and_is_asked_to_stop_leaves_the_run_to_the_one_that_has_the_parameters() {
    for num_events in 0..60 {
        let pool = pool_of(Tower::Vision);
        let mut crowd = Crowd::new(spec_of(&[(true, 1)], STEPS), 5);
        crowd.input(Input::Retire(vec![ActorId::encoder_of(pool, 0)]));
        crowd.go(num_events);
        let new = crowd.join(pool);
        crowd.input(Input::Event(new, Event::Leaving));
        assert_eq!(crowd.run().result, Some(Ok(Outcome::Completed)), "after {num_events} events");
    }
}
