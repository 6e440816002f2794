//! One child process: its output with a name before each line, and how it ended.

use super::RunError;
use loongforge_core::engine::memory_limit;
use loongforge_core::message::{ActorId, Replica};
use loongforge_core::observe::{CHILD, print_line_within};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::Child;
use tokio::sync::Notify;

/// Set for children: the parent's process id.
pub(super) const PARENT: &str = "LOONGFORGE_PARENT";
/// Set for children: the actor's index.
const INDEX: &str = "LOONGFORGE_INDEX";
/// Set for children: the place in the pool. A process that replaces an encoder has its place, and an index that no process has had.
const PLACE: &str = "LOONGFORGE_PLACE";
/// Ends of one place in the pool are counted for so long.
pub(super) const CRASH_WINDOW: Duration = Duration::from_secs(600);

/// The time for which the first line of a child waits that nobody reads: whoever starts children also hands on what asks them to stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// The way in which a process ended.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct End {
    pub reason: String,
    pub in_order: bool,
}

/// Returns how the child ended.
pub(super) async fn wait(mut child: Child, kill: &Notify) -> End {
    let status = tokio::select! {
        status = child.wait() => status,
        () = kill.notified() => {
            // One that has ended by itself needs no killing.
            let _ = child.start_kill();
            child.wait().await
        }
    };
    match status {
        Ok(status) => End { reason: reason(status, memory_limit()), in_order: status.success() },
        Err(error) => End { reason: error.to_string(), in_order: false },
    }
}

/// Returns why a child has ended. One that lacks memory, of which it may map as much as this process, aborts.
fn reason(status: ExitStatus, limit: Option<String>) -> String {
    let has_aborted = status.signal() == Some(Signal::ABORT.as_raw());
    let limit = limit.filter(|_| has_aborted).map(|limit| format!("; it {limit}")).unwrap_or_default();
    format!("its process ended: {status}{limit}")
}

/// Makes a child of `command`: it dies with this process, and takes the place `index` of its pool.
pub fn beside(command: &mut std::process::Command, index: Option<u32>) {
    command.env(PARENT, std::process::id().to_string()).env_remove(PLACE);
    match index {
        Some(index) => command.env(INDEX, index.to_string()),
        None => command.env_remove(INDEX),
    };
}

/// Makes a child die with its parent, and returns the index that it was started for. Does nothing in a process that is no child.
///
/// # Errors
/// The system refuses, or the parent is gone already.
pub fn bind_to_parent() -> Result<Option<u32>, RunError> {
    let Some(parent) = number(PARENT) else { return Ok(None) };
    let failed = |source: io::Error| RunError::Start { what: "a process that dies with its parent".into(), source };
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| failed(error.into()))?;
    if getppid().map(Pid::as_raw_nonzero).map(|pid| pid.get() as u32) != Some(parent) {
        return Err(failed(io::Error::other("the parent is gone already")));
    }
    Ok(number(INDEX))
}

/// Returns the place in its pool that a child was started for.
pub fn filled_place() -> Option<u32> {
    number(PLACE)
}

fn number(name: &str) -> Option<u32> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Returns the variables that tell a child who it is. `place`: that it has in an encoder pool; others have that of their index.
pub(super) fn variables(actor: ActorId, place: Option<Replica>) -> [(&'static str, String); 2] {
    let place = place.map_or(actor.index, |place| place.index);
    [(INDEX, actor.index.to_string()), (PLACE, place.to_string())]
}

/// Copies the lines of a child's output to this process's log, with the actor's name, until it closes.
pub(super) async fn pass_on(actor: ActorId, output: Option<impl AsyncRead + Unpin>) {
    let Some(output) = output else { return };
    let mut output = BufReader::new(output);
    while let Some(line) = next_line(&mut output).await {
        // Programs without a log have their own standard error.
        match tracing::dispatcher::has_been_set() {
            // A line of JSON says itself whose it is.
            true if line.starts_with('{') => say(&line),
            true => tracing::info!(target: CHILD, "{actor} | {line}"),
            false => say(&format!("{actor} | {line}")),
        }
    }
}

/// Writes a line to standard error: where that is closed, as a terminal may be, or nobody reads it, the child goes on nevertheless.
fn say(line: &str) {
    static NUM_LEFT_OUT: AtomicUsize = AtomicUsize::new(0);
    let limit = if NUM_LEFT_OUT.load(Relaxed) == 0 { PATIENCE } else { Duration::ZERO };
    if !print_line_within(line, limit) {
        NUM_LEFT_OUT.fetch_add(1, Relaxed);
        return;
    }
    let num_left_out = NUM_LEFT_OUT.swap(0, Relaxed);
    if num_left_out > 0 {
        let told = format!("{num_left_out} lines of processes before the last one are left out here: nobody read them");
        if tracing::dispatcher::has_been_set() {
            tracing::warn!("{told}");
        } else {
            print_line_within(&told, PATIENCE);
        }
    }
}

/// Returns the next line, whatever its bytes: a child whose output is not read any more could not write.
async fn next_line(output: &mut (impl AsyncBufRead + Unpin)) -> Option<String> {
    let mut bytes = Vec::new();
    output.read_until(b'\n', &mut bytes).await.ok().filter(|count| *count > 0)?;
    let line = String::from_utf8_lossy(&bytes);
    Some(line.trim_end_matches(['\n', '\r']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replacement_is_told_its_own_index_and_the_place_of_who_died() {
        let told = |place| variables(ActorId::encoder(5), place).map(|(name, value)| format!("{name}={value}"));
        assert_eq!(told(Some(Replica::encoder(1))), ["LOONGFORGE_INDEX=5", "LOONGFORGE_PLACE=1"]);
        assert_eq!(told(None), ["LOONGFORGE_INDEX=5", "LOONGFORGE_PLACE=5"]);
    }

    #[test]
    fn the_limit_of_memory_is_named_of_a_child_that_aborts() {
        let limit = || Some("may map at most 1.00 GB of memory (`ulimit -v`)".to_owned());
        let said = |raw, limit| reason(ExitStatus::from_raw(raw), limit);
        let aborted = said(Signal::ABORT.as_raw(), limit());
        assert!(aborted.ends_with("; it may map at most 1.00 GB of memory (`ulimit -v`)"), "{aborted}");
        for other in [said(Signal::ABORT.as_raw(), None), said(Signal::KILL.as_raw(), limit()), said(0, limit())] {
            assert!(!other.contains("ulimit"), "{other}");
        }
    }

    #[test]
    fn lines_that_are_no_text_are_passed_on_and_those_after_them() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut output = &b"one\r\n\xff two\n\nlast"[..];
        runtime.block_on(async {
            for expected in ["one", "\u{fffd} two", "", "last"] {
                assert_eq!(next_line(&mut output).await.as_deref(), Some(expected));
            }
            assert_eq!(next_line(&mut output).await, None);
        });
    }
}
