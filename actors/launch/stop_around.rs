//! Handles signals to stop a process while no scheduler of a run does: before the run starts, while data are read and packed, and
//! after its end.

use super::keeper::is_takeover;
use super::signals::Signals;
use crate::kernel::Phase;
use rustix::process::{Signal, getpid, kill_process};
use std::io;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// The time that a signal waits for a scheduler that takes over.
const PATIENCE: Duration = Duration::from_secs(5);
/// The interval of checks whether it handles signals by now.
const PAUSE: Duration = Duration::from_millis(10);

/// Calls `end`, which ends this process, with the phase in which SIGINT, SIGTERM or SIGHUP has come. Once this returns, no signal is
/// lost. Where this process takes over from a scheduler that died, a signal waits for it to be under way: it saves before it stops.
///
/// # Errors
/// The system refuses a thread, or to have signals caught.
pub fn stop_around(end: impl FnOnce(Phase) + Send + 'static) -> io::Result<()> {
    let (told, heard) = sync_channel(1);
    let watch = async move {
        let mut signals = match Signals::new() {
            Ok(signals) => signals,
            Err(error) => {
                let _ = told.send(Err(error));
                return;
            }
        };
        let _ = told.send(Ok(()));
        loop {
            let asked = signals.next().await;
            // What asks for a checkpoint has nothing to save then.
            if asked == Signal::USR1 {
                continue;
            }
            let waits = Phase::now() == Phase::Before && is_takeover();
            if waits {
                let _ = tokio::time::timeout(PATIENCE, under_way()).await;
            }
            match Phase::now() {
                Phase::Heeded if waits => {
                    let _ = kill_process(getpid(), asked);
                }
                Phase::Heeded => {}
                phase => break end(phase),
            }
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("stop-around".into()).spawn(move || runtime.block_on(watch))?;
    heard.recv().map_err(io::Error::other)?
}

/// Waits until the run is under way, or over.
async fn under_way() {
    while Phase::now() == Phase::Before {
        tokio::time::sleep(PAUSE).await;
    }
}
