//! The scheduler's actor, and the life of a run once every engine has a link.

use super::shell::{Deliver, Report, Shell};
use super::{Link, StopOn};
use crate::scheduler::{Effect, Scheduler};
use actix::prelude::*;
use loongforge_core::message::{ActorId, Command};
use loongforge_core::schedule::{Failure, Input, Outcome};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::oneshot;

/// How a run is conducted.
pub struct Conduct {
    pub stop: StopOn,
    /// How long an engine may take to stop; then it is given up.
    pub stop_grace: Duration,
    /// Length of the actors' queues.
    pub queue: usize,
}

/// Runs a future where actors can live: on this thread, until it is done.
pub fn in_system<F: Future>(future: F) -> F::Output {
    System::new().block_on(future)
}

/// Carries a run from its links to its end. Must be called inside [`in_system`].
///
/// # Errors
/// The first cause of the run's end.
pub async fn conduct(
    scheduler: Scheduler,
    links: BTreeMap<ActorId, Link>,
    conduct: Conduct,
) -> Result<Outcome, Failure> {
    let Conduct { stop, stop_grace, queue } = conduct;
    let commands: Vec<_> = links.values().map(|link| link.commands.clone()).collect();
    let (done, result) = oneshot::channel();
    let address = SchedulerActor::create(|ctx| {
        ctx.set_mailbox_capacity(queue.max(links.len()));
        let me = ctx.address().recipient();
        let shell = |(id, link)| (id, Shell::new(id, link, me.clone(), queue).start());
        SchedulerActor {
            scheduler,
            shells: links.into_iter().map(shell).collect(),
            stop_grace,
            stopping: false,
            done: Some(done),
        }
    });
    // A full queue drops the request; whoever asked can ask again.
    let request = move || drop(address.try_send(Report(Input::StopRequested)));
    let watch = tokio::task::spawn_local(stop.watch(request));
    let result = result.await;
    watch.abort();
    result.unwrap_or_else(|_| {
        // The actor is gone without a word: it has panicked. Nobody else would tell the engines.
        commands.iter().for_each(|commands| commands.send(Command::Stop));
        Err(Failure { actor: ActorId::SCHEDULER, cause: "the scheduler panicked, which is a bug of loongforge".into() })
    })
}

struct SchedulerActor {
    scheduler: Scheduler,
    shells: BTreeMap<ActorId, Addr<Shell>>,
    stop_grace: Duration,
    stopping: bool,
    done: Option<oneshot::Sender<Result<Outcome, Failure>>>,
}

impl Actor for SchedulerActor {
    type Context = Context<Self>;
}

impl Handler<Report> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, Report(input): Report, ctx: &mut Self::Context) {
        for effect in self.scheduler.on(input) {
            match effect {
                Effect::Send(actor, command) => self.send(actor, command, ctx),
                Effect::Finished(result) => {
                    // A receiver that is gone wants no result.
                    let _ = self.done.take().map(|done| done.send(result));
                    ctx.stop();
                }
            }
        }
    }
}

impl SchedulerActor {
    fn send(&mut self, actor: ActorId, command: Command, ctx: &mut Context<Self>) {
        if command == Command::Stop && !std::mem::replace(&mut self.stopping, true) {
            ctx.run_later(self.stop_grace, |this, ctx| {
                let reason = format!("did not stop within {:?}", this.stop_grace);
                for &actor in this.shells.keys() {
                    // Who has stopped in order is not gone: the coordinator knows.
                    ctx.notify(Report(Input::Gone(actor, reason.clone())));
                }
            });
        }
        if let Err(SendError::Full(Deliver(command))) = self.shells[&actor].try_send(Deliver(command)) {
            panic!("the shell of {actor} is overrun by {command:?}");
        }
    }
}
