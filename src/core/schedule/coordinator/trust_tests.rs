//! Encoders that lie: no word of theirs ends or changes a run.

use super::{Coordinator, CoordinatorSpec, EncoderPoolSpec, Input, Outcome, Output, PoolSizes, SchedulerState};
use crate::config::{BadSamples, SavePoints, Schedule};
use crate::message::*;
use crate::schedule::{
    ByTower, CostModel, EdgeCredits, EncoderPlanSpec, FoundationPlanSpec, LearningRate, ModelShape, PackLimits,
    PlanSpec,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

pub(super) const STEPS: u64 = 6;
const ENCODERS: u32 = 3;
const LIAR: ActorId = ActorId::encoder(1);

fn pools() -> PoolSizes {
    PoolSizes::of_roles(1, ENCODERS, 1)
}

pub(super) fn spec() -> CoordinatorSpec {
    let learning_rate =
        LearningRate { peak: 0.1, min: 0.0, schedule: Schedule::Linear, warmup_steps: 2, decay_steps: 1, steps: STEPS };
    let plan = PlanSpec {
        sigma: None,
        pack: PackLimits::tokens(32),
        learning_rate,
        foundations: vec![FoundationPlanSpec::only(1, CostModel::decoder(8))],
        encoders: vec![EncoderPlanSpec::new(PoolName::ENCODER, [Tower::Vision].into_iter().collect(), ENCODERS, 4)],
        colocated: false,
        shape: ModelShape {
            towers: [Tower::Vision].into_iter().collect(),
            hidden_size: 8,
            even_length: 12 * 8,
            bytes_per_patch: ByTower::all(4),
            bytes_per_feature: ByTower::all(8),
            flow: None,
        },
        credits: EdgeCredits { pixels: 1000, tokens: 5000, features: 1000 },
    };
    CoordinatorSpec {
        pools: pools(),
        plan,
        first_step: StepId(0),
        state: SchedulerState::default(),
        is_kept: true,
        steps: STEPS,
        global_batch_size: 5,
        prefetch_steps: 2,
        clip_grad: 1.0,
        max_nonfinite: 3,
        bad_samples: BadSamples { max_fraction: 0.5, max_consecutive: 20 },
        too_long: Default::default(),
        save_points: SavePoints { every_steps: 2, at_end: true },
        encoders: vec![EncoderPoolSpec {
            name: PoolName::ENCODER,
            elastic: true,
            trained: true,
            cached: false,
            reads: false,
        }],
        fixed_lanes: true,
        evaluation: None,
        look_ahead: None,
        fitted: false,
        checkpoint_dir: "checkpoints".into(),
        max_save_failures: 5,
        snapshots: None,
    }
}

/// Engines that answer every command at once.
#[derive(Default)]
struct Echo {
    /// The events on their way, by their sender.
    said: BTreeMap<ActorId, VecDeque<Event>>,
    epoch: Epoch,
    /// The encoders are frozen: they are not told to reduce.
    is_frozen: bool,
}

impl Echo {
    fn say(&mut self, actor: ActorId, event: Event) {
        self.said.entry(actor).or_default().push_back(event);
    }

    /// An encoder has sent its features of a step.
    fn encoded(&mut self, actor: ActorId, step: StepId) {
        let epoch = self.epoch;
        let event = match self.is_frozen {
            true => Event::Reduced(StepReport { step, epoch, ..StepReport::default() }),
            false => Event::Finished { step, epoch },
        };
        self.say(actor, event);
    }

    fn told(&mut self, actor: ActorId, command: Command) {
        let encodes = actor.role == Role::Encoder;
        match command {
            Command::Read { from, until } => {
                let samples = (from.0..until.0).map(sample).collect();
                self.say(actor, Event::Measured { samples, bad: vec![] });
            }
            Command::Plan(plan) if encodes => self.encoded(actor, plan.step),
            Command::Plan(plan) if actor.role == Role::Foundation => {
                self.say(actor, Event::Reduced(report(plan.step, Epoch(0), plan.step.0 as f64)));
            }
            Command::Regroup(regroup) if encodes => {
                self.epoch = regroup.epoch;
                regroup.plans.iter().for_each(|plan| self.encoded(actor, plan.step));
            }
            Command::Reduce { step, epoch } => self.say(actor, Event::Reduced(report(step, epoch, 0.0))),
            Command::Commit(Commit { step, .. }) | Command::Abort { step } => self.say(actor, Event::Applied { step }),
            Command::Stop => self.say(actor, Event::Stopped),
            _ => {}
        }
    }
}

fn sample(position: u64) -> SampleMeta {
    let items = vec![ItemMeta { tower: Tower::Vision, grid: Grid { t: 1, h: 2, w: 2 }, num_features: 1 }];
    SampleMeta { items, documents: vec![], ..SampleMeta::of_tokens(SampleId(position), 5, 2) }
}

fn report(step: StepId, epoch: Epoch, loss: f64) -> StepReport {
    StepReport { step, epoch, loss, grad_square_sum: 1.0, ..StepReport::default() }
}

/// The results that are seen of a run.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    steps: Vec<(StepId, u64, u64, String)>,
    evicted: Vec<ActorId>,
    num_crashes: usize,
    result: Option<Result<Outcome, String>>,
}

/// Makes a run into which the liar says something after so many events, again and again.
fn run(lies: &[(usize, Event)], seed: u64) -> Seen {
    run_of(spec(), LIAR, lies, seed)
}

/// Works like [`run`], with a spec and an encoder that lies in it.
fn run_of(spec: CoordinatorSpec, liar: ActorId, lies: &[(usize, Event)], seed: u64) -> Seen {
    let is_frozen = !spec.encoders[0].trained;
    let mut inputs: VecDeque<Input> = spec.pools.actors().map(|actor| Input::Event(actor, Event::Ready)).collect();
    let mut coordinator = Coordinator::new(spec);
    let (mut echo, mut seen, mut chance) = (Echo { is_frozen, ..Echo::default() }, Seen::default(), seed);
    let mut lies = lies.iter().cloned().peekable();
    let mut num_events = 0;
    while seen.result.is_none() {
        let ready = inputs.pop_front();
        let input = ready.unwrap_or_else(|| {
            num_events += 1;
            if let Some((_, lie)) = lies.next_if(|(at, _)| *at <= num_events) {
                num_events = 0;
                let foundation = ActorId::foundation(0);
                let who = if matches!(lie, Event::Refused { .. }) { foundation } else { liar };
                return Input::Event(who, lie);
            }
            chance = chance.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let speakers: Vec<ActorId> =
                echo.said.iter().filter(|(_, said)| !said.is_empty()).map(|(actor, _)| *actor).collect();
            assert!(!speakers.is_empty(), "nobody says anything: {seen:?}");
            let who = speakers[(chance >> 33) as usize % speakers.len()];
            Input::Event(who, echo.said.get_mut(&who).expect("it speaks").pop_front().expect("it does"))
        });
        for output in coordinator.on(input) {
            match output {
                Output::Send(actor, Command::Save { step, to, .. }) => {
                    inputs.push_back(Input::Event(actor, Event::Saved { step, to, files: vec![] }));
                }
                Output::Send(actor, command) if !seen.evicted.contains(&actor) => echo.told(actor, command),
                Output::Evict(actor) => {
                    seen.evicted.push(actor);
                    echo.said.remove(&actor);
                }
                Output::Step(step) => {
                    let numbers = (step.loss.to_bits(), step.grad_norm.to_bits());
                    seen.steps.push((step.step, numbers.0, numbers.1, step.ledger.to_string()));
                }
                Output::CrashedOn(_) => seen.num_crashes += 1,
                Output::Publish(draft) => inputs.push_back(Input::Published(draft.step, draft.to)),
                Output::Finished(result) => seen.result = Some(result.map_err(|failure| failure.to_string())),
                _ => {}
            }
        }
    }
    seen
}

fn lie() -> impl Strategy<Value = Event> {
    let step = || (0..STEPS + 3).prop_map(StepId);
    let epoch = || (0_u64..4).prop_map(Epoch);
    let number = || prop::sample::select(vec![0.0, -1.0, f64::NAN, f64::INFINITY, 3.0]);
    let reduced = (step(), epoch(), number(), number(), number()).prop_map(|(step, epoch, loss, norm, busy)| {
        let timings = Timings { busy, ..Timings::default() };
        Event::Reduced(StepReport { grad_square_sum: norm, timings, ..report(step, epoch, loss) })
    });
    let peers = vec![ActorId::foundation(0), ActorId::data(0), ActorId::encoder(0), ActorId::encoder(77)];
    let name = prop::sample::select(vec!["model.safetensors", "../../etc/passwd", "/tmp/a", "", ".hidden"]);
    prop_oneof![
        Just(Event::Ready),
        Just(Event::Measured { samples: vec![sample(3)], bad: vec![] }),
        prop::sample::select(peers).prop_map(|peer| Event::Lost { peer, reason: "I say so".into() }),
        (step(), epoch()).prop_map(|(step, epoch)| Event::Finished { step, epoch }),
        (step(), epoch()).prop_map(|(step, epoch)| Event::Broken { step, epoch, error: "cannot".into() }),
        step().prop_map(|step| Event::Applied { step }),
        step().prop_map(|step| Event::At { unit: Some(UnitId { step, index: 1 }) }),
        (step(), name).prop_map(|(step, name)| {
            let file = SavedFile { name: name.into(), bytes: 1, sha256: "00".into(), tensors: vec![] };
            Event::Saved { step, to: SaveTo::Disk, files: vec![file] }
        }),
        Just(Event::Failed { error: "so it goes".into(), lost: Some(ActorId::foundation(0)) }),
        Just(Event::Stopped),
        Just(Event::Leaving),
        reduced,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_lie_ends_or_changes_a_run(
        lies in prop::collection::vec((0_usize..12, lie()), 1..20),
        seed: u64,
        frozen: bool,
    ) {
        let spec = || {
            let mut spec = spec();
            spec.encoders[0].trained = !frozen;
            spec
        };
        let honest = run_of(spec(), LIAR, &[], 1);
        prop_assert_eq!((honest.steps.len() as u64, &honest.result), (STEPS, &Some(Ok(Outcome::Completed))));
        let seen = run_of(spec(), LIAR, &lies, seed);
        prop_assert_eq!(&seen.result, &honest.result);
        prop_assert!(seen.evicted.iter().all(|actor| *actor == LIAR), "{:?}", seen.evicted);
        // A norm that it may report is its own to report, as long as it is a member.
        let without_norms = |seen: &Seen| {
            seen.steps.iter().map(|(step, loss, _, ledger)| (*step, *loss, ledger.clone())).collect::<Vec<_>>()
        };
        prop_assert_eq!(without_norms(&seen), without_norms(&honest));
    }
}

#[test]
fn an_encoder_whose_process_is_asked_to_stop_is_let_go_and_the_run_goes_on() {
    for at in 1..15 {
        let seen = run(&[(at, Event::Leaving), (1, Event::Leaving)], 5);
        assert_eq!((seen.evicted, seen.result), (vec![], Some(Ok(Outcome::Completed))));
    }
}

/// It was waited for as long as the run, where it ended between its release and its last step's decision.
#[test]
fn an_encoder_that_leaves_and_stops_before_it_has_applied_a_step_is_not_waited_for() {
    for (seed, after) in (0..40).flat_map(|seed| (1..15).map(move |after| (seed, after))) {
        let seen = run(&[(7, Event::Leaving), (after, Event::Stopped)], seed);
        assert_eq!(seen.result, Some(Ok(Outcome::Completed)), "seed {seed}, {after} events");
    }
    let seen = run(&[(7, Event::Leaving), (11, Event::Stopped)], 3_907_278_610_289_943_801);
    assert_eq!(seen.result, Some(Ok(Outcome::Completed)));
}

/// It became a member again, and was waited for as long as the run.
#[test]
fn an_encoder_that_is_let_go_says_again_that_it_is_ready_and_stops_does_not_join() {
    for (seed, after) in (0..40).flat_map(|seed| (1..15).map(move |after| (seed, after))) {
        let seen = run(&[(7, Event::Leaving), (after, Event::Ready), (0, Event::Stopped)], seed);
        assert_eq!(seen.result, Some(Ok(Outcome::Completed)), "seed {seed}, {after} events");
    }
}

/// Otherwise a foundation that dies twice in a step would have samples skipped that are good.
#[test]
fn an_encoder_that_fails_for_want_of_a_peer_has_died_of_no_item() {
    let at = || Event::At { unit: Some(UnitId { step: StepId(0), index: 1 }) };
    let failed = |lost| Event::Failed { error: "so it goes".into(), lost };
    let crashes = |lost| (1..15).map(|after| run(&[(after, at()), (1, failed(lost))], 5).num_crashes).max();
    assert_eq!(crashes(None), Some(1));
    assert_eq!(crashes(Some(ActorId::foundation(0))), Some(0));
}

#[test]
fn the_third_lie_is_the_last() {
    let lost = || Event::Lost { peer: ActorId::foundation(0), reason: "I say so".into() };
    assert_eq!(run(&[(9, lost()), (1, lost())], 5).evicted, []);
    let seen = run(&[(9, lost()), (1, lost()), (1, lost())], 5);
    assert_eq!((seen.evicted, seen.result), (vec![LIAR], Some(Ok(Outcome::Completed))));
}

#[test]
fn who_sends_what_is_not_its_own_three_times_is_let_go_and_whose_unit_is_lacking_at_once() {
    let refused = |lacks| Event::Refused { peer: LIAR, reason: "wrong shapes".into(), lacks };
    let stray = || refused(None);
    assert_eq!(run(&[(9, stray()), (1, stray())], 5).evicted, []);
    assert_eq!(run(&[(9, stray()), (1, stray()), (1, stray())], 5).evicted, [LIAR]);
    // It has the second of four lanes in the first step, which is planned and not decided at some time.
    let lacking = |at| run(&[(at, refused(Some(UnitId { step: StepId(0), index: 1 })))], 5);
    let seen: Vec<Seen> = (1..15).map(lacking).collect();
    assert!(seen.iter().any(|seen| seen.evicted == [LIAR]));
    assert!(seen.iter().all(|seen| seen.result == Some(Ok(Outcome::Completed))));
}

#[test]
fn an_actor_without_features_ends_the_run_only_where_no_other_can_compute_them() {
    let lacks = [(9, Event::NoFeatures { sample: SampleId(3), error: "no features".into() })];
    let cached = |encoders| {
        let mut spec = CoordinatorSpec { pools: PoolSizes::of_roles(1, encoders, 1), ..spec() };
        (spec.encoders[0].trained, spec.encoders[0].cached) = (false, true);
        spec.plan.encoders[0].replicas = encoders;
        spec
    };
    let seen = run_of(cached(ENCODERS), LIAR, &lacks, 5);
    assert_eq!((seen.evicted, seen.result), (vec![LIAR], Some(Ok(Outcome::Completed))));
    let seen = run_of(cached(1), ActorId::encoder(0), &lacks, 5);
    assert_eq!((seen.evicted, seen.result), (vec![], Some(Err("encoder/0: no features".to_owned()))));
}
