//! The simulated run itself: ranks, what each is doing, and what happens next.

use super::Activity;
use super::actors::{DataActor, Encoder, Stage};
use super::ahead::Ahead;
use super::clock::Clock;
use super::cores::Cores;
use super::edges::{Edges, Load};
use super::event::SimEvent;
use super::gantt::Recorder;
use super::random::Noise;
use super::rank::{Job, Rank};
use super::report::Ledger;
use super::step::{Sizes, Step};
use super::steps::Steps;
use super::{Samples, SimError, SimReport, SimSpec};
use crate::message::{ActorId, Command, Event, PoolName, Replica, Role};
use crate::schedule::{Coordinator, Input, Output};
use std::collections::VecDeque;

/// Simulates a run over `samples`.
///
/// # Errors
/// The run cannot be planned as configured, or comes to a stand; nothing is left to report.
pub fn simulate(spec: &SimSpec, samples: &dyn Samples) -> Result<SimReport, SimError> {
    let steps = spec.coordinator.steps;
    if steps <= spec.warm_up {
        return Err(SimError::NoSteps { steps, warm_up: spec.warm_up });
    }
    let mut coordinator = spec.coordinator.clone();
    coordinator.save_points.every_steps = 0;
    // Held-out samples are not among those of the simulation.
    coordinator.evaluation = None;
    // Nobody comes or goes.
    coordinator.encoders.iter_mut().for_each(|pool| pool.elastic = false);
    let spec = SimSpec { coordinator, ..spec.clone() };
    std::thread::scope(|scope| {
        let (ahead, planner) = Ahead::new(scope, &spec, samples);
        Simulation::new(&spec, samples, Coordinator::with_planner(spec.coordinator.clone(), planner), ahead).run()
    })
}

/// Ranks that reduce together.
#[derive(Default)]
pub(super) struct Pool {
    pub ranks: Vec<u32>,
    pub num_joined: usize,
    pub seconds: f64,
}

pub(super) struct Simulation<'a> {
    pub spec: &'a SimSpec,
    pub samples: &'a dyn Samples,
    sizes: Sizes,
    pub num_stages: u32,
    pub coordinator: Coordinator,
    ahead: Ahead,
    pub clock: Clock,
    pub cores: Option<Cores>,
    pub edges: Edges,
    pub ranks: Vec<Rank>,
    pub data: Vec<DataActor>,
    pub encoders: Vec<Encoder>,
    pub stages: Vec<Stage>,
    /// Encoder pools, foundation pools.
    pub pools: Vec<Pool>,
    pub steps: Steps,
    /// Events of the present, to the scheduler.
    pub outbox: Vec<Input>,
    /// Inputs on their way, in the order of their arrival: all take equally long.
    inputs: VecDeque<Vec<Input>>,
    outputs: VecDeque<Vec<(ActorId, Command)>>,
    pub noise: Noise,
    pub ledger: Ledger,
    pub recorder: Recorder,
    pub failure: Option<SimError>,
    pub finished: bool,
}

impl<'a> Simulation<'a> {
    fn new(spec: &'a SimSpec, samples: &'a dyn Samples, coordinator: Coordinator, ahead: Ahead) -> Self {
        let (pools, plan, cluster) = (&spec.coordinator.pools, &spec.coordinator.plan, &spec.cluster);
        let num_stages = cluster.stages.max(1);
        let mut ranks: Vec<Rank> = pools.data_actors().map(|actor| Rank::new(actor, 1.0)).collect();
        let own_encoders = pools
            .encoder_actors()
            .zip(0..)
            .map(|(actor, number)| Rank { encoder: Some(number), ..Rank::new(actor, spec.threads(actor.pool)) });
        ranks.extend(own_encoders);
        let mut stages = Vec::new();
        for (replica, actor) in (0..).zip(pools.foundation_actors()) {
            for stage in 0..num_stages {
                let encoder = (plan.colocated && stage == 0).then_some(replica);
                let rank = Rank::new(actor, cluster.foundation_threads);
                ranks.push(Rank { encoder, stage: Some(stages.len() as u32), ..rank });
                stages.push(Stage::new(replica, stage));
            }
        }
        let credits = plan.credits;
        let encoders_of = |(pool, replicas): (PoolName, u32)| {
            (0..replicas).map(move |_| Encoder::new(spec.is_trained(pool), spec.held(pool).0))
        };
        let first_step = spec.coordinator.first_step.0;
        ranks.iter_mut().for_each(|rank| (rank.version, rank.reported) = (first_step, first_step));
        let mut world = Self {
            spec,
            samples,
            sizes: Sizes::new(spec),
            num_stages,
            clock: Clock::new(),
            cores: cluster.cores.map(|cores| Cores::new(cores, cluster.sharing_loss)),
            edges: Edges::new([credits.pixels, credits.tokens, credits.features, credits.features]),
            data: (0..pools.data).map(|_| DataActor::default()).collect(),
            encoders: spec.encoders().flat_map(encoders_of).collect(),
            stages,
            pools: Vec::new(),
            steps: Steps::new(first_step),
            outbox: Vec::new(),
            noise: Noise::new(cluster.jitter, cluster.seed),
            inputs: VecDeque::new(),
            outputs: VecDeque::new(),
            ledger: Ledger::new(spec),
            recorder: Recorder::new(spec, &ranks),
            failure: None,
            finished: false,
            ranks,
            coordinator,
            ahead,
        };
        world.make_pools();
        for (rank, at) in world.ranks.iter_mut().zip(0..) {
            let is_first = rank.stage.is_some_and(|stage| world.stages[stage as usize].stage == 0);
            // What is drawn is drawn in the order in which it happens; and where packs become whole at the same time, the
            // order is that of their first parcels.
            let takes_no_time = spec.costs.data.per_byte == 0.0 || cluster.bandwidth.is_infinite();
            let has_ties = takes_no_time || cluster.jitter == 0.0;
            rank.patient = is_first && rank.encoder.is_none() && !has_ties && !world.recorder.draws(at);
        }
        world
    }

    fn make_pools(&mut self) {
        let of = |is: &dyn Fn(&Rank) -> bool| -> Vec<u32> {
            (0..self.ranks.len() as u32).filter(|&rank| is(&self.ranks[rank as usize])).collect()
        };
        let (cluster, costs) = (&self.spec.cluster, &self.spec.costs);
        let of_foundation =
            |replicas: usize| cluster.reduction(costs.foundation.gradient_bytes / f64::from(self.num_stages), replicas);
        let replicas = self.spec.coordinator.pools.num_foundations() as usize;
        let mut encoders = 0.0;
        let mut pools = Vec::new();
        for (name, _) in self.spec.encoders() {
            let bytes = if self.spec.is_trained(name) { self.spec.held(name).1 } else { 0.0 };
            if self.spec.coordinator.plan.colocated {
                // One group after the other.
                encoders += cluster.reduction(bytes, replicas);
                continue;
            }
            let ranks = of(&|rank| rank.encoder.is_some() && rank.actor.pool == name);
            let seconds = cluster.reduction(bytes, ranks.len());
            pools.push(Pool { ranks, num_joined: 0, seconds });
        }
        for foundation in &self.spec.coordinator.pools.foundations {
            let ranks = of(&|rank| rank.stage.is_some() && rank.actor.pool == foundation.name);
            let seconds = of_foundation(foundation.actors as usize) + encoders;
            pools.push(Pool { ranks, num_joined: 0, seconds });
        }
        self.pools = pools;
    }

    fn run(mut self) -> Result<SimReport, SimError> {
        let actors: Vec<ActorId> = self.spec.coordinator.pools.actors().collect();
        actors.into_iter().for_each(|actor| self.tell(actor, Event::Ready));
        loop {
            if !self.outbox.is_empty() && self.clock.next_time().is_none_or(|time| time > self.clock.now()) {
                let inputs = std::mem::take(&mut self.outbox);
                let time = self.clock.now() + self.spec.cluster.control_latency + self.spec.costs.latency;
                self.inputs.push_back(inputs);
                self.clock.at(time, SimEvent::Inputs);
            }
            let Some(happening) = self.clock.next() else {
                break;
            };
            self.look_ahead();
            self.happen(happening);
            if let Some(error) = self.failure.take() {
                return Err(error);
            }
        }
        if !self.finished {
            return Err(SimError::Stuck { step: self.steps.first() });
        }
        let mut loads = self.ranks.iter().flat_map(|rank| rank.loads);
        debug_assert!(self.edges.is_empty() && loads.all(Load::is_empty), "all parcels arrived, all credit came back");
        Ok(self.ledger.report(self.spec, &self.ranks, self.recorder.finish()))
    }

    /// Has the memory of the rank to which something is next on its way meanwhile: it takes longer than all else.
    fn look_ahead(&self) {
        use SimEvent::{Back, Done, Forward, Mail};
        if let Some(Done(rank) | Mail(rank) | Forward(rank) | Back(rank)) = self.clock.peek() {
            let state = &self.ranks[rank as usize];
            let unit = match state.job {
                Some(Job::Encode { step, unit } | Job::EncoderBackward { step, unit }) => Some((step, unit)),
                _ => None,
            };
            let unit = unit.and_then(|(step, unit)| Some(self.steps.find(step)?.units[unit as usize].seconds));
            std::hint::black_box((unit, state.times[state.doing as usize], state.wake, state.inbox.next_time()));
        }
    }

    fn happen(&mut self, happening: SimEvent) {
        match happening {
            SimEvent::Done(rank) => self.finish(rank),
            SimEvent::Cores(stamp) => {
                let mut ended = Vec::new();
                let cores = self.cores.as_mut().expect("ranks share cores");
                if let Some((time, stamp)) = cores.finished(self.clock.now(), stamp, &mut ended) {
                    self.clock.at(time, SimEvent::Cores(stamp));
                }
                ended.into_iter().for_each(|rank| self.finish(rank));
            }
            SimEvent::Mail(rank) => self.mail(rank),
            SimEvent::Forward(rank) => self.hidden_states_arrive(rank),
            SimEvent::Back(rank) => self.gradients_come_back(rank),
            SimEvent::Reduced(pool) => {
                let pool = pool as usize;
                let ranks = std::mem::take(&mut self.pools[pool].ranks);
                for &rank in &ranks {
                    self.account(rank, Activity::WaitCommit, self.clock.now());
                    let state = &mut self.ranks[rank as usize];
                    (state.job, state.reduced) = (None, true);
                }
                for &rank in &ranks {
                    self.report_reduced(rank);
                    self.read_mail(rank, self.clock.now());
                    self.choose(rank);
                }
                self.pools[pool].ranks = ranks;
            }
            SimEvent::Inputs => {
                let mut outputs = Vec::new();
                for input in self.inputs.pop_front().expect("events on their way") {
                    self.coordinate(input, &mut outputs);
                }
                if !outputs.is_empty() {
                    let time = self.clock.now() + self.spec.cluster.control_latency + self.spec.costs.latency;
                    self.outputs.push_back(outputs);
                    self.clock.at(time, SimEvent::Outputs);
                }
            }
            SimEvent::Outputs => {
                for (actor, command) in self.outputs.pop_front().expect("commands on their way") {
                    self.command(actor, command);
                }
            }
        }
    }

    /// Lets the real coordinator decide; commands are added to `outputs`.
    fn coordinate(&mut self, input: Input, outputs: &mut Vec<(ActorId, Command)>) {
        for output in self.coordinator.on(input) {
            match output {
                Output::Send(actor, command) => outputs.push((actor, command)),
                Output::Step(summary) => {
                    if self.ledger.looks_at_ranks(summary.step) {
                        (0..self.ranks.len() as u32).for_each(|rank| self.catch_up(rank));
                    }
                    let step = self.steps.end();
                    let now = self.clock.now();
                    self.ledger.step(self.spec, &summary, &step, now, &self.ranks, self.edges.waited);
                    self.ahead.throw_away(step);
                }
                Output::Publish(draft) => self.coordinate(Input::Published(draft.step, draft.to), outputs),
                Output::Finished(Ok(_)) => self.finished = true,
                Output::Finished(Err(failure)) => self.failure = Some(SimError::Run(failure)),
                Output::Prepare(..)
                | Output::Bad(_)
                | Output::Pool(_)
                | Output::Evict(_)
                | Output::Paused(..)
                | Output::SaveFailed(_)
                | Output::SaveWaits(_)
                | Output::NonFinite(_)
                | Output::CrashedOn(_)
                | Output::Evaluated(_)
                | Output::Doubt(_) => {}
            }
        }
    }

    fn command(&mut self, actor: ActorId, command: Command) {
        let (first, last) = self.ranks_of(actor);
        match command {
            Command::Read { from, until } => self.told_to_read(actor.index, from.0, until.0),
            Command::Plan(plan) => {
                let step = plan.step.0;
                if step == self.steps.next_plan() {
                    let indices = self.ahead.step(plan.step).unwrap_or_else(|| Step::new(&plan, &self.sizes));
                    debug_assert_eq!(indices, Step::new(&plan, &self.sizes));
                    self.steps.begin(Step { plan: Some(plan), ..indices });
                }
                match actor.role {
                    Role::Data => self.told_to_send(actor.index, step),
                    _ => (first..last).for_each(|rank| self.choose(rank)),
                }
            }
            Command::Commit(_) | Command::Abort { .. } => {
                for rank in first..last {
                    self.ranks[rank as usize].commit = true;
                    self.choose(rank);
                }
            }
            Command::Save { step, to, .. } => self.tell(actor, Event::Saved { step, to, files: Vec::new() }),
            Command::ReadAgain { .. } => unreachable!("a simulated run holds nothing back from an earlier one"),
            Command::Regroup(_) | Command::Reduce { .. } | Command::Connect { .. } => {
                unreachable!("nobody dies in a simulated run, and its pools reduce by themselves")
            }
            Command::Stop => self.tell(actor, Event::Stopped),
        }
    }

    /// Ranks of an actor, the last one excluded.
    pub(super) fn ranks_of(&self, actor: ActorId) -> (u32, u32) {
        match actor.role {
            Role::Scheduler | Role::Data => (actor.index, actor.index + 1),
            Role::Encoder => {
                let number = self.sizes.encoder(Replica::new(actor.pool, actor.index));
                (self.encoder_rank(number), self.encoder_rank(number) + 1)
            }
            Role::Foundation => {
                let replica = self.sizes.replica(Replica::new(actor.pool, actor.index));
                (self.stage_rank(replica, 0), self.stage_rank(replica + 1, 0))
            }
        }
    }

    /// Returns the rank of an encoder; of a colocated one its replica's first stage.
    pub(super) fn encoder_rank(&self, encoder: u32) -> u32 {
        if self.spec.coordinator.plan.colocated {
            self.stage_rank(encoder, 0)
        } else {
            self.data.len() as u32 + encoder
        }
    }

    /// Returns the rank of a stage of a foundation replica.
    pub(super) fn stage_rank(&self, replica: u32, stage: u32) -> u32 {
        (self.ranks.len() - self.stages.len()) as u32 + replica * self.num_stages + stage
    }

    /// Sends an event to the coordinator, which hears it before the clock goes on.
    pub(super) fn tell(&mut self, actor: ActorId, event: Event) {
        self.outbox.push(Input::Event(actor, event));
    }
}
