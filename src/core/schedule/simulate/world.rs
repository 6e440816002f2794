//! The simulated run itself: ranks, what each is doing, and what happens next.

use super::activity::{Activity, Times};
use super::clock::Clock;
use super::cores::Cores;
use super::data::DataActor;
use super::edges::{Edges, Kind, Parcel};
use super::encoder::Encoder;
use super::foundation::Stage;
use super::gantt::Recorder;
use super::random::Random;
use super::report::Ledger;
use super::step::{Bytes, Step};
use super::{Costs, Samples, SimError, SimReport, SimSpec};
use crate::message::{ActorId, Command, Event, Role, StepId, StepReport, Timings};
use crate::schedule::{Coordinator, Input, Output};
use std::collections::VecDeque;

/// Bytes of one token in a parcel: id, three positions and target, each an i64.
pub(super) const BYTES_PER_TOKEN: u64 = 5 * 8;

/// Simulates a run over `samples`.
///
/// # Errors
/// The run cannot be planned as configured, or comes to a stand; nothing is left to report.
pub fn simulate(spec: &SimSpec, samples: &dyn Samples) -> Result<SimReport, SimError> {
    let steps = spec.coordinator.steps;
    if steps <= spec.warm_up {
        return Err(SimError::NoSteps { steps, warm_up: spec.warm_up });
    }
    World::new(spec, samples).run()
}

/// What may happen.
pub(super) enum Happening {
    /// A job on a rank's own device ends.
    Done(u32),
    /// Jobs on the shared cores may end.
    Cores(u32),
    /// The first parcel that a rank has sent is there.
    Arrive(u32),
    /// Hidden states came from the stage before, or gradients from the one after.
    Passed {
        rank: u32,
        forward: bool,
    },
    /// A pool's reduction ends.
    Reduced(usize),
    Outputs(Vec<Output>),
    Inputs(Vec<Input>),
}

/// What a rank computes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    Read,
    Send { step: u64, count: usize },
    Encode { step: u64, unit: u32 },
    EncoderBackward { step: u64, unit: u32 },
    Pack { step: u64, pack: u32 },
    Forward { step: u64, pack: u32 },
    Backward { step: u64, pack: u32 },
    Reduce,
    Optimizer,
}

/// One device, or one thread of an actor: a data actor, an encoder, a stage of a foundation replica; a colocated
/// encoder shares the rank of its replica's first stage.
pub(super) struct Rank {
    pub actor: ActorId,
    pub encoder: Option<u32>,
    pub stage: Option<u32>,
    threads: f64,
    job: Option<Job>,
    /// What it does now, and since when.
    pub doing: Activity,
    pub since: f64,
    pub times: Times,
    /// The step that it computes next: those before are applied.
    pub version: u64,
    joined: bool,
    reduced: bool,
    commit: bool,
    /// Parcels that wait for credit, by their step.
    unsent: Vec<(u64, u32)>,
    /// Sending is free again at this time.
    egress: f64,
    /// On their way, with the times at which they are there: one after the other, so that only the first is scheduled.
    sent: VecDeque<(f64, Parcel)>,
    /// Credit of parcels that came while it computed: it looks at its mail afterwards.
    unread: Vec<(Kind, u32, u64)>,
}

/// Ranks that reduce together.
#[derive(Default)]
struct Pool {
    ranks: Vec<u32>,
    num_joined: usize,
    seconds: f64,
}

pub(super) struct World<'a> {
    spec: &'a SimSpec,
    pub samples: &'a dyn Samples,
    pub costs: Costs,
    pub bytes: Bytes,
    pub bytes_per_hidden: f64,
    pub encoder_trained: bool,
    pub num_stages: u32,
    coordinator: Coordinator,
    pub clock: Clock<Happening>,
    cores: Option<Cores>,
    edges: Edges,
    pub ranks: Vec<Rank>,
    pub data: Vec<DataActor>,
    pub encoders: Vec<Encoder>,
    pub stages: Vec<Stage>,
    /// Encoders, foundation.
    pools: [Pool; 2],
    steps: VecDeque<Step>,
    first_step: u64,
    /// Events on their way to the scheduler, all of the present.
    outbox: Vec<Input>,
    num_jobs: u64,
    ledger: Ledger,
    recorder: Recorder,
    failure: Option<SimError>,
    finished: bool,
}

impl<'a> World<'a> {
    fn new(spec: &'a SimSpec, samples: &'a dyn Samples) -> Self {
        let mut coordinator = spec.coordinator.clone();
        coordinator.checkpoint_every = 0;
        let (pools, plan, cluster) = (coordinator.pools, &coordinator.plan, &spec.cluster);
        let num_stages = cluster.stages.max(1);
        let mut ranks: Vec<Rank> = pools.data_actors().map(|actor| Rank::new(actor, 1.0)).collect();
        let own_encoders = (0..pools.encoder)
            .map(|index| Rank { encoder: Some(index), ..Rank::new(ActorId::encoder(index), cluster.encoder_threads) });
        ranks.extend(own_encoders);
        let mut stages = Vec::new();
        for replica in 0..pools.foundation {
            for stage in 0..num_stages {
                let encoder = (plan.colocated && stage == 0).then_some(replica);
                let rank = Rank::new(ActorId::foundation(replica), cluster.foundation_threads);
                ranks.push(Rank { encoder, stage: Some(stages.len() as u32), ..rank });
                stages.push(Stage::new(replica, stage));
            }
        }
        let credits = plan.credits;
        let shape = plan.shape;
        let first_step = coordinator.first_step.0;
        ranks.iter_mut().for_each(|rank| rank.version = first_step);
        let mut world = Self {
            spec,
            samples,
            costs: spec.costs,
            bytes: Bytes {
                per_patch: shape.bytes_per_patch,
                per_token: BYTES_PER_TOKEN,
                per_feature: shape.bytes_per_feature,
            },
            bytes_per_hidden: cluster.bytes_per_hidden,
            encoder_trained: spec.encoder_trained,
            num_stages,
            clock: Clock::new(),
            cores: cluster.cores.map(Cores::new),
            edges: Edges::new([credits.pixels, credits.tokens, credits.features, credits.features]),
            data: (0..pools.data).map(|_| DataActor::default()).collect(),
            encoders: (0..plan.encoder_replicas).map(|_| Encoder::default()).collect(),
            stages,
            pools: Default::default(),
            steps: VecDeque::new(),
            first_step,
            outbox: Vec::new(),
            num_jobs: 0,
            ledger: Ledger::new(spec),
            recorder: Recorder::new(spec, &ranks),
            failure: None,
            finished: false,
            ranks,
            coordinator: Coordinator::new(coordinator),
        };
        world.make_pools();
        world
    }

    fn make_pools(&mut self) {
        let of = |is: &dyn Fn(&Rank) -> bool| -> Vec<u32> {
            (0..self.ranks.len() as u32).filter(|&rank| is(&self.ranks[rank as usize])).collect()
        };
        let encoders = of(&|rank| rank.encoder.is_some() && rank.stage.is_none());
        let stages = of(&|rank| rank.stage.is_some());
        let (cluster, costs) = (&self.spec.cluster, &self.costs);
        let encoder_bytes = if self.encoder_trained { costs.encoder.gradient_bytes } else { 0.0 };
        let replicas = stages.len() / self.num_stages as usize;
        let mut seconds = cluster.reduction(costs.foundation.gradient_bytes / f64::from(self.num_stages), replicas);
        if encoders.is_empty() && !self.encoders.is_empty() {
            // Colocated: one group after the other.
            seconds += cluster.reduction(encoder_bytes, replicas);
        }
        let encoder_seconds = cluster.reduction(encoder_bytes, encoders.len());
        self.pools = [
            Pool { ranks: encoders, num_joined: 0, seconds: encoder_seconds },
            Pool { ranks: stages, num_joined: 0, seconds },
        ];
    }

    fn run(mut self) -> Result<SimReport, SimError> {
        let actors: Vec<ActorId> = self.spec.coordinator.pools.actors().collect();
        actors.into_iter().for_each(|actor| self.tell(actor, Event::Ready));
        loop {
            if !self.outbox.is_empty() && self.clock.next_time().is_none_or(|time| time > self.clock.now()) {
                let inputs = std::mem::take(&mut self.outbox);
                let time = self.clock.now() + self.spec.cluster.control_latency + self.costs.latency;
                self.clock.at(time, Happening::Inputs(inputs));
            }
            let Some(happening) = self.clock.next() else { break };
            self.happen(happening);
            if let Some(error) = self.failure.take() {
                return Err(error);
            }
        }
        if !self.finished {
            return Err(SimError::Stuck { step: self.first_step });
        }
        debug_assert!(self.edges.is_empty(), "all parcels arrived, all credit came back");
        Ok(self.ledger.report(self.spec, &self.ranks, self.recorder.finish()))
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Done(rank) => self.finish(rank),
            Happening::Cores(stamp) => {
                let mut ended = Vec::new();
                let cores = self.cores.as_mut().expect("ranks share cores");
                if let Some((time, stamp)) = cores.finished(self.clock.now(), stamp, &mut ended) {
                    self.clock.at(time, Happening::Cores(stamp));
                }
                ended.into_iter().for_each(|rank| self.finish(rank));
            }
            Happening::Arrive(from) => {
                let sent = &mut self.ranks[from as usize].sent;
                let (_, parcel) = sent.pop_front().expect("a parcel on its way");
                if let Some(&(time, _)) = sent.front() {
                    self.clock.at(time, Happening::Arrive(from));
                }
                self.arrive(parcel);
            }
            Happening::Passed { rank, forward } => self.passed(rank, forward),
            Happening::Reduced(pool) => {
                let ranks = std::mem::take(&mut self.pools[pool].ranks);
                for &rank in &ranks {
                    self.account(rank, Activity::WaitCommit);
                    let state = &mut self.ranks[rank as usize];
                    (state.job, state.reduced) = (None, true);
                }
                for &rank in &ranks {
                    self.report_reduced(rank);
                    self.read_mail(rank);
                    self.choose(rank);
                }
                self.pools[pool].ranks = ranks;
            }
            Happening::Inputs(inputs) => {
                let mut outputs = Vec::new();
                for input in inputs {
                    self.coordinate(input, &mut outputs);
                }
                if !outputs.is_empty() {
                    let time = self.clock.now() + self.spec.cluster.control_latency + self.costs.latency;
                    self.clock.at(time, Happening::Outputs(outputs));
                }
            }
            Happening::Outputs(outputs) => {
                for output in outputs {
                    if let Output::Send(actor, command) = output {
                        self.command(actor, command);
                    }
                }
            }
        }
    }

    /// Lets the real coordinator decide; commands are added to `outputs`.
    fn coordinate(&mut self, input: Input, outputs: &mut Vec<Output>) {
        for output in self.coordinator.on(input) {
            match output {
                Output::Send(..) => outputs.push(output),
                Output::Step(summary) => {
                    let step = self.steps.pop_front().expect("a step in flight ends");
                    let now = self.clock.now();
                    self.ledger.step(self.spec, &summary, &step, now, &self.ranks, self.edges.waited);
                    self.first_step = summary.step.0 + 1;
                }
                Output::Publish(draft) => self.coordinate(Input::Published(draft.step), outputs),
                Output::Finished(Ok(_)) => self.finished = true,
                Output::Finished(Err(failure)) => self.failure = Some(SimError::Run(failure)),
                Output::Prepare(..) | Output::Bad(_) => {}
            }
        }
    }

    fn command(&mut self, actor: ActorId, command: Command) {
        let (first, last) = self.ranks_of(actor);
        match command {
            Command::Read { from, until } => self.told_to_read(actor.index, from.0, until.0),
            Command::ReadAgain { .. } => unreachable!("a simulated run holds nothing back from an earlier one"),
            Command::Plan(plan) => {
                let step = plan.step.0;
                if step == self.first_step + self.steps.len() as u64 {
                    let (data, encoders) = (self.data.len(), self.encoders.len());
                    let replicas = self.spec.coordinator.pools.foundation as usize;
                    self.steps.push_back(Step::new(plan, data, encoders, replicas, self.bytes, &self.costs));
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
            Command::Save { step, .. } => self.tell(actor, Event::Saved { step, files: Vec::new() }),
            Command::Stop => self.tell(actor, Event::Stopped),
        }
    }

    /// Ranks of an actor, the last one excluded.
    fn ranks_of(&self, actor: ActorId) -> (u32, u32) {
        match actor.role {
            Role::Scheduler | Role::Data => (actor.index, actor.index + 1),
            Role::Encoder => (self.encoder_rank(actor.index), self.encoder_rank(actor.index) + 1),
            Role::Foundation => (self.stage_rank(actor.index, 0), self.stage_rank(actor.index + 1, 0)),
        }
    }

    pub(super) fn encoder_rank(&self, encoder: u32) -> u32 {
        if self.spec.coordinator.plan.colocated {
            self.stage_rank(encoder, 0)
        } else {
            self.data.len() as u32 + encoder
        }
    }

    pub(super) fn stage_rank(&self, replica: u32, stage: u32) -> u32 {
        (self.ranks.len() - self.stages.len()) as u32 + replica * self.num_stages + stage
    }

    pub(super) fn find_step(&self, step: u64) -> Option<&Step> {
        self.steps.get(step.checked_sub(self.first_step)? as usize)
    }

    pub(super) fn step(&self, step: u64) -> &Step {
        self.find_step(step).expect("a step in flight")
    }

    pub(super) fn step_mut(&mut self, step: u64) -> &mut Step {
        &mut self.steps[(step - self.first_step) as usize]
    }

    pub(super) fn tell(&mut self, actor: ActorId, event: Event) {
        self.outbox.push(Input::Event(actor, event));
    }

    // ---- jobs

    /// Begins what a rank has to do next, if it is free; otherwise notes what it waits for.
    pub(super) fn choose(&mut self, rank: u32) {
        let state = &self.ranks[rank as usize];
        if state.job.is_some() {
            return;
        }
        let (encoder, stage) = (state.encoder, state.stage);
        if encoder.is_none() && stage.is_none() {
            if !self.choose_data(rank) {
                self.account(rank, self.data_waits_for(rank));
            }
            return;
        }
        if state.commit {
            let mut seconds = stage.map_or(0.0, |_| self.costs.foundation.per_step / f64::from(self.num_stages));
            if encoder.is_some() && self.encoder_trained {
                seconds += self.costs.encoder.per_step;
            }
            self.start(rank, Job::Optimizer, seconds);
        } else if encoder.is_some_and(|encoder| self.choose_encoder(rank, encoder))
            || stage.is_some_and(|stage| self.choose_stage(rank, stage))
        {
        } else if self.is_finished(rank) {
            self.join(rank);
        } else {
            let state = &self.ranks[rank as usize];
            let own = || {
                let of_stage = stage.and_then(|stage| self.stage_waits_for(rank, stage));
                of_stage.or_else(|| encoder.and_then(|encoder| self.encoder_waits_for(rank, encoder)))
            };
            let waits = match state {
                Rank { reduced: true, .. } => Activity::WaitCommit,
                Rank { joined: true, .. } => Activity::WaitPeers,
                _ => match own() {
                    Some(waits) => waits,
                    None if state.has_unsent() => Activity::WaitCredit,
                    None => Activity::WaitSamples,
                },
            };
            self.account(rank, waits);
        }
    }

    /// Whether a rank has nothing left of its step and has not said so.
    fn is_finished(&self, rank: u32) -> bool {
        let state = &self.ranks[rank as usize];
        let Some(step) = self.find_step(state.version).filter(|_| !state.joined && !state.has_unsent()) else {
            return false;
        };
        state.encoder.is_none_or(|encoder| step.units_open[encoder as usize] == 0)
            && state.stage.is_none_or(|stage| self.stage_is_finished(stage, state.version))
    }

    fn join(&mut self, rank: u32) {
        self.ranks[rank as usize].joined = true;
        let pool = usize::from(self.ranks[rank as usize].stage.is_some());
        if pool == 0 && !self.encoder_trained {
            // Nothing to reduce, nobody to wait for.
            self.ranks[rank as usize].reduced = true;
            self.account(rank, Activity::WaitCommit);
            self.report_reduced(rank);
            return;
        }
        self.account(rank, Activity::WaitPeers);
        let Pool { ranks, num_joined, seconds } = &mut self.pools[pool];
        *num_joined += 1;
        if *num_joined == ranks.len() {
            *num_joined = 0;
            let ranks = std::mem::take(ranks);
            self.clock.at(self.clock.now() + *seconds, Happening::Reduced(pool));
            for &rank in &ranks {
                self.account(rank, Activity::Reduce);
                self.ranks[rank as usize].job = Some(Job::Reduce);
            }
            self.pools[pool].ranks = ranks;
        }
    }

    /// Tells the scheduler, once for each actor.
    fn report_reduced(&mut self, rank: u32) {
        let Rank { actor, stage, version, times, .. } = &self.ranks[rank as usize];
        if stage.is_some_and(|stage| self.stages[stage as usize].stage > 0) {
            return;
        }
        let (actor, step) = (*actor, StepId(*version));
        let sum = |counts: fn(Activity) -> bool| -> f64 {
            Activity::ALL.into_iter().zip(times).filter(|&(what, _)| counts(what)).map(|(_, time)| time).sum()
        };
        let timings = Timings {
            busy: sum(Activity::is_busy),
            idle: 0.0,
            units: sum(|what| matches!(what, Activity::Encode | Activity::EncoderBackward)),
            packs: sum(|what| matches!(what, Activity::Pack | Activity::Forward | Activity::Backward)),
        };
        let report = StepReport { step, loss: 1.0, grad_square_sum: 1.0, routing: None, timings };
        self.tell(actor, Event::Reduced(report));
    }

    /// Begins a job of so many seconds on a free rank. Always true.
    pub(super) fn start(&mut self, rank: u32, job: Job, seconds: f64) -> bool {
        let seconds = seconds * self.noise(rank);
        self.account(rank, job.activity());
        let now = self.clock.now();
        let state = &mut self.ranks[rank as usize];
        state.job = Some(job);
        match &mut self.cores {
            Some(cores) => {
                let (time, stamp) = cores.start(now, rank, state.threads, seconds);
                self.clock.at(time, Happening::Cores(stamp));
            }
            None => self.clock.at(now + seconds, Happening::Done(rank)),
        }
        true
    }

    /// Factor of a duration, of median 1.
    fn noise(&mut self, rank: u32) -> f64 {
        let jitter = self.spec.cluster.jitter;
        if jitter == 0.0 {
            return 1.0;
        }
        self.num_jobs += 1;
        let normal = Random::new(&[self.spec.cluster.seed, rank.into(), self.num_jobs]).normal();
        (jitter * normal).exp()
    }

    fn finish(&mut self, rank: u32) {
        let state = &mut self.ranks[rank as usize];
        let job = state.job.take().expect("only what began ends");
        let stage = state.stage.unwrap_or(u32::MAX);
        // The next activity overwrites this one at the same instant.
        self.account(rank, Activity::WaitCommit);
        match job {
            Job::Read => self.has_read(rank),
            Job::Send { step, count } => self.has_sent(rank, step, count),
            Job::Encode { step, unit } => self.has_encoded(rank, step, unit),
            Job::EncoderBackward { step, unit } => self.has_gone_back(step, unit),
            Job::Pack { step, pack } => self.has_computed(rank, stage, step, pack),
            Job::Forward { step, pack } => self.has_gone_forward(rank, stage, step, pack),
            Job::Backward { step, pack } => self.has_come_back(rank, stage, step, pack),
            Job::Reduce => unreachable!("a reduction ends for a whole pool"),
            Job::Optimizer => self.has_applied(rank),
        }
        self.read_mail(rank);
        self.choose(rank);
    }

    fn has_applied(&mut self, rank: u32) {
        let state = &mut self.ranks[rank as usize];
        let step = StepId(state.version);
        state.version += 1;
        (state.joined, state.reduced, state.commit) = (false, false, false);
        let (actor, stage) = (state.actor, state.stage);
        if let Some(stage) = stage {
            self.stage_ends_step(stage);
        }
        let (first, last) = self.ranks_of(actor);
        if (first..last).all(|rank| self.ranks[rank as usize].version > step.0) {
            self.tell(actor, Event::Applied { step });
        }
    }

    /// Books the time of what a rank did until now and goes over to what it does next.
    pub(super) fn account(&mut self, rank: u32, next: Activity) {
        let now = self.clock.now();
        let state = &mut self.ranks[rank as usize];
        if now > state.since {
            state.times[state.doing as usize] += now - state.since;
            self.recorder.span(rank, state, now);
        }
        (state.doing, state.since) = (next, now);
    }

    // ---- parcels

    /// Sends now, or when there is credit.
    pub(super) fn send(&mut self, parcel: Parcel) {
        if self.edges.send(parcel) {
            self.depart(parcel);
        } else {
            self.ranks[parcel.from as usize].add_unsent(parcel.step);
        }
    }

    fn depart(&mut self, parcel: Parcel) {
        let time = self.transfer(parcel.from, parcel.bytes as f64);
        let sent = &mut self.ranks[parcel.from as usize].sent;
        sent.push_back((time, parcel));
        if sent.len() == 1 {
            self.clock.at(time, Happening::Arrive(parcel.from));
        }
    }

    /// When something that leaves a rank now is there: parcels leave one after the other.
    pub(super) fn transfer(&mut self, from: u32, bytes: f64) -> f64 {
        let state = &mut self.ranks[from as usize];
        state.egress = state.egress.max(self.clock.now()) + bytes / self.spec.cluster.bandwidth;
        state.egress + self.spec.cluster.latency + self.costs.latency
    }

    fn arrive(&mut self, parcel: Parcel) {
        match parcel.kind {
            Kind::Pixels => self.pixels_arrive(&parcel),
            Kind::Tokens => self.tokens_arrive(&parcel),
            Kind::Features => self.features_arrive(parcel.step, parcel.index),
            Kind::Gradient => self.unit_returns(parcel.step, parcel.index),
        }
        // The foundation holds features until it is done with them; everything else is copied out of the mail.
        if parcel.kind != Kind::Features {
            let state = &mut self.ranks[parcel.to as usize];
            if state.job.is_some() {
                state.unread.push((parcel.kind, parcel.from, parcel.bytes));
            } else {
                self.give_back(parcel.kind, parcel.from, parcel.to, parcel.bytes);
            }
        }
        self.choose(parcel.to);
    }

    fn read_mail(&mut self, rank: u32) {
        let unread = std::mem::take(&mut self.ranks[rank as usize].unread);
        for (kind, from, bytes) in unread {
            self.give_back(kind, from, rank, bytes);
        }
    }

    pub(super) fn give_back(&mut self, kind: Kind, from: u32, to: u32, bytes: u64) {
        let mut sent = Vec::new();
        self.edges.give_back(self.clock.now(), kind, from, to, bytes, &mut sent);
        for parcel in sent {
            self.depart(parcel);
            if self.ranks[from as usize].take_unsent(parcel.step) {
                self.choose(from);
            }
        }
    }
}

impl Job {
    fn activity(self) -> Activity {
        match self {
            Job::Read => Activity::Read,
            Job::Send { .. } => Activity::Send,
            Job::Encode { .. } => Activity::Encode,
            Job::EncoderBackward { .. } => Activity::EncoderBackward,
            Job::Pack { .. } => Activity::Pack,
            Job::Forward { .. } => Activity::Forward,
            Job::Backward { .. } => Activity::Backward,
            Job::Reduce => Activity::Reduce,
            Job::Optimizer => Activity::Optimizer,
        }
    }
}

impl Rank {
    fn new(actor: ActorId, threads: f64) -> Self {
        Self {
            actor,
            encoder: None,
            stage: None,
            threads,
            job: None,
            doing: Activity::WaitSamples,
            since: 0.0,
            times: Times::default(),
            version: 0,
            joined: false,
            reduced: false,
            commit: false,
            unsent: Vec::new(),
            egress: 0.0,
            sent: VecDeque::new(),
            unread: Vec::new(),
        }
    }

    fn add_unsent(&mut self, step: u64) {
        match self.unsent.iter_mut().find(|(known, _)| *known == step) {
            Some((_, count)) => *count += 1,
            None => self.unsent.push((step, 1)),
        }
    }

    /// True where it was the last of its step.
    fn take_unsent(&mut self, step: u64) -> bool {
        let at = self.unsent.iter().position(|(known, _)| *known == step).expect("a parcel that waited");
        self.unsent[at].1 -= 1;
        let is_last = self.unsent[at].1 == 0;
        if is_last {
            self.unsent.swap_remove(at);
        }
        is_last
    }

    /// Whether peers may still wait for what it computed in its step: what it sends ahead does not count.
    pub fn has_unsent(&self) -> bool {
        self.unsent.iter().any(|&(step, _)| step <= self.version)
    }

    pub fn has_any_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Its times, what it does now included.
    pub fn times_until(&self, now: f64) -> Times {
        let mut times = self.times;
        times[self.doing as usize] += now - self.since;
        times
    }
}
