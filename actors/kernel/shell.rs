//! The actor of one engine: commands in, events out, and word of its end.

use super::Link;
use actix::prelude::*;
use loongforge_core::message::{ActorId, Command, Event};
use loongforge_core::schedule::Input;

/// Owns the link to one engine.
pub(super) struct Shell {
    id: ActorId,
    link: Option<Link>,
    scheduler: Recipient<Report>,
    /// Commands that may be unanswered.
    queue: usize,
}

/// From the scheduler: pass this on.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Deliver(pub Command);

/// From the scheduler: have nothing to do with the engine any more.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Evict;

/// To the scheduler: this happened.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Report(pub Input);

impl Shell {
    /// Makes the actor that stands between an engine and the scheduler; `queue`: messages that may wait for it.
    pub fn new(id: ActorId, link: Link, scheduler: Recipient<Report>, queue: usize) -> Self {
        Self { id, link: Some(link), scheduler, queue }
    }

    /// Reports, and takes nothing else up until the scheduler has: that bounds what can pile up there. The scheduler
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

    /// Its connection closes with the link: an engine that lives learns that it is out.
    fn handle(&mut self, Evict: Evict, ctx: &mut Self::Context) {
        if let Some(kill) = self.link.take().and_then(|link| link.kill) {
            kill();
        }
        ctx.stop();
    }
}

impl StreamHandler<Event> for Shell {
    fn handle(&mut self, event: Event, ctx: &mut Self::Context) {
        self.report(Input::Event(self.id, event), ctx);
    }

    fn finished(&mut self, ctx: &mut Self::Context) {
        if let Some(link) = self.link.take() {
            let reason = (link.end)();
            self.report(Input::Gone(self.id, reason), ctx);
        }
    }
}
