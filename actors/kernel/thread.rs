//! Engine threads: named, and joined by their link.

use super::{Commands, Link};
use loongforge_core::engine::{Engine, EngineError, Ports, host};
use loongforge_core::message::{ActorId, Event};
use loongforge_core::transport::{Edge, Mailbox};
use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Starts the thread of `me`, which builds its engine and hosts it. A panic counts as the engine's error, in the scheduler's
/// process as in a separate one. `queue`: maximum number of events that wait for the scheduler; `told`: see [`Ports::with_acks`].
///
/// # Errors
/// Fails if no thread can be started.
pub fn spawn<E: Engine>(
    me: ActorId,
    build: impl FnOnce() -> Result<E, EngineError> + Send + 'static,
    mailbox: Mailbox,
    edges: BTreeMap<ActorId, Box<dyn Edge>>,
    queue: usize,
    told: Option<flume::Receiver<()>>,
) -> io::Result<Link> {
    let (sender, events) = flume::bounded::<Event>(queue);
    let commands = Commands::Mailbox(mailbox.sender());
    let thread = std::thread::Builder::new().name(me.to_string());
    let last_words = sender.clone();
    let handle = thread.spawn(move || {
        let ports = Ports::new(me, sender, edges).with_acks(told);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| host(build, mailbox, ports))) {
            let error = format!("panicked: {}", message(&*panic));
            // An actor that is gone needs no events.
            let _ = last_words.send(Event::Failed { error, lost: None });
        }
    })?;
    // Events end when the thread has dropped its senders, which is the last thing it does: joining waits for nothing else.
    let end = Box::new(move || {
        let _ = handle.join();
        "its thread has ended".into()
    });
    Ok(Link { commands, events, end, kill: None, confirm: None })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
