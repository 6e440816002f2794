//! Handles signals to stop a process while no scheduler of a run does: before the run starts, while data are read and packed, and
//! after its end.

use super::signals::Signals;
use crate::kernel::Phase;
use rustix::process::Signal;
use std::io;
use std::sync::mpsc::sync_channel;

/// Calls `end`, which ends this process, with the phase in which SIGINT or SIGTERM has come. From when this returns on none is lost.
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
            // What asks for a checkpoint has nothing to save then.
            if signals.next().await != Signal::USR1 && Phase::now() != Phase::Heeded {
                break end(Phase::now());
            }
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("stop-around".into()).spawn(move || runtime.block_on(watch))?;
    heard.recv().map_err(io::Error::other)?
}
