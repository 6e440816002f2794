//! Runs whose network is a proxy with a script: the losses are those of a run in which nothing happens. Every process
//! is a thread of this one; their sockets are real.

use crate::fake::{self, Script as Engines, engine, rules, spec};
use crate::recording_observer::{RecordingObserver, Seen, recording_observer};
use loongforge_actors::drill::{Proxy, Script};
use loongforge_actors::launch::net::{Party, Security, issue, new_authority};
use loongforge_actors::{
    Assignment, EngineFactory, Meeting, Publisher, RunError, RunSpec, run_in_process, serve_role, serve_scheduler,
};
use loongforge_core::config::Address;
use loongforge_core::message::*;
use loongforge_core::schedule::*;
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

static POOLS: LazyLock<PoolSizes> = LazyLock::new(|| PoolSizes::of_roles(1, 2, 1));
const STEPS: u64 = 12;
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn make(it: Assignment) -> EngineFactory {
    let script = Engines { pause: Duration::from_millis(5), ..Engines::default() };
    Box::new(move || Ok(engine(it.me, it.pools.data, &script)))
}

fn run_spec(dir: &Path, lease: Duration) -> RunSpec {
    let coordinator = CoordinatorSpec { encoders: rules(&POOLS, true, true), ..spec(&POOLS, STEPS) };
    RunSpec { lease, ..fake::run_spec(dir, coordinator) }
}

/// Tells the proxy of steps.
struct Steps(Box<RecordingObserver>, Arc<Proxy>);

impl loongforge_actors::Observer for Steps {
    fn step(&mut self, summary: &StepSummary) {
        self.0.step(summary);
        self.1.advance(summary.step.0 + 1);
    }

    fn pool(&mut self, change: &PoolChange) {
        self.0.pool(change);
    }

    fn bad(&mut self, samples: &[SkippedSample]) {
        self.0.bad(samples);
    }

    fn publisher(&mut self) -> Publisher {
        self.0.publisher()
    }
}

fn twin() -> Vec<f64> {
    let dir = tempfile::tempdir().unwrap();
    let (seen, observer) = recording_observer();
    run_in_process(run_spec(dir.path(), Duration::from_secs(20)), make, observer).unwrap();
    let losses = seen.lock().unwrap().losses.clone();
    assert_eq!(losses.len() as u64, STEPS);
    losses
}

/// Runs with these faults, and returns what was seen and how often each fault happened. `certs`: a folder with certificates.
fn run(script: &str, lease: Duration, certs: Option<&Path>) -> (Seen, Result<Outcome, RunError>, Vec<u64>) {
    // Ports that are free are others' a moment later.
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let script: Script = script.parse().unwrap();
    let proxy = Arc::new(Proxy::start(&script, 7).unwrap());
    let dir = tempfile::tempdir().unwrap();
    // Nobody else takes the port between the two: it was given a moment ago.
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let security = |party| match certs {
        Some(dir) => Security::with_certificates("a", party, dir).unwrap(),
        None => Security::plain("a"),
    };
    let meeting = |party: Party| Meeting {
        address: Address::Tcp { host: "127.0.0.1".into(), port },
        security: security(party).through(proxy.address()),
        config: "abc".into(),
        timeout: Duration::from_secs(60),
        shared_memory: false,
        store: None,
        journal: None,
    };
    let (seen, observer) = recording_observer();
    let result = std::thread::scope(|scope| {
        for actor in POOLS.actors() {
            let meeting = meeting(Party::Actor(actor.role));
            // One that was given up fails; the run says whether that matters.
            scope.spawn(move || drop(serve_role(actor, meeting, make)));
        }
        let observer = Box::new(Steps(observer, proxy.clone()));
        serve_scheduler(run_spec(dir.path(), lease), meeting(Party::Actor(Role::Scheduler)), None, observer)
    });
    let counts = proxy.injected().iter().map(|injected| injected.count).collect();
    (std::mem::take(&mut *seen.lock().unwrap()), result, counts)
}

const PATIENT: Duration = Duration::from_secs(4);

/// Each of these is made to happen, nobody is lost, and the losses are the twin's.
fn assert_harmless(scripts: &[&str]) {
    let twin = twin();
    for script in scripts {
        let (seen, result, counts) = run(script, PATIENT, None);
        assert_eq!(result.unwrap(), Outcome::Completed, "{script}");
        assert_eq!(seen.losses, twin, "{script}");
        assert!(counts.iter().all(|count| *count > 0), "{script}: {counts:?}");
        assert!(seen.changes.is_empty(), "{script}: nobody is lost: {:?}", seen.changes);
    }
}

#[test]
fn damaged_doubled_late_and_lost_messages_change_nothing() {
    assert_harmless(&[
        "* -> *: flip 1%",
        "* -> *: duplicate 10%",
        "* -> *: reorder 5%; * -> *: delay 0ms..20ms",
        "* -> *: lose 1%",
        "encoder/* -> foundation/*: flip; foundation/* -> encoder/*: flip; scheduler -> *: flip; * -> scheduler: flip",
    ]);
}

#[test]
fn broken_connections_are_mended() {
    assert_harmless(&[
        "foundation/0 <-> scheduler: reset at step 3; encoder/1 <-> scheduler: drop at step 5",
        "* <-> *: reset at step 4",
        "* -> *: cut after 14000 bytes",
        "data/0 -> foundation/0: throttle 40kB at step 2 for 2 steps",
        "foundation/0 <-> scheduler: partition at step 4 for 700ms",
    ]);
}

/// An encoder that cannot be reached is given up, and what it says when it can be reached again is not heard.
#[test]
fn a_partitioned_encoder_s_work_goes_to_the_other() {
    let twin = twin();
    for script in [
        "encoder/1 -> scheduler: partition at step 3 for 3s",
        "encoder/1 <-> *: partition at step 3 for 3s",
        "encoder/1 <-> foundation/0: partition at step 3 for 5s",
    ] {
        let (seen, result, counts) = run(script, Duration::from_millis(800), None);
        assert_eq!(result.unwrap(), Outcome::Completed, "{script}");
        assert_eq!(seen.losses, twin, "{script}");
        assert_eq!(counts, [1], "{script}");
        let left: Vec<ActorId> = seen.changes.iter().flat_map(|change| &change.left).map(|(actor, _)| *actor).collect();
        assert_eq!(left, [ActorId::encoder(1)], "{script}");
    }
}

/// The scheduler waits for a silent actor of these for twelve leases, and so does its peer.
#[test]
fn a_foundation_and_a_data_actor_that_cannot_reach_each_other_for_some_leases_go_on() {
    let script = "data/0 <-> foundation/0: partition at step 4 for 4s";
    let (seen, result, counts) = run(script, Duration::from_millis(800), None);
    assert_eq!(result.unwrap(), Outcome::Completed);
    assert_eq!((seen.losses, counts), (twin(), vec![1]));
    assert!(seen.changes.is_empty(), "nobody is lost: {:?}", seen.changes);
}

#[test]
fn connections_with_certificates_are_mended_too() {
    let certs = tempfile::tempdir().unwrap();
    let day = Duration::from_secs(24 * 3600);
    new_authority(certs.path(), "a", day).unwrap();
    Party::ALL.into_iter().for_each(|party| issue(certs.path(), "a", party, day).unwrap());
    for script in ["* <-> *: reset at step 4", "* -> *: cut after 14000 bytes"] {
        let (seen, result, counts) = run(script, PATIENT, Some(certs.path()));
        assert_eq!(result.unwrap(), Outcome::Completed, "{script}");
        assert_eq!(seen.losses, twin(), "{script}");
        assert!(counts[0] > 0, "{script}");
    }
}
