//! Engine threads: named, and joined by their link.

use super::{Commands, Link};
use loongforge_core::engine::{Engine, EngineError, Ports, host};
use loongforge_core::message::{ActorId, Event};
use loongforge_core::transport::{Edge, Mailbox};
use std::any::Any;
use std::collections::BTreeMap;
use std::io;

/// Starts the thread of `me`, which builds its engine and hosts it. `queue`: events that may wait for the scheduler;
/// `told`: see [`Ports::telling`].
///
/// # Errors
/// The system gives no thread.
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
    let handle = thread.spawn(move || host(build, mailbox, Ports::new(me, sender, edges).with_acks(told)))?;
    // Events end when the thread has dropped its ports, which is the last thing it does: joining waits for nothing else.
    let end = Box::new(move || match handle.join() {
        Ok(()) => "its thread has ended".into(),
        Err(panic) => format!("panicked: {}", message(&*panic)),
    });
    Ok(Link { commands, events, end, kill: None, confirm: None })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
