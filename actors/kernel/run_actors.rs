//! The scheduler's actor, and the life of a run once every engine has a link.

use super::publishing::{Drafts, Published, Publishing};
use super::shell::{Deliver, Evict, Report, Shell};
use super::stop::Request;
use super::{Link, StopOn};
use crate::effect::Effect;
use crate::scheduler::Scheduler;
use actix::prelude::*;
use loongforge_core::message::{ActorId, Command, PoolName};
use loongforge_core::schedule::{Failure, Input, Outcome};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::oneshot;

/// The time that the last messages of an encoder may take after others have reported that it is gone.
const HEARSAY: Duration = Duration::from_millis(300);

/// Settings for running a run.
pub struct RunActors {
    pub stop: StopOn,
    /// The time that an engine may take to stop before it is given up.
    pub stop_grace: Duration,
    /// Capacity of the actors' queues.
    pub queue: usize,
    /// The time that a run waits for an encoder of a pool that has none left, by pool.
    pub grace: BTreeMap<PoolName, Duration>,
    /// Encoders that join or leave during the run.
    pub changes: flume::Receiver<Change>,
    /// Effects that a scheduler that died had not carried out.
    pub left: Vec<Effect>,
}

/// A requested change of an encoder pool.
#[derive(Message)]
#[rtype(result = "()")]
pub enum Change {
    /// This encoder has connected. Before it is admitted, others are told of their edges to it.
    Join { actor: ActorId, link: Link, edges: Vec<(ActorId, Command)> },
    /// Remove these encoders.
    Retire(Vec<ActorId>),
    /// Remove the encoders of a pool above this number. Answered with their previous number, or an error if there are too few.
    LetGo { pool: PoolName, encoders: u32, answer: flume::Sender<Result<u32, String>> },
}

/// Runs a future in an actor system on this thread until it is done.
pub fn in_system<F: Future>(future: F) -> F::Output {
    System::new().block_on(future)
}

/// Runs a run from its links to its end. Must be called inside [`in_system`].
///
/// # Errors
/// Returns the root cause of the run's end.
pub async fn run_actors(
    mut scheduler: Scheduler,
    links: BTreeMap<ActorId, Link>,
    run_actors: RunActors,
) -> Result<Outcome, Failure> {
    let RunActors { stop, stop_grace, queue, grace, changes, left } = run_actors;
    let commands: Vec<_> = links.values().map(|link| link.commands.clone()).collect();
    let (done, result) = oneshot::channel();
    let publisher = scheduler.publisher();
    let (answer, answers) = flume::bounded::<Published>(1);
    let publishing = match Publishing::start(publisher, move |published| drop(answer.send(published))) {
        Ok(publishing) => publishing,
        Err(error) => {
            commands.iter().for_each(|commands| commands.send(Command::Stop));
            let cause = format!("cannot start the thread that publishes checkpoints: {error}");
            return Err(Failure::new(ActorId::SCHEDULER, cause));
        }
    };
    let drafts = publishing.drafts();
    // Where it takes over: those that the one before has let go.
    let let_go = scheduler.leaving().into_iter().collect();
    let mut is_known = scheduler.user_has_asked();
    let address = SchedulerActor::create(|ctx| {
        ctx.set_mailbox_capacity(queue.max(links.len()));
        let me = ctx.address().recipient();
        let shell = |(id, link)| (id, Shell::new(id, link, me.clone(), queue).start());
        SchedulerActor {
            scheduler,
            shells: links.into_iter().map(shell).collect(),
            drafts,
            stop_grace,
            grace,
            queue,
            left,
            let_go,
            done: Some(done),
        }
    });
    let (to_change, to_publish) = (address.clone(), address.clone());
    // Also where the queue is full of what engines say: a batch system asks once.
    let request = move |request| {
        if let Some(input) = input_of(request, &mut is_known) {
            address.do_send(Report(input));
        }
    };
    let watch = tokio::task::spawn_local(stop.watch(request));
    let changing = tokio::task::spawn_local(async move {
        while let Ok(change) = changes.recv_async().await {
            // A scheduler that has ended takes no changes.
            let _ = to_change.send(change).await;
        }
    });
    let answering = tokio::task::spawn_local(async move {
        while let Ok(published) = answers.recv_async().await {
            // A scheduler that has ended has no use for it: the checkpoint is there or not.
            let _ = to_publish.send(published).await;
        }
    });
    let result = result.await;
    watch.abort();
    changing.abort();
    answering.abort();
    // Aborted tasks are dropped when the executor comes to them: their receivers must not be waited for.
    let _ = tokio::task::spawn_blocking(move || publishing.finish()).await;
    result.unwrap_or_else(|_| {
        // The actor is gone without a word: it has panicked. Nobody else would tell the engines.
        commands.iter().for_each(|commands| commands.send(Command::Stop));
        let cause = "the scheduler panicked, which is a bug of loongforge".into();
        Err(Failure::new(ActorId::SCHEDULER, cause))
    })
}

/// Returns the scheduler's input for a request. A stop that the scheduler before this one was asked for (`is_known`) may be told again to
/// this one, which is no second request.
fn input_of(request: Request, is_known: &mut bool) -> Option<Input> {
    match request {
        Request::Save => Some(Input::SaveRequested),
        Request::Stop => (!std::mem::take(is_known)).then_some(Input::StopRequested),
    }
}

struct SchedulerActor {
    scheduler: Scheduler,
    shells: BTreeMap<ActorId, Addr<Shell>>,
    /// Drafts wait here for the publishing thread.
    drafts: Drafts,
    stop_grace: Duration,
    grace: BTreeMap<PoolName, Duration>,
    queue: usize,
    left: Vec<Effect>,
    /// Encoders that are to leave, or have left, because whoever starts them asked for fewer.
    let_go: BTreeSet<ActorId>,
    done: Option<oneshot::Sender<Result<Outcome, Failure>>>,
}

impl Actor for SchedulerActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let left = std::mem::take(&mut self.left);
        self.take_effect(left, ctx);
    }
}

impl Handler<Report> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, Report(input): Report, ctx: &mut Self::Context) {
        let effects = self.scheduler.on(input);
        self.take_effect(effects, ctx);
    }
}

impl Handler<Published> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, Published { draft, result }: Published, ctx: &mut Self::Context) {
        let effects = self.scheduler.published(&draft, result);
        self.take_effect(effects, ctx);
    }
}

impl Handler<Change> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, change: Change, ctx: &mut Self::Context) {
        match change {
            Change::Join { actor, link, edges } => {
                for (peer, command) in edges {
                    self.scheduler.told(peer, &command);
                    self.send(peer, command, ctx);
                }
                let shell = Shell::new(actor, link, ctx.address().recipient(), self.queue);
                self.shells.insert(actor, shell.start());
                self.handle(Report(Input::Joined(actor)), ctx);
            }
            Change::Retire(actors) => self.handle(Report(Input::Retire(actors)), ctx),
            Change::LetGo { pool, encoders, answer } => {
                // Those whose processes are asked to stop, too.
                self.let_go.extend(self.scheduler.leaving());
                let (answered, leaving) = choose(&self.scheduler.alive(), &mut self.let_go, pool, encoders);
                // Who asked may have left.
                drop(answer.send(answered));
                if !leaving.is_empty() {
                    // Together: queues would have no room for a command to everyone about each of many.
                    self.handle(Report(Input::Retire(leaving)), ctx);
                }
            }
        }
    }
}

/// Chooses the encoders of a pool that are to leave so that so many stay, and adds them to those that were `let_go` before, which
/// may take a while to leave. Returns the answer to whoever asked, and the encoders.
fn choose(
    alive: &[ActorId],
    let_go: &mut BTreeSet<ActorId>,
    pool: PoolName,
    encoders: u32,
) -> (Result<u32, String>, Vec<ActorId>) {
    let stays = |actor: &ActorId| actor.pool == pool && !let_go.contains(actor);
    let here: Vec<ActorId> = alive.iter().copied().filter(stays).collect();
    let answer = match (encoders as usize).saturating_sub(here.len()) {
        0 => Ok(here.len() as u32),
        num => Err(format!("the run starts no processes itself: start {num} more with --role encoder --pool {pool}")),
    };
    let leaving: Vec<ActorId> = here.into_iter().skip(encoders as usize).collect();
    let_go.extend(&leaving);
    (answer, leaving)
}

impl SchedulerActor {
    fn take_effect(&mut self, effects: Vec<Effect>, ctx: &mut Context<Self>) {
        for effect in effects {
            match effect {
                Effect::Publish(draft) => self.drafts.add(*draft),
                Effect::RetrySave(after) => {
                    ctx.run_later(after, |_, ctx| ctx.notify(Report(Input::RetrySave)));
                }
                Effect::Send(actor, command) => self.send(actor, command, ctx),
                Effect::Evict(actor) => {
                    if let Some(shell) = self.shells.remove(&actor) {
                        shell.do_send(Evict);
                    }
                }
                Effect::Paused(pool, epoch) => {
                    let grace = self.grace.get(&pool).copied().unwrap_or_default();
                    tracing::warn!("no actor of the pool `{pool}` is left: waiting {grace:?} for one");
                    ctx.run_later(grace, move |_, ctx| ctx.notify(Report(Input::GraceOver(pool, epoch))));
                }
                Effect::Doubt(doubt) => {
                    ctx.run_later(HEARSAY, move |_, ctx| ctx.notify(Report(Input::Doubted(doubt))));
                }
                Effect::Stopping(actor) => self.time_stop(actor, ctx),
                Effect::Finished(result) => {
                    // A receiver that is gone wants no result.
                    let _ = self.done.take().map(|done| done.send(result));
                    ctx.stop();
                }
            }
        }
    }

    fn send(&mut self, actor: ActorId, command: Command, ctx: &mut Context<Self>) {
        if command == Command::Stop {
            self.time_stop(actor, ctx);
        }
        // Who was evicted needs no commands.
        let Some(shell) = self.shells.get(&actor) else { return };
        if let Err(SendError::Full(Deliver(command))) = shell.try_send(Deliver(command)) {
            panic!("the command queue of {actor} is full, with {command:?} to come");
        }
    }

    /// Gives an actor up that does not stop in time. It may be one of many that go on.
    fn time_stop(&self, actor: ActorId, ctx: &mut Context<Self>) {
        let reason = format!("did not stop within {:?}", self.stop_grace);
        // Who has stopped in order is not gone: the coordinator knows.
        ctx.run_later(self.stop_grace, move |_, ctx| ctx.notify(Report(Input::Gone(actor, reason))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_that_the_scheduler_before_has_heard_of_is_no_second_one_of_the_next() {
        let stops = |mut is_known: bool| {
            assert!(matches!(input_of(Request::Save, &mut is_known), Some(Input::SaveRequested)));
            [(); 2].map(|()| matches!(input_of(Request::Stop, &mut is_known), Some(Input::StopRequested)))
        };
        assert_eq!([stops(false), stops(true)], [[true, true], [false, true]]);
    }

    #[test]
    fn encoders_that_are_leaving_are_not_counted_when_a_pool_is_scaled_again() {
        let alive = [ActorId::data(0), ActorId::encoder(0), ActorId::encoder(1), ActorId::encoder(2)];
        let mut let_go = BTreeSet::new();
        let mut scale = |encoders| choose(&alive, &mut let_go, PoolName::ENCODER, encoders);
        assert_eq!(scale(2), (Ok(3), vec![ActorId::encoder(2)]));
        assert_eq!(scale(2), (Ok(2), vec![]));
        let (answer, leaving) = scale(3);
        assert!(answer.unwrap_err().contains("start 1 more with --role encoder --pool encoder") && leaving.is_empty());
        assert_eq!(scale(1), (Ok(2), vec![ActorId::encoder(1)]));
    }
}
