//! A run whose engines answer at once, in any order that chance finds.

use crate::message::*;
use crate::schedule::EncoderPlanSpec;
use crate::schedule::coordinator::trust_tests::spec;
use crate::schedule::coordinator::{
    Coordinator, CoordinatorSpec, EncoderPoolSpec, EvaluationPass, EvaluationSet, EvaluationSpec, Failure, Input,
    Outcome, Output, PoolSize, PoolSizes,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The towers of two encoder pools, in the order of the pools; of one pool the last.
static TOWERS: [Tower; 2] = [Tower::Audio, Tower::Vision];

/// Returns the pool that has a tower.
pub(super) fn pool_of(tower: Tower) -> PoolName {
    tower.name().parse().expect("a tower is called as a pool can be")
}

/// Returns a run with an evaluation and a checkpoint every two steps. `pools`: of each encoder pool whether it is trained, and the number
/// of its encoders.
pub(super) fn spec_of(pools: &[(bool, u32)], steps: u64) -> CoordinatorSpec {
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

/// Something that happens in a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Act {
    Die,
    Leave,
    Retire,
    Join,
    /// An encoder ends in order, which nobody told it to.
    End,
    /// An encoder says that it is ready, maybe again.
    SayReady,
    FailSave,
    Save,
}

/// A run whose engines answer at once, in any order, and write their parts of checkpoints meanwhile.
pub(super) struct Crowd {
    pub coordinator: Coordinator,
    towers: TowerSet,
    frozen: BTreeSet<PoolName>,
    /// The events on their way, by their sender: of all who live.
    pub said: BTreeMap<ActorId, VecDeque<Event>>,
    /// The epoch and the members of its pool that each encoder knows.
    known: BTreeMap<ActorId, (Epoch, Vec<u32>)>,
    /// Encoders that each pool has had.
    num_encoders: BTreeMap<PoolName, u32>,
    /// The parts of checkpoints that are being written.
    pub writing: Vec<(ActorId, Event)>,
    /// A part is only written when nobody has anything to say.
    writes_late: bool,
    /// Inputs that no actor sends: publications, and that it is time to save again.
    others: Vec<Input>,
    /// The number of publications that fail.
    num_failing: usize,
    pauses: Vec<(PoolName, Epoch)>,
    pub steps: Vec<StepId>,
    pub evaluated: Vec<StepId>,
    pub lasting: BTreeSet<StepId>,
    pub result: Option<Result<Outcome, Failure>>,
    chance: u64,
}

impl Crowd {
    /// Begins a run: until it has begun it needs all of its actors.
    pub fn new(spec: CoordinatorSpec, seed: u64) -> Self {
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
            num_failing: 0,
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

    /// Returns the run with parts of checkpoints that are only written when nobody has anything to say, or not.
    pub fn writing_late(self, writes_late: bool) -> Self {
        Self { writes_late, ..self }
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
    pub fn input(&mut self, input: Input) {
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
        match self.others.swap_remove(place) {
            Input::Published(step, to) if self.num_failing > 0 => {
                self.num_failing -= 1;
                Input::PublishFailed(step, to, "no space".into())
            }
            Input::Published(step, to) => {
                self.lasting.insert(step);
                Input::Published(step, to)
            }
            other => other,
        }
    }

    /// Has something happen to the run, or to an encoder that chance picks.
    pub fn act(&mut self, act: Act) {
        let encoders: Vec<ActorId> = self.said.keys().copied().filter(|actor| actor.role == Role::Encoder).collect();
        let who = (!encoders.is_empty()).then(|| encoders[self.draw(encoders.len())]);
        match (act, who) {
            (Act::Die, Some(who)) => self.die(who),
            (Act::Leave, Some(who)) => self.input(Input::Event(who, Event::Leaving)),
            (Act::Retire, Some(who)) => self.input(Input::Retire(vec![who])),
            (Act::End, Some(who)) => {
                self.remove(who);
                self.input(Input::Event(who, Event::Stopped));
            }
            (Act::SayReady, Some(who)) => self.input(Input::Event(who, Event::Ready)),
            (Act::FailSave, _) => self.num_failing += 1,
            (Act::Save, _) => self.input(Input::SaveRequested),
            _ => {
                let pools: Vec<PoolName> = self.num_encoders.keys().copied().collect();
                let pool = pools[self.draw(pools.len())];
                self.join(pool);
            }
        }
    }

    /// Ends an encoder.
    pub fn die(&mut self, encoder: ActorId) {
        self.remove(encoder);
        self.input(Input::Gone(encoder, "killed".into()));
    }

    /// Has an encoder come to a pool; returns it.
    pub fn join(&mut self, pool: PoolName) -> ActorId {
        let count = self.num_encoders.get_mut(&pool).expect("it is one of them");
        let me = ActorId::encoder_of(pool, *count);
        *count += 1;
        self.said.insert(me, VecDeque::from([Event::Ready]));
        self.known.insert(me, (Epoch(0), Vec::new()));
        self.input(Input::Joined(me));
        me
    }

    /// Goes on for so many events, or to the run's end.
    pub fn go(&mut self, num_events: usize) {
        for _ in 0..num_events {
            if self.result.is_some() {
                return;
            }
            let input = self.heard();
            self.input(input);
        }
    }

    /// Goes on to the run's end.
    pub fn run(mut self) -> Self {
        self.go(usize::MAX);
        self
    }
}
