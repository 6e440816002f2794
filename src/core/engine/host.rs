//! The loop of an engine thread: mail in, work, sleep. Stops when told to; any error ends it with `Event::Failed`.

use super::{Engine, EngineError, PeerLost, Ports, Progress, error_chain};
use crate::message::{Command, Event};
use crate::transport::{Mail, Mailbox};
use std::time::{Duration, Instant};

/// How long an idle engine sleeps before it looks again; only a safety net, every cause of work sends mail.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the engine that `build` makes on this thread until `Command::Stop` or an error.
///
/// Emits `Ready` once built, and `Stopped` or `Failed` as the last event. A peer that is gone is an error, but after
/// `Stop` it is not: peers end in any order.
pub fn host<E: Engine>(build: impl FnOnce() -> Result<E, EngineError>, mailbox: Mailbox, mut ports: Ports) {
    let result = build().and_then(|engine| {
        ports.emit(Event::Ready);
        run(engine, &mailbox, &mut ports)
    });
    match result {
        Ok(()) => ports.emit(Event::Stopped),
        Err(error) => {
            let lost = error.downcast_ref::<PeerLost>().map(|lost| lost.peer);
            ports.emit(Event::Failed { error: error_chain(&*error), lost });
        }
    }
}

fn run(mut engine: impl Engine, mailbox: &Mailbox, ports: &mut Ports) -> Result<(), EngineError> {
    loop {
        while let Some(mail) = mailbox.try_recv() {
            if deliver(&mut engine, mail, ports)?.is_break() {
                return Ok(());
            }
        }
        let start = Instant::now();
        let progress = engine.work(ports)?;
        while let Some(parcel) = ports.take_own() {
            engine.arrive(ports.me(), parcel, ports)?;
        }
        ports.timings.busy += start.elapsed().as_secs_f64();
        if progress == Progress::Idle {
            let start = Instant::now();
            let mail = mailbox.recv_timeout(PATIENCE);
            ports.timings.idle += start.elapsed().as_secs_f64();
            if let Some(mail) = mail
                && deliver(&mut engine, mail, ports)?.is_break()
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
            engine.command(command, ports)?;
            ports.timings.busy += start.elapsed().as_secs_f64();
        }
        Mail::Parcel { from, parcel } => engine.arrive(from, parcel, ports)?,
        Mail::Credit => ports.flush()?,
        Mail::Gone { peer, reason } => return Err(PeerLost { peer, reason }.into()),
    }
    Ok(std::ops::ControlFlow::Continue(()))
}
