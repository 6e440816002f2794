//! A word to a run that goes on: so many encoders.

use super::RunError;
use super::join::{Down, JoinError, Up};
use loongforge_core::transport::link;
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixStream;

/// How long the scheduler may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks the run whose scheduler listens at `address` for so many encoders: its process starts what is missing and lets go
/// what is too much. Returns how many there were.
///
/// # Errors
/// Nobody listens or answers, or the run's encoders do not come and go.
pub fn scale_run(address: &Path, encoders: u32) -> Result<u32, RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| RunError::Start { what: "the runtime".into(), source })?;
    let name = address.display().to_string();
    let absent = || JoinError::NoScheduler { address: name.clone(), seconds: PATIENCE.as_secs() };
    let broken = |source| JoinError::Connection { address: name.clone(), source };
    let ask = async {
        let stream = UnixStream::connect(address).await.map_err(|_| absent())?;
        let (mut sender, mut receiver) = link::<Up, Down>(stream);
        sender.send(&Up::Scale { encoders }).await.map_err(broken)?;
        match receiver.recv().await.map_err(broken)? {
            Some(Down::Scaling { from }) => Ok(from),
            Some(Down::Refused { reason }) => Err(JoinError::Refused { address: name.clone(), reason }),
            Some(said) => Err(JoinError::OutOfTurn { address: name.clone(), said: format!("{said:?}") }),
            None => Err(JoinError::SchedulerGone { address: name.clone() }),
        }
    };
    let asked = async { tokio::time::timeout(PATIENCE, ask).await.unwrap_or_else(|_| Err(absent())) };
    Ok(runtime.block_on(asked)?)
}
