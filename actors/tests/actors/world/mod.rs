//! Runs of the control plane on one thread, under the orders of events that chance finds.

use crate::fake::{self, Script, engine};
use crate::snapshot_equivalence::SnapshotEquivalence;
use loongforge_actors::launch::topology;
use loongforge_core::engine::{Engine, EngineError, PeerLost, Ports, Progress};
use loongforge_core::message::*;
use loongforge_core::schedule::*;
use loongforge_core::transport::{Credit, Edge, LocalEdge, Mail, Mailbox};
use std::collections::BTreeMap;

struct Node {
    engine: Box<dyn Engine>,
    mailbox: Mailbox,
    ports: Ports,
}

/// The results of a run as seen from outside, without those that may differ between orders.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    pub plans: Vec<StepPlan>,
    pub steps: Vec<StepSummary>,
    pub bad: Vec<SkippedSample>,
    pub evaluated: Vec<EvaluationSummary>,
    pub published: Vec<(StepId, SchedulerState, Vec<String>)>,
}

/// A run: all actors with fake engines, their mail, and the coordinator.
pub struct World {
    coordinator: SnapshotEquivalence,
    nodes: BTreeMap<ActorId, Node>,
    events: BTreeMap<ActorId, flume::Receiver<Event>>,
    credits: Vec<Credit>,
    publishing: Vec<(StepId, SaveTo)>,
    /// True if no checkpoint is published while there is anything else to do.
    pub publishes_late: bool,
    /// The most that was not published at a time.
    pub most_unpublished: usize,
    /// Steps that waited for publications.
    pub held: Vec<StepId>,
    /// The number of publications that fail.
    pub num_failing: usize,
    /// Saves that failed and are to be tried again.
    num_retries: usize,
    /// Steps whose checkpoints were published.
    pub lasting: Vec<StepId>,
    pub killed: Vec<PoisonItem>,
    /// The last pool that had no encoder left, although one was needed.
    pub paused: Option<(PoolName, Epoch)>,
    doubts: Vec<Doubt>,
    pub not_finite: Option<NonFinite>,
    script: Script,
    pools: PoolSizes,
    plan_credits: EdgeCredits,
    queue: usize,
    /// Encoders that each pool has had.
    num_encoders: BTreeMap<PoolName, u32>,
    /// Excluded, though they live: what they do must not count.
    zombies: Vec<ActorId>,
    /// Told to leave: they go soon, and count as gone.
    retired: Vec<ActorId>,
    num_changes: usize,
    pub log: Log,
    pub result: Option<Result<Outcome, Failure>>,
    chance: u64,
}

impl World {
    pub fn new(spec: CoordinatorSpec, script: &Script, seed: u64) -> Self {
        let pools = spec.pools.clone();
        let topology = topology(&pools, spec.plan.credits);
        let mailboxes: BTreeMap<_, _> = pools.actors().map(|me| (me, Mailbox::new(8, spec.max_unanswered()))).collect();
        let mut edges: BTreeMap<ActorId, BTreeMap<ActorId, Box<dyn Edge>>> = BTreeMap::new();
        let mut credits = Vec::new();
        for edge in topology {
            let (sender, receiver) = (mailboxes[&edge.from].sender(), mailboxes[&edge.to].sender());
            let local = LocalEdge::new(edge.from, sender, receiver, edge.credit as usize);
            credits.push(local.credit());
            edges.entry(edge.from).or_default().insert(edge.to, Box::new(local));
        }
        let (mut nodes, mut events) = (BTreeMap::new(), BTreeMap::new());
        for (me, mailbox) in mailboxes {
            let (sender, receiver) = flume::bounded(1000);
            let ports = Ports::new(me, sender, edges.remove(&me).unwrap_or_default());
            ports.emit(Event::Ready);
            nodes.insert(me, Node { engine: engine(me, pools.data, script), mailbox, ports });
            events.insert(me, receiver);
        }
        let (plan_credits, queue) = (spec.plan.credits, spec.max_unanswered());
        let coordinator = SnapshotEquivalence::new(spec, seed);
        Self {
            script: script.clone(),
            num_encoders: pools.encoders.iter().map(|pool| (pool.name, pool.actors)).collect(),
            pools,
            plan_credits,
            queue,
            zombies: vec![],
            retired: Vec::new(),
            num_changes: 0,
            coordinator,
            nodes,
            events,
            credits,
            publishing: vec![],
            publishes_late: false,
            most_unpublished: 0,
            held: vec![],
            num_failing: 0,
            num_retries: 0,
            lasting: vec![],
            killed: vec![],
            paused: None,
            doubts: vec![],
            not_finite: None,
            log: Log::default(),
            result: None,
            chance: seed,
        }
    }

    fn random(&mut self, below: usize) -> usize {
        self.chance = fake::mix(self.chance, 5);
        self.chance as usize % below
    }

    /// Changes the encoder pool: `what` is drawn. True if something changed.
    fn change(&mut self, what: usize) {
        let live: Vec<ActorId> = self
            .nodes
            .keys()
            .copied()
            .filter(|actor| {
                actor.role == Role::Encoder && !self.zombies.contains(actor) && !self.retired.contains(actor)
            })
            .collect();
        if live.is_empty() || !self.nodes.keys().any(|actor| actor.role != Role::Encoder) {
            // The run is ending.
            return;
        }
        let who = live[self.random(live.len())];
        // Nothing here dies of what it is at.
        self.input(Input::Event(who, Event::At { unit: None }));
        // The last one that has the parameters must stay: a joiner may not have them yet.
        let num_left = live.iter().filter(|other| other.pool == who.pool).count();
        let last = num_left == 1 || self.random(2) == 0 && num_left < 3;
        match what % 4 {
            0 if !last => self.kill(who),
            1 if !last => {
                self.zombies.push(who);
                self.input(Input::Gone(who, "no sign of life".into()));
            }
            2 if !last => {
                self.retired.push(who);
                self.input(Input::Retire(vec![who]));
            }
            _ => self.join(),
        }
    }

    /// Ends an encoder.
    pub fn kill(&mut self, encoder: ActorId) {
        self.nodes.remove(&encoder);
        self.input(Input::Gone(encoder, "killed".into()));
    }

    fn join(&mut self) {
        if !self.pools.actors().all(|actor| actor.role == Role::Encoder || self.nodes.contains_key(&actor)) {
            return;
        }
        let names: Vec<PoolName> = self.num_encoders.keys().copied().collect();
        let name = names[if names.len() == 1 { 0 } else { self.random(names.len()) }];
        let count = self.num_encoders.get_mut(&name).expect("it is one of them");
        let me = ActorId::encoder_of(name, *count);
        *count += 1;
        let mailbox = Mailbox::new(8, self.queue);
        let (sender, receiver) = flume::bounded(1000);
        let mut pools = self.pools.clone();
        pools.encoders.iter_mut().for_each(|pool| pool.actors = self.num_encoders[&pool.name]);
        let mut outgoing: BTreeMap<ActorId, Box<dyn Edge>> = BTreeMap::new();
        for edge in topology(&pools, self.plan_credits).into_iter().filter(|edge| edge.from == me || edge.to == me) {
            let node =
                |actor: &ActorId| if *actor == me { mailbox.sender() } else { self.nodes[actor].mailbox.sender() };
            let local = LocalEdge::new(edge.from, node(&edge.from), node(&edge.to), edge.credit as usize);
            self.credits.push(local.credit());
            match edge.from == me {
                true => drop(outgoing.insert(edge.to, Box::new(local))),
                false => self.nodes.get_mut(&edge.from).expect("it lives").ports.connect(me, Box::new(local)),
            }
        }
        let ports = Ports::new(me, sender, outgoing);
        ports.emit(Event::Ready);
        self.nodes.insert(me, Node { engine: engine(me, self.pools.data, &self.script), mailbox, ports });
        self.events.insert(me, receiver);
        self.input(Input::Joined(me));
    }

    /// Works like `run`, with a change of the pool after so many events, again and again.
    pub fn run_changing(mut self, changes: &[(usize, usize)]) -> (Log, Result<Outcome, Failure>, usize) {
        // A run that has not begun needs all that it begins with.
        for (actor, events) in self.events.clone() {
            self.input(Input::Event(actor, events.try_recv().expect("it is ready")));
        }
        let mut num_events = 0;
        let mut changes = changes.iter().copied().peekable();
        while self.result.is_none() {
            if let Some((_, what)) = changes.next_if(|(at, _)| *at <= num_events) {
                num_events = 0;
                self.change(what);
                continue;
            }
            num_events += usize::from(self.something());
        }
        self.nodes.retain(|actor, _| !self.zombies.contains(actor));
        assert!(self.nodes.is_empty(), "everyone has ended");
        (self.log, self.result.expect("the loop has ended"), self.num_changes)
    }

    /// Does things in a random order until the run has ended. `stop_at`: events after which a stop is requested.
    pub fn run(mut self, mut stop_at: Option<usize>) -> (Log, Result<Outcome, Failure>) {
        let mut num_events = 0;
        while self.result.is_none() {
            if stop_at == Some(num_events) {
                stop_at = None;
                self.input(Input::StopRequested);
            }
            num_events += usize::from(self.something());
            assert!(self.credits.iter().all(|credit| credit.in_flight() <= credit.capacity()), "more than the credit");
        }
        assert!(self.nodes.is_empty(), "everyone has ended");
        assert!(self.credits.iter().all(|credit| credit.in_flight() == 0), "all credit came back");
        assert!(self.coordinator.on(Input::StopRequested).is_empty(), "nothing follows the end");
        (self.log, self.result.expect("the loop has ended"))
    }

    /// Does one of the things that can be done; true if it was an event to the coordinator.
    pub fn something(&mut self) -> bool {
        // Last words come before.
        if let Some(place) = self.doubts.iter().position(|doubt| self.events[&doubt.encoder].is_empty()) {
            let doubt = self.doubts.remove(place);
            self.input(Input::Doubted(doubt));
            return true;
        }
        let actors: Vec<ActorId> = self.events.keys().copied().collect();
        let first = self.random(4 * actors.len());
        for choice in 0..4 * actors.len() {
            let choice = (first + choice) % (4 * actors.len());
            let actor = actors[choice / 4];
            let done = match choice % 4 {
                0 => self.mail(actor),
                1 => self.work(actor),
                2 => match self.events[&actor].try_recv() {
                    Ok(event) => {
                        self.input(Input::Event(actor, event));
                        return true;
                    }
                    Err(_) => false,
                },
                _ if self.publishes_late => false,
                _ => match self.publishing.pop() {
                    Some((step, to)) if self.num_failing > 0 => {
                        self.num_failing -= 1;
                        self.input(Input::PublishFailed(step, to, "no space".into()));
                        return true;
                    }
                    Some((step, to)) => {
                        self.lasting.push(step);
                        self.input(Input::Published(step, to));
                        return true;
                    }
                    None if self.num_retries > 0 && self.random(8) == 0 => {
                        self.num_retries -= 1;
                        self.input(Input::RetrySave);
                        return true;
                    }
                    None => false,
                },
            };
            if done {
                return false;
            }
        }
        if !self.publishing.is_empty() {
            let (step, to) = self.publishing.remove(0);
            self.lasting.push(step);
            self.input(Input::Published(step, to));
            return true;
        }
        if self.num_retries > 0 {
            self.num_retries -= 1;
            self.input(Input::RetrySave);
            return true;
        }
        let unsent: Vec<_> =
            self.nodes.iter_mut().map(|(actor, node)| (actor.to_string(), node.ports.loads())).collect();
        panic!("deadlock after {} steps; parcels without credit: {unsent:?}", self.log.steps.len());
    }

    fn mail(&mut self, actor: ActorId) -> bool {
        let Some(node) = self.nodes.get_mut(&actor) else { return false };
        let Some(mail) = node.mailbox.try_recv() else { return false };
        let result = match mail {
            Mail::Command(Command::Stop) => {
                node.ports.emit(Event::Stopped);
                self.nodes.remove(&actor);
                Ok(())
            }
            Mail::Command(command) => {
                if let Command::Regroup(regroup) = &command {
                    regroup.left().for_each(|peer| node.ports.leave(peer));
                }
                node.engine.command(command, &mut node.ports)
            }
            Mail::Parcel { from, .. } if node.ports.is_gone(from) => Ok(()),
            Mail::Parcel { from, parcel } => node.engine.arrive(from, parcel, &mut node.ports),
            Mail::Credit => node.ports.flush(),
            Mail::Gone { .. } | Mail::Edge { .. } => unreachable!("local edges do not close"),
        };
        self.check(actor, result);
        true
    }

    fn work(&mut self, actor: ActorId) -> bool {
        let Some(node) = self.nodes.get_mut(&actor) else { return false };
        let result = node.engine.work(&mut node.ports);
        let busy = !matches!(result, Ok(Progress::Idle));
        self.check(actor, result.map(drop));
        busy
    }

    fn check(&mut self, actor: ActorId, result: Result<(), EngineError>) {
        if let Err(error) = result {
            let lost = error.downcast_ref::<PeerLost>().map(|lost| lost.peer);
            let node = self.nodes.remove(&actor).expect("it has just failed");
            node.ports.emit(Event::Failed { error: error.to_string(), lost });
        }
    }

    /// Gives the coordinator an input, and does what follows.
    pub fn input(&mut self, input: Input) {
        for output in self.coordinator.on(input) {
            assert!(self.result.is_none(), "{output:?} follows the end");
            match output {
                Output::Send(actor, command) => {
                    if let (Command::Plan(plan), true) = (&command, actor == ActorId::data(0)) {
                        let mut plan = (**plan).clone();
                        plan.units.iter_mut().for_each(|unit| unit.encoder.index = 0);
                        self.log.plans.push(plan);
                    }
                    if let Some(node) = self.nodes.get(&actor).filter(|_| !self.zombies.contains(&actor)) {
                        node.mailbox.sender().send(Mail::Command(command)).expect("its mailbox is here");
                    }
                }
                Output::Step(summary) => {
                    // How encoders share work depends on their number.
                    let balance = StepBalance { encoder: Imbalance::default(), ..summary.balance };
                    self.log.steps.push(StepSummary { timings: vec![], stragglers: vec![], balance, ..*summary });
                }
                Output::Evaluated(summary) => self.log.evaluated.push(*summary),
                Output::Bad(samples) => self.log.bad.extend(samples),
                Output::Prepare(..) => {}
                Output::Paused(pool, epoch) => self.paused = Some((pool, epoch)),
                Output::SaveWaits(step) => self.held.push(step),
                Output::NonFinite(found) => self.not_finite = Some(found),
                Output::CrashedOn(items) => self.killed.extend(items),
                Output::Doubt(doubt) => self.doubts.push(doubt),
                Output::SaveFailed(failed) => self.num_retries += usize::from(failed.retries),
                Output::Pool(_) => self.num_changes += 1,
                Output::Evict(actor) => self.zombies.push(actor),
                Output::Publish(draft) => {
                    let files = draft.files.into_iter().map(|file| file.name).collect();
                    self.log.published.push((draft.step, draft.state, files));
                    self.publishing.push((draft.step, draft.to));
                    self.most_unpublished = self.most_unpublished.max(self.publishing.len());
                }
                Output::Finished(result) => self.result = Some(result),
            }
        }
    }
}
