//! Whole runs with real threads and actors, and fake engines.

use crate::fake::{Script, engine, rules, run_spec, spec};
use crate::recording_observer::{RecordingObserver, Seen};
use loongforge_actors::{Assignment, EngineFactory, RunError, RunSpec, StopOn, run_in_process};
use loongforge_core::message::ActorId;
use loongforge_core::schedule::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn run(
    pools: PoolSizes,
    script: &Script,
    stop_after: Option<u64>,
    can_publish: bool,
) -> (Seen, Result<Outcome, RunError>) {
    let dir = tempfile::tempdir().unwrap();
    let elastic = !script.paces.is_empty();
    let coordinator =
        CoordinatorSpec { encoders: rules(&pools, elastic, true), max_save_failures: 3, ..spec(&pools, 12) };
    let (sender, requests) = flume::bounded(1);
    let seen = Arc::new(Mutex::new(Seen::default()));
    let observer = RecordingObserver {
        seen: seen.clone(),
        stop_after: stop_after.map(|step| (step, sender.clone())),
        can_publish,
    };
    let spec =
        RunSpec { stop: StopOn::Channel(requests), lease: Duration::from_secs(2), ..run_spec(dir.path(), coordinator) };
    let make_engine = |assignment: Assignment| -> EngineFactory {
        let script = script.clone();
        Box::new(move || {
            assert_eq!(std::thread::current().name(), Some(assignment.me.to_string().as_str()));
            assert!(assignment.rendezvous.is_dir());
            Ok(engine(assignment.me, assignment.pools.data, &script))
        })
    };
    let result = run_in_process(spec, make_engine, Box::new(observer));
    let seen = Arc::into_inner(seen).expect("the observer is gone").into_inner().unwrap();
    (seen, result)
}

fn pools(encoder: u32) -> PoolSizes {
    PoolSizes::of_roles(2, encoder, 1)
}

#[test]
fn one_two_and_four_encoders_give_the_same_losses() {
    for frozen in [false, true] {
        let script = Script { frozen, ..Script::default() };
        let (one, result) = run(pools(1), &script, None, true);
        assert_eq!(result.unwrap(), Outcome::Completed);
        assert_eq!(one.losses.len(), 12);
        assert!(one.num_bad > 0);
        assert_eq!(one.published, [2, 5, 8, 11]);
        for encoders in [2, 4] {
            let (many, result) = run(pools(encoders), &script, None, true);
            assert_eq!(result.unwrap(), Outcome::Completed);
            assert_eq!(many.losses, one.losses);
        }
    }
}

#[test]
fn a_slow_encoder_is_named_and_the_losses_stay() {
    let (one, result) = run(pools(1), &Script::default(), None, true);
    assert_eq!(result.unwrap(), Outcome::Completed);
    let mut paces = vec![Duration::from_micros(100); 4];
    paces[2] = Duration::from_millis(1);
    let (many, result) = run(pools(4), &Script { paces, ..Script::default() }, None, true);
    assert_eq!(result.unwrap(), Outcome::Completed);
    assert_eq!(many.losses, one.losses);
    assert_eq!(many.slow, [ActorId::encoder(2)]);
}

#[test]
fn a_panic_and_a_failure_end_the_run_and_are_named() {
    for (panics, cause) in [(true, "panicked: injected panic"), (false, "injected failure")] {
        for actor in pools(2).actors() {
            let script = Script { failure: Some((actor, 9)), panics, ..Script::default() };
            let (_, result) = run(pools(2), &script, None, true);
            let error = result.unwrap_err();
            assert_eq!(error.to_string(), format!("{actor}: {cause}"));
            // Beginning again would come to the same.
            assert!(matches!(&error, RunError::Failed(failure) if !failure.is_loss()), "{error:?}");
        }
    }
}

#[test]
fn a_stop_ends_after_a_checkpoint() {
    let (seen, result) = run(pools(2), &Script::default(), Some(3), true);
    assert_eq!(result.unwrap(), Outcome::Preempted);
    assert!((4..=8).contains(&seen.losses.len()), "{} steps", seen.losses.len());
    assert_eq!(seen.published.last().map(|step| step + 1), Some(seen.losses.len() as u64));
}

#[test]
fn checkpoints_that_cannot_be_published_end_the_run_after_so_many() {
    let (seen, result) = run(pools(2), &Script::default(), None, false);
    assert!(seen.losses.len() >= 5 && seen.published.is_empty(), "it went on after the first");
    let error = result.unwrap_err().to_string();
    assert!(error.contains("disk full; 3 in a row could not be written"), "{error}");
}
