//! Encoders that die, freeze, join and are let go, as real processes with fake engines: the run goes on, and its losses
//! are those of a run in which nothing happened.

use crate::fake::{self, Script, engine, routed, routed_rules, rules, spec};
use crate::recording_observer::{Seen, recording_observer};
use crate::test_endpoint::test_endpoint;
use loongforge_actors::launch::net::Security;
use loongforge_actors::launch::{WantedActor, scale_run};
use loongforge_actors::{
    Assignment, EngineFactory, RunError, RunSpec, Start, run_in_process, serve_role, serve_scheduler,
};
use loongforge_core::config::Address;
use loongforge_core::engine::fault::{FAULTS, POINTS};
use loongforge_core::message::*;
use loongforge_core::schedule::*;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Mutex;
use std::time::Duration;

const ROLE: &str = "LOONGFORGE_TEST_ROLE";
const ADDRESS: &str = "LOONGFORGE_TEST_ADDRESS";
const PAUSE: &str = "LOONGFORGE_TEST_PAUSE";
const POOL: &str = "LOONGFORGE_TEST_POOL";
const FROZEN: &str = "LOONGFORGE_TEST_FROZEN";
const ROUTED: &str = "LOONGFORGE_TEST_ROUTED";

/// Runs the process of one actor; nothing when run as a test.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let pause = Duration::from_millis(number(PAUSE));
    let script = Script { pause, ..script(number(FROZEN) == 1, number(ROUTED) == 1) };
    let address = PathBuf::from(std::env::var(ADDRESS).unwrap());
    let make = |it: Assignment| -> EngineFactory { Box::new(move || Ok(engine(it.me, it.pools.data, &script))) };
    let role: Role = role.parse().unwrap();
    let pool = std::env::var(POOL).map_or(WantedActor::from(role).pool, |name| name.parse().unwrap());
    let wanted = WantedActor { pool, ..role.into() };
    if let Err(error) = serve_role(wanted, test_endpoint(Address::Unix(address.clone())), make) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn program(role: Role, address: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "faults::child", "--nocapture"]).env(ROLE, role.name()).env(ADDRESS, address);
    command
}

fn script(frozen: bool, routed: bool) -> Script {
    Script { frozen, ..if routed { Script::routed() } else { Script::default() } }
}

#[derive(Clone, Copy)]
struct Case {
    encoders: u32,
    steps: u64,
    frozen: bool,
    /// True if there are two foundation pools, and a frozen pool that delivers a column.
    routed: bool,
    /// Milliseconds that a foundation takes longer for each pack.
    pause: u64,
    lease: Duration,
    grace: Duration,
    stop_grace: Duration,
}

const CASE: Case = Case {
    encoders: 2,
    steps: 8,
    frozen: false,
    routed: false,
    pause: 0,
    lease: Duration::from_secs(20),
    grace: Duration::from_secs(60),
    stop_grace: Duration::from_secs(60),
};

impl Case {
    fn run_spec(self, dir: &Path) -> RunSpec {
        let pools = if self.routed { routed(2, 1) } else { PoolSizes::of_roles(2, self.encoders, 1) };
        let coordinator = CoordinatorSpec {
            encoders: if self.routed { routed_rules(&pools) } else { rules(&pools, true, !self.frozen) },
            ..spec(&pools, self.steps)
        };
        let run = fake::run_spec(dir, coordinator);
        let grace = run.grace.into_keys().map(|pool| (pool, self.grace)).collect();
        RunSpec { stop_grace: self.stop_grace, grace, lease: self.lease, ..run }
    }

    /// Returns the losses of the same run without faults.
    fn twin(self) -> Vec<f64> {
        let dir = tempfile::tempdir().unwrap();
        let (seen, observer) = recording_observer();
        let script = script(self.frozen, self.routed);
        let make = |it: Assignment| -> EngineFactory {
            let script = script.clone();
            Box::new(move || Ok(engine(it.me, it.pools.data, &script)))
        };
        run_in_process(Case { encoders: 1, ..self }.run_spec(dir.path()), make, observer).unwrap();
        let losses = seen.lock().unwrap().losses.clone();
        assert_eq!(losses.len() as u64, self.steps);
        losses
    }

    fn run(self, faults: &str) -> (Seen, Result<Outcome, RunError>) {
        self.run_with(faults, |_, _| ())
    }

    /// `meanwhile` is given the run's address and what is seen of it.
    fn run_with(
        self,
        faults: &str,
        meanwhile: impl FnOnce(&Path, &Mutex<Seen>) + Send,
    ) -> (Seen, Result<Outcome, RunError>) {
        let dir = tempfile::tempdir().unwrap();
        let faults = faults.to_owned();
        let start: Start = Box::new(move |actor, address| {
            let mut command = program(actor.role, Path::new(&address.to_string()));
            command.env(FAULTS, &faults).env(PAUSE, self.pause.to_string());
            command.env(POOL, actor.pool.as_str()).env(FROZEN, u8::from(self.frozen).to_string());
            command.env(ROUTED, u8::from(self.routed).to_string());
            command
        });
        let (seen, observer) = recording_observer();
        let address = dir.path().join("join");
        let endpoint = test_endpoint(Address::Unix(address.clone()));
        let result = std::thread::scope(|scope| {
            scope.spawn(|| meanwhile(&address, &seen));
            serve_scheduler(self.run_spec(dir.path()), endpoint, Some(start), observer)
        });
        (std::mem::take(&mut *seen.lock().unwrap()), result)
    }
}

fn left(seen: &Seen) -> Vec<u32> {
    seen.changes.iter().flat_map(|change| &change.left).map(|(actor, _)| actor.index).collect()
}

#[test]
fn killed_at_every_point_the_run_goes_on_with_the_same_losses() {
    for frozen in [false, true] {
        let case = Case { frozen, ..CASE };
        let twin = case.twin();
        // Whom nobody trains is told of no gradients, and has none to sum.
        let of_gradients = ["before_backward", "before_reduce", "after_reduce"];
        for point in POINTS.into_iter().filter(|point| !frozen || !of_gradients.contains(point)) {
            for nth in [1, 3] {
                // An engine is asked for work before the run begins, which needs all that it begins with.
                let nth = if point.ends_with("work") { 10 + 5 * nth } else { nth };
                let fault = format!("encoder/1@{point}:{nth}=kill");
                let (seen, result) = case.run(&fault);
                assert_eq!(result.unwrap(), Outcome::Completed, "{fault}");
                assert_eq!(seen.losses, twin, "{fault}");
                // Between the last decision and the end of the run nobody misses it.
                let may_be_missed = ["after_commit", "before_save", "after_save"].contains(&point) && nth == 3;
                assert!(left(&seen) == [1] || may_be_missed, "{fault}: {:?}", seen.changes);
                assert_eq!(seen.published, [2, 5, 7], "{fault}");
            }
        }
    }
}

#[test]
fn the_first_of_the_pool_and_all_but_one_may_die() {
    let case = Case { encoders: 4, ..CASE };
    let twin = case.twin();
    for faults in [
        "encoder/0@before_reduce:3=kill",
        "encoder/0@before_save:1=kill",
        "encoder/0@after_send:4=kill encoder/2@before_backward:5=kill encoder/3@after_plan:4=kill",
        "encoder/0@before_commit:2=kill encoder/1@before_commit:2=kill encoder/2@before_commit:2=kill",
    ] {
        let (seen, result) = case.run(faults);
        assert_eq!(result.unwrap(), Outcome::Completed, "{faults}");
        assert_eq!(seen.losses, twin, "{faults}");
        assert_eq!(seen.published, [2, 5, 7], "{faults}");
    }
}

/// Two foundation pools, and log-probabilities of a reference model as a column: with processes that are killed the losses
/// are those of threads.
#[test]
fn encoders_that_deliver_a_column_die_beside_two_foundation_pools() {
    let case = Case { routed: true, ..CASE };
    let twin = case.twin();
    for faults in ["", "reference/0@after_send:2=kill", "reference/1@before_work:15=kill vision/0@before_reduce:2=kill"]
    {
        let (seen, result) = case.run(faults);
        assert_eq!(result.unwrap(), Outcome::Completed, "{faults}");
        assert_eq!(seen.losses, twin, "{faults}");
        assert_eq!(left(&seen).len(), faults.matches("kill").count(), "{faults}");
        assert_eq!(seen.published, [2, 5, 7], "{faults}");
    }
    let (_, result) = case.run("foundation_low/0@after_send:3=kill");
    let Err(RunError::Failed(failure)) = result else { panic!("{result:?}") };
    assert!(failure.is_loss() && failure.actor.to_string() == "foundation_low/0", "{failure}");
}

#[test]
fn a_dead_encoder_is_replaced_and_a_frozen_one_too() {
    let case = Case { steps: 60, pause: 4, lease: Duration::from_millis(500), ..CASE };
    let twin = case.twin();
    for fault in ["encoder/1@after_send:5=kill", "encoder/1@after_send:5=freeze", "encoder/0@before_reduce:3=freeze"] {
        let (seen, result) = case.run(fault);
        assert_eq!(result.unwrap(), Outcome::Completed, "{fault}");
        assert_eq!(seen.losses, twin, "{fault}");
        let joined = seen.changes.iter().any(|change| change.joined.contains(&ActorId::encoder(2)));
        assert!(joined, "{fault}: {:?}", seen.changes);
    }
}

#[test]
fn the_last_one_s_death_ends_the_run_where_it_was_trained_and_pauses_it_where_not() {
    let case = Case { encoders: 1, ..CASE };
    let (_, result) = case.run("encoder/0@after_send:4=kill");
    let Err(RunError::Failed(failure)) = result else { panic!("{result:?}") };
    assert!(failure.is_loss() && failure.actor == ActorId::encoder(0), "{failure}");

    let frozen = Case { frozen: true, ..case };
    let (seen, result) = frozen.run("encoder/0@after_send:4=kill");
    assert_eq!(result.unwrap(), Outcome::Completed);
    assert_eq!(seen.losses, frozen.twin());

    // Nobody follows one whose followers all die.
    let faults: Vec<String> = (1..9).map(|index| format!("encoder/{index}@before_work:1=kill")).collect();
    let faults = format!("encoder/0@after_send:1=kill {}", faults.join(" "));
    let (_, result) = Case { grace: Duration::from_secs(2), ..frozen }.run(&faults);
    let Err(RunError::Failed(failure)) = result else { panic!("{result:?}") };
    assert!(failure.is_loss() && failure.cause.contains("no encoder is left"), "{failure}");
}

fn wait_for(seen: &Mutex<Seen>, what: impl Fn(&Seen) -> bool) {
    while !what(&seen.lock().unwrap()) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn encoders_join_by_hand_and_are_let_go() {
    // Those who are let go are to stop in that time; the run goes on for longer.
    let case = Case { steps: 150, pause: 4, stop_grace: Duration::from_millis(100), ..CASE };
    let twin = case.twin();
    let (seen, result) = case.run_with("", |address, seen| {
        wait_for(seen, |seen| seen.losses.len() > 5);
        let mut helper: Child = program(Role::Encoder, address).spawn().unwrap();
        wait_for(seen, |seen| seen.changes.iter().any(|change| !change.joined.is_empty()));
        let scale = |encoders| scale_run(&Address::Unix(address.into()), &Security::plain("a"), None, encoders, false);
        assert_eq!(scale(4).unwrap(), (PoolName::ENCODER, 2));
        wait_for(seen, |seen| seen.changes.last().is_some_and(|change| change.members.len() == 5));
        helper.kill().unwrap();
        helper.wait().unwrap();
        assert_eq!(scale(1).unwrap(), (PoolName::ENCODER, 4));
        wait_for(seen, |seen| seen.changes.last().is_some_and(|change| change.members.len() == 1));
    });
    assert_eq!(result.unwrap(), Outcome::Completed);
    assert_eq!(seen.losses, twin);
    let epochs: Vec<u64> = seen.changes.iter().map(|change| change.epoch.0).collect();
    assert!(epochs.is_sorted() && left(&seen).len() == 4, "{:?}", seen.changes);
}

#[test]
fn a_foundation_s_death_is_a_loss_that_ends_the_run() {
    let (_, result) = CASE.run("foundation/0@after_send:3=kill");
    let Err(RunError::Failed(failure)) = result else { panic!("{result:?}") };
    assert!(failure.is_loss() && failure.actor == ActorId::foundation(0), "{failure}");
}
