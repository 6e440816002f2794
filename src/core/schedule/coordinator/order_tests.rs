//! Encoders that die, come, go and end by themselves at any moment, in one pool or two, frozen or trained, while a run trains, evaluates
//! and saves: it waits for nobody who is gone, and loses nobody's part of a checkpoint.

use super::trust_tests::{STEPS, spec};
use super::{
    Coordinator, CoordinatorSpec, EncoderPoolSpec, EvaluationPass, EvaluationSet, EvaluationSpec, Failure, Input,
    Outcome, Output, PoolSize, PoolSizes,
};
use crate::message::*;
use crate::schedule::EncoderPlanSpec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The towers of two encoder pools, in the order of the pools; of one pool the last.
static TOWERS: [Tower; 2] = [Tower::Audio, Tower::Vision];

fn pool_of(tower: Tower) -> PoolName {
    tower.name().parse().expect("a tower is called as a pool can be")
}

/// Returns a run with an evaluation and a checkpoint every two steps. `pools`: of each encoder pool whether it is trained, and the number
/// of its encoders.
fn spec_of(pools: &[(bool, u32)], steps: u64) -> CoordinatorSpec {
    let base = spec();
    let towers = &TOWERS[TOWERS.len() - pools.len()..];
    let named = || towers.iter().copied().zip(pools.iter().copied());
    let mut plan = base.plan.clone();
    plan.shape.towers = towers.iter().copied().collect();
    plan.encoders = named()
        .map(|(tower, (_, actors))| EncoderPlanSpec::new(pool_of(tower), [tower].into_iter().collect(), actors, 4))
        .collect();
    let sizes = named().map(|(tower, (_, actors))| PoolSize { name: pool_of(tower), actors });
    let encoders = named().map(|(tower, (trained, _))| EncoderPoolSpec {
        name: pool_of(tower),
        elastic: true,
        trained,
        cached: false,
        reads: false,
    });
    let pass =
        EvaluationPass { purpose: Purpose::Score { draw: 0 }, stream: 0, num_samples: 5, max_samples: 4, sigma: None };
    let set = EvaluationSet { name: "val".to_owned(), every: 2, at_start: true, passes: vec![pass] };
    let (decisive, patience) = (Some(0), None);
    let evaluation =
        EvaluationSpec { sets: vec![set], decisive, save_best: true, patience, min_delta: 0.0, batch_size: 3 };
    CoordinatorSpec {
        pools: PoolSizes { encoders: sizes.collect(), ..PoolSizes::of_roles(1, 0, 1) },
        encoders: encoders.collect(),
        plan,
        steps,
        evaluation: Some(evaluation),
        max_save_failures: 1000,
        ..base
    }
}

/// A run whose engines answer at once, in any order, and write their parts of checkpoints meanwhile.
struct Crowd {
    coordinator: Coordinator,
    towers: TowerSet,
    frozen: BTreeSet<PoolName>,
    /// The events on their way, by their sender: of all who live.
    said: BTreeMap<ActorId, VecDeque<Event>>,
    /// The epoch and the members of its pool that each encoder knows.
    known: BTreeMap<ActorId, (Epoch, Vec<u32>)>,
    /// Encoders that each pool has had.
    num_encoders: BTreeMap<PoolName, u32>,
    /// The parts of checkpoints that are being written.
    writing: Vec<(ActorId, Event)>,
    /// A part is only written when nobody has anything to say.
    writes_late: bool,
    /// What is heard of nobody: publications, and that it is time to save again.
    others: Vec<Input>,
    pauses: Vec<(PoolName, Epoch)>,
    steps: Vec<StepId>,
    evaluated: Vec<StepId>,
    lasting: BTreeSet<StepId>,
    result: Option<Result<Outcome, Failure>>,
    chance: u64,
}

impl Crowd {
    /// Begins a run: until it has begun it needs all of its actors.
    fn new(spec: CoordinatorSpec, seed: u64) -> Self {
        let actors: Vec<ActorId> = spec.pools.actors().collect();
        let known = |encoder: ActorId| (encoder, (Epoch(0), (0..spec.pools.of(encoder.pool)).collect::<Vec<u32>>()));
        let mut crowd = Self {
            towers: spec.plan.shape.towers,
            frozen: spec.encoders.iter().filter(|pool| !pool.trained).map(|pool| pool.name).collect(),
            said: actors.iter().map(|&actor| (actor, VecDeque::new())).collect(),
            known: spec.pools.encoder_actors().map(known).collect(),
            num_encoders: spec.pools.encoders.iter().map(|pool| (pool.name, pool.actors)).collect(),
            coordinator: Coordinator::new(spec),
            writing: Vec::new(),
            writes_late: false,
            others: Vec::new(),
            pauses: Vec::new(),
            steps: Vec::new(),
            evaluated: Vec::new(),
            lasting: BTreeSet::new(),
            result: None,
            chance: seed,
        };
        actors.into_iter().for_each(|actor| crowd.input(Input::Event(actor, Event::Ready)));
        crowd
    }

    fn draw(&mut self, below: usize) -> usize {
        self.chance = self.chance.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.chance >> 33) as usize % below
    }

    fn say(&mut self, actor: ActorId, event: Event) {
        self.said.entry(actor).or_default().push_back(event);
    }

    fn remove(&mut self, actor: ActorId) {
        self.said.remove(&actor);
        self.known.remove(&actor);
        self.writing.retain(|(writer, _)| *writer != actor);
    }

    fn measure(&mut self, actor: ActorId, positions: Vec<SampleId>) {
        let item = |tower| ItemMeta { tower, grid: Grid { t: 1, h: 2, w: 2 }, num_features: 1 };
        let items: Vec<ItemMeta> = self.towers.iter().map(item).collect();
        let sample = |id| SampleMeta { items: items.clone(), ..SampleMeta::of_tokens(id, 5, 2) };
        let samples = positions.into_iter().map(sample).collect();
        self.say(actor, Event::Measured { samples, bad: vec![] });
    }

    fn compute(&mut self, actor: ActorId, plan: &StepPlan) {
        let (step, evaluates) = (plan.step, plan.purpose.is_evaluation());
        let event = match actor.role {
            Role::Foundation => {
                // Less at every evaluation.
                let loss_sum = 1000.0 - step.0 as f64;
                let found = EvaluationReport { loss_sum, num_targets: 1, ..EvaluationReport::default() };
                let evaluation = evaluates.then(|| Box::new(found));
                Event::Reduced(StepReport {
                    step,
                    loss: 1.0,
                    grad_square_sum: 1.0,
                    evaluation,
                    ..StepReport::default()
                })
            }
            Role::Encoder => {
                let epoch = self.known[&actor].0;
                match evaluates || self.frozen.contains(&actor.pool) {
                    true => Event::Reduced(StepReport { step, epoch, ..StepReport::default() }),
                    false => Event::Finished { step, epoch },
                }
            }
            _ => return,
        };
        self.say(actor, event);
    }

    fn told(&mut self, actor: ActorId, command: Command) {
        match command {
            Command::Read { from, until } => self.measure(actor, (from.0..until.0).map(SampleId).collect()),
            Command::ReadAgain { positions } => self.measure(actor, positions),
            Command::Plan(plan) => self.compute(actor, &plan),
            Command::Regroup(regroup) if actor.role == Role::Encoder && actor.pool == regroup.pool => {
                self.known.insert(actor, (regroup.epoch, regroup.members.clone()));
                regroup.plans.iter().for_each(|plan| self.compute(actor, plan));
            }
            Command::Reduce { step, epoch } => {
                let report = StepReport { step, epoch, grad_square_sum: 1.0, ..StepReport::default() };
                self.say(actor, Event::Reduced(report));
            }
            Command::Commit(Commit { step, .. }) | Command::Abort { step } => self.say(actor, Event::Applied { step }),
            Command::Save { step, to, .. } => {
                let is_first = self.known.get(&actor).is_none_or(|(_, members)| members.first() == Some(&actor.index));
                let file =
                    || SavedFile { name: actor.pool.to_string(), bytes: 1, sha256: "00".into(), tensors: vec![] };
                let files = is_first.then(file).into_iter().collect();
                self.writing.push((actor, Event::Saved { step, to, files }));
            }
            Command::Stop => {
                self.writing.retain(|(writer, _)| *writer != actor);
                self.say(actor, Event::Stopped);
            }
            _ => {}
        }
    }

    /// Gives the coordinator an input, and does what follows.
    fn input(&mut self, input: Input) {
        for output in self.coordinator.on(input) {
            match output {
                Output::Send(actor, command) if self.said.contains_key(&actor) => self.told(actor, command),
                Output::Evict(actor) => self.remove(actor),
                Output::Paused(pool, epoch) => self.pauses.push((pool, epoch)),
                Output::Step(summary) => {
                    assert_eq!(summary.step.0, self.steps.len() as u64, "one step after the other");
                    self.steps.push(summary.step);
                }
                Output::Evaluated(summary) => self.evaluated.push(summary.step),
                Output::Publish(draft) => {
                    let mut names: Vec<&str> = draft.files.iter().map(|file| file.name.as_str()).collect();
                    names.sort_unstable();
                    let pools = self.num_encoders.keys().copied().chain([PoolName::FOUNDATION]);
                    let wanted = pools.map(|pool| pool.to_string()).collect::<BTreeSet<_>>();
                    assert!(names.iter().eq(&wanted), "of step {} are written {names:?}", draft.step);
                    self.others.push(Input::Published(draft.step, draft.to));
                }
                Output::SaveFailed(failed) if failed.retries => self.others.push(Input::RetrySave),
                Output::Finished(result) => self.result = Some(result),
                _ => {}
            }
        }
    }

    /// Returns what is heard next, by chance.
    fn heard(&mut self) -> Input {
        let has_said = |(&actor, said): (&ActorId, &VecDeque<Event>)| (!said.is_empty()).then_some(actor);
        let speakers: Vec<ActorId> = self.said.iter().filter_map(has_said).collect();
        let is_written = !self.writing.is_empty() && (speakers.is_empty() || !self.writes_late);
        let num = speakers.len() + usize::from(is_written) + usize::from(!self.others.is_empty());
        if num == 0 {
            let (pool, epoch) = self.pauses.pop().unwrap_or_else(|| panic!("nobody says anything: {:?}", self.steps));
            let is_left = self.said.keys().any(|actor| actor.pool == pool);
            assert!(!is_left || !self.frozen.contains(&pool), "{pool} has encoders that can compute");
            return Input::GraceOver(pool, epoch);
        }
        let drawn = self.draw(num);
        if let Some(&speaker) = speakers.get(drawn) {
            let event = self.said.get_mut(&speaker).and_then(VecDeque::pop_front).expect("it says something");
            if event == Event::Stopped {
                self.remove(speaker);
            }
            return Input::Event(speaker, event);
        }
        if is_written && drawn == speakers.len() {
            let place = self.draw(self.writing.len());
            let (actor, event) = self.writing.swap_remove(place);
            return Input::Event(actor, event);
        }
        let place = self.draw(self.others.len());
        let other = self.others.swap_remove(place);
        if let Input::Published(step, _) = other {
            self.lasting.insert(step);
        }
        other
    }

    /// Ends an encoder.
    fn die(&mut self, encoder: ActorId) {
        self.remove(encoder);
        self.input(Input::Gone(encoder, "killed".into()));
    }

    /// Has an encoder come to a pool; returns it.
    fn join(&mut self, pool: PoolName) -> ActorId {
        let count = self.num_encoders.get_mut(&pool).expect("it is one of them");
        let me = ActorId::encoder_of(pool, *count);
        *count += 1;
        self.said.insert(me, VecDeque::from([Event::Ready]));
        self.known.insert(me, (Epoch(0), Vec::new()));
        self.input(Input::Joined(me));
        me
    }

    /// Goes on for so many events, or to the run's end.
    fn go(&mut self, num_events: usize) {
        for _ in 0..num_events {
            if self.result.is_some() {
                return;
            }
            let input = self.heard();
            self.input(input);
        }
    }

    /// Goes on to the run's end.
    fn run(mut self) -> Self {
        self.go(usize::MAX);
        self
    }
}

#[test]
fn a_run_in_which_nothing_happens_is_whole() {
    let pools = [vec![(true, 2)], vec![(false, 1)], vec![(true, 1), (false, 2)]];
    for (pools, writes_late) in pools.iter().zip([false, true, false]) {
        let crowd = Crowd { writes_late, ..Crowd::new(spec_of(pools, STEPS), 7) }.run();
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

/// The one that writes in its place wrote nothing, where it did not know yet that it was the first.
#[test]
fn a_checkpoint_has_the_weights_of_a_pool_whenever_their_writer_dies() {
    for (trained, seed) in [true, false].into_iter().flat_map(|trained| (0..4).map(move |seed| (trained, seed))) {
        for num_events in 0.. {
            let mut crowd = Crowd { writes_late: true, ..Crowd::new(spec_of(&[(trained, 2)], 2), seed) };
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
    let mut crowd = Crowd { writes_late: true, ..Crowd::new(spec_of(&[(true, 2)], 2), 3) };
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
