//! The actor of one engine: passes commands to it and events from it, and reports its end.

use super::Link;
use actix::prelude::*;
use loongforge_core::message::{ActorId, Command, Event};
use loongforge_core::schedule::Input;

/// Owns the link to one engine.
pub(super) struct Shell {
    id: ActorId,
    link: Option<Link>,
    scheduler: Recipient<Report>,
    /// Maximum number of unanswered commands.
    queue: usize,
}

/// A message from the scheduler: pass this command on.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Deliver(pub Command);

/// A message from the scheduler: drop the engine.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Evict;

/// A message to the scheduler: this happened.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Report(pub Input);

impl Shell {
    /// Creates the actor between an engine and the scheduler; `queue`: maximum number of waiting messages.
    pub fn new(id: ActorId, link: Link, scheduler: Recipient<Report>, queue: usize) -> Self {
        Self { id, link: Some(link), scheduler, queue }
    }

    /// Reports, and handles nothing else until the scheduler has received it, which bounds the scheduler's queue. The scheduler
    /// itself never waits for a shell.
    fn report(&self, input: Input, ctx: &mut Context<Self>) {
        let is_counted = matches!(&input, Input::Event(_, event) if !matches!(event, Event::Trace(_)));
        let sent = self.scheduler.send(Report(input)).into_actor(self);
        ctx.wait(sent.map(move |_, shell, _| {
            let confirm = shell.link.as_mut().and_then(|link| link.confirm.as_mut());
            if let Some(confirm) = confirm.filter(|_| is_counted) {
                confirm.num_events += 1;
                (confirm.done)(confirm.num_events);
            }
        }));
    }
}

impl Actor for Shell {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(self.queue);
        if let Some(link) = &self.link {
            ctx.add_stream(link.events.clone().into_stream());
        }
    }
}

impl Handler<Deliver> for Shell {
    type Result = ();

    fn handle(&mut self, Deliver(command): Deliver, _: &mut Self::Context) {
        if let Some(link) = &self.link {
            link.commands.send(command);
        }
    }
}

impl Handler<Evict> for Shell {
    type Result = ();

    /// Drops the link, which closes the engine's connection: a living engine learns that it is excluded.
    fn handle(&mut self, Evict: Evict, ctx: &mut Self::Context) {
        if let Some(kill) = self.link.take().and_then(|link| link.kill) {
            kill();
        }
        ctx.stop();
    }
}

impl StreamHandler<Event> for Shell {
    fn handle(&mut self, event: Event, ctx: &mut Self::Context) {
        if event == Event::Leaving {
            tracing::info!("the process of {} is asked to stop", self.id);
        }
        self.report(Input::Event(self.id, event), ctx);
    }

    fn finished(&mut self, ctx: &mut Self::Context) {
        if let Some(link) = self.link.take() {
            let reason = (link.end)();
            self.report(Input::Gone(self.id, reason), ctx);
        }
    }
}
