//! The main loop of an engine thread: handle mail, work, sleep. It stops on command; any error ends it with `Event::Failed`.

use super::{Engine, EngineError, PeerLost, Ports, Progress, error_chain, fault, interrupt};
use crate::message::{Activity, Command, Event, Role};
use crate::transport::{Mail, Mailbox, ParcelKind};
use std::time::{Duration, Instant};

/// The time that an idle engine sleeps before it checks again; only a safety net, since every cause of work sends mail.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the engine that `build` makes on this thread until `Command::Stop` or an error.
///
/// Emits `Ready` once built, and `Stopped` or `Failed` as the last event. A missing peer is an error, except when `Stop` was sent:
/// peers end in any order.
pub fn host<E: Engine>(build: impl FnOnce() -> Result<E, EngineError>, mailbox: Mailbox, mut ports: Ports) {
    interrupt::watch(&mailbox, ports.me().pool);
    let mut was_stopped = None;
    let result = build().and_then(|mut engine| {
        ports.emit(Event::Ready);
        let result = run(&mut engine, &mailbox, &mut ports);
        // Before the engine is dropped: others notice that, and may have the run ended for it.
        was_stopped = Some(mailbox.is_told_to_stop());
        result
    });
    ports.emit_trace();
    match result {
        Ok(()) => ports.emit(Event::Stopped),
        // What it was at is of no use any more, and others may have stopped before.
        Err(error) if was_stopped.unwrap_or_else(|| mailbox.is_told_to_stop()) => {
            tracing::info!("{} was told to stop, and failed meanwhile: {}", ports.me(), error_chain(&*error));
            ports.emit(Event::Stopped);
        }
        Err(error) => {
            let lost = error.downcast_ref::<PeerLost>().map(|lost| lost.peer);
            let lost = lost.or_else(|| interrupt::has_lost_rank().then(|| ports.me()));
            ports.emit(Event::Failed { error: error_chain(&*error), lost });
        }
    }
}

fn run(engine: &mut impl Engine, mailbox: &Mailbox, ports: &mut Ports) -> Result<(), EngineError> {
    loop {
        while let Some(mail) = mailbox.try_recv() {
            if deliver(engine, mail, ports)?.is_break() {
                return Ok(());
            }
        }
        let start = Instant::now();
        fault::point(ports.me(), "before_work");
        let progress = engine.work(ports)?;
        fault::point(ports.me(), "after_work");
        while let Some(parcel) = ports.take_own() {
            engine.arrive(ports.me(), parcel, ports)?;
        }
        ports.timings.busy += start.elapsed().as_secs_f64();
        ports.emit_due_trace();
        if progress == Progress::Idle {
            let start = Instant::now();
            let mail = mailbox.recv_timeout(PATIENCE);
            ports.timings.idle += start.elapsed().as_secs_f64();
            ports.trace.span(Activity::WaitMail, None, start);
            if let Some(mail) = mail
                && deliver(engine, mail, ports)?.is_break()
            {
                return Ok(());
            }
        }
    }
}

fn deliver(engine: &mut impl Engine, mail: Mail, ports: &mut Ports) -> Result<std::ops::ControlFlow<()>, EngineError> {
    match mail {
        Mail::Command(Command::Stop) => return Ok(std::ops::ControlFlow::Break(())),
        Mail::Command(command) => {
            let start = Instant::now();
            if let Command::Regroup(regroup) = &command {
                regroup.left().for_each(|peer| ports.leave(peer));
            }
            let (before, after) = points(&command);
            before.into_iter().for_each(|name| fault::point(ports.me(), name));
            let recorded = match &command {
                Command::Commit(commit) => Some((Activity::Optimizer, commit.step)),
                Command::Save { step, .. } => Some((Activity::Save, *step)),
                _ => None,
            };
            engine.command(command, ports)?;
            after.into_iter().for_each(|name| fault::point(ports.me(), name));
            ports.timings.busy += start.elapsed().as_secs_f64();
            if let Some((activity, step)) = recorded {
                ports.trace.span(activity, Some((step, None)), start);
            }
        }
        // What comes from who has left is late.
        Mail::Parcel { from, .. } if ports.is_gone(from) => {}
        Mail::Parcel { from, parcel } => {
            match parcel.header.kind {
                ParcelKind::Items(_) | ParcelKind::Columns(_) => fault::point(ports.me(), "recv_item"),
                ParcelKind::Gradient(_) => fault::point(ports.me(), "before_backward"),
                ParcelKind::Features(_) => {}
            }
            engine.arrive(from, parcel, ports)?;
        }
        Mail::Credit => ports.flush()?,
        Mail::Edge { to, edge } => ports.connect(to, edge),
        // Whether the run can go on without it is the scheduler's to say.
        Mail::Gone { peer, reason } if peer.role == Role::Encoder => ports.lose(peer, reason),
        Mail::Gone { peer, reason } => return Err(PeerLost { peer, reason }.into()),
    }
    Ok(std::ops::ControlFlow::Continue(()))
}

/// Applies faults before and after a command is handled.
fn points(command: &Command) -> (Option<&'static str>, Option<&'static str>) {
    let (before, after) = match command {
        Command::Plan(_) => ("before_plan", "after_plan"),
        Command::Reduce { .. } => ("before_reduce", "after_reduce"),
        Command::Commit(_) => ("before_commit", "after_commit"),
        Command::Save { .. } => ("before_save", "after_save"),
        _ => return (None, None),
    };
    (Some(before), Some(after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{ActorId, Epoch, StepId};
    use crate::transport::{MailSender, Parcel};
    use std::collections::BTreeMap;

    /// Fails at every command: at `Abort` for want of another rank. If it has a sender, whoever notices its end has it told to stop.
    struct Failing(Option<MailSender>);

    impl Drop for Failing {
        fn drop(&mut self) {
            self.0.iter().for_each(|sender| drop(sender.send(Mail::Command(Command::Stop))));
        }
    }

    impl Engine for Failing {
        fn command(&mut self, command: Command, _: &mut Ports) -> Result<(), EngineError> {
            if matches!(command, Command::Abort { .. }) {
                interrupt::note_failed_collective();
            }
            Err("it cannot go on".into())
        }

        fn arrive(&mut self, _: ActorId, _: Parcel, _: &mut Ports) -> Result<(), EngineError> {
            Ok(())
        }

        fn work(&mut self, _: &mut Ports) -> Result<Progress, EngineError> {
            Ok(Progress::Idle)
        }
    }

    fn last_words(commands: &[Command], is_noticed: bool) -> Event {
        let mailbox = Mailbox::new(0, 8);
        commands.iter().for_each(|command| mailbox.sender().send(Mail::Command(command.clone())).unwrap());
        let (events, told) = flume::bounded(8);
        let sender = is_noticed.then(|| mailbox.sender());
        host(|| Ok(Failing(sender)), mailbox, Ports::new(ActorId::foundation(0), events, BTreeMap::new()));
        told.drain().last().unwrap()
    }

    #[test]
    fn an_engine_that_fails_when_it_was_told_to_stop_has_stopped() {
        let abort = Command::Abort { step: StepId(0) };
        assert!(matches!(last_words(std::slice::from_ref(&abort), false), Event::Failed { .. }));
        assert!(matches!(last_words(&[abort, Command::Stop], false), Event::Stopped));
    }

    #[test]
    fn an_engine_that_is_told_to_stop_because_it_has_failed_says_why_it_has() {
        let (step, epoch) = (StepId(0), Epoch(0));
        assert!(matches!(last_words(&[Command::Reduce { step, epoch }], true), Event::Failed { .. }));
    }

    #[test]
    fn an_engine_whose_collective_failed_says_that_it_lacks_a_rank() {
        let lost = |command| match last_words(&[command], false) {
            Event::Failed { lost, .. } => lost,
            other => panic!("its last words are {other:?}"),
        };
        let (step, epoch) = (StepId(0), Epoch(0));
        assert_eq!(lost(Command::Abort { step }), Some(ActorId::foundation(0)));
        assert_eq!(lost(Command::Reduce { step, epoch }), None);
    }
}
