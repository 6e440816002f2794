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
            // An actor that is gone needs no events.
            let _ = last_words.send(Event::Failed { error: cause(&*panic), lost: None });
        }
    })?;
    // Events end when the thread has dropped its senders, which is the last thing it does: joining waits for nothing else.
    let end = Box::new(move || {
        let _ = handle.join();
        "its thread has ended".into()
    });
    Ok(Link { commands, events, end, kill: None, confirm: None })
}

/// Begins an error of libtorch in the message of a panic, and the frames of a stack that follow what it says.
const OF_LIBTORCH: &str = "Torch(\"";
const FRAMES: &str = "\\nException raised from ";

/// Returns why an engine ended that panicked. Operators of libtorch that fail panic, too; their frames are in the message that the
/// panic has written to standard error.
fn cause(panic: &(dyn Any + Send)) -> String {
    let text = message(panic);
    let Some((_, error)) = text.split_once(OF_LIBTORCH) else { return format!("panicked: {text}") };
    let end = error.find(FRAMES).or_else(|| error.rfind("\")")).unwrap_or(error.len());
    let said = error[..end].replace("\\n", " ").replace("\\\"", "\"");
    let said = said.trim_end_matches('.');
    match said.contains("out of memory") || said.contains("not enough memory") {
        true => format!("{said}; docs/memory.md says what takes less memory"),
        false => format!("an operator of libtorch failed: {said}"),
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_operator_is_told_in_one_line_and_lack_of_memory_with_where_to_read_on() {
        let of = |text: &str| cause(&text.to_owned());
        let frames = r"\nException raised from malloc at allocator.cpp:1 (most recent call first):\nframe #0: f";
        let lack = r#"called `Result::unwrap()` on an `Err` value: Torch("CUDA out of memory. Tried to allocate 2 GB."#;
        let told = "CUDA out of memory. Tried to allocate 2 GB; docs/memory.md says what takes less memory";
        assert_eq!(of(&format!("{lack}{frames}\")")), told);
        let shapes = r#"called `Result::unwrap()` on an `Err` value: Torch("\"mat1\" and\nmat2 differ")"#;
        assert_eq!(of(shapes), "an operator of libtorch failed: \"mat1\" and mat2 differ");
        assert_eq!(of("index out of bounds"), "panicked: index out of bounds");
    }
}
