//! Asks a running job to scale an encoder pool.

use super::RunError;
use super::join::{Down, JoinError, Up, hindrance};
use super::net::{Security, connect};
use loongforge_core::config::Address;
use loongforge_core::message::{PoolName, Role};
use loongforge_core::transport::link;
use std::time::Duration;

/// The time that the scheduler may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks the run whose scheduler listens at `address` for this many encoders in `pool`, or in its only pool: it removes surplus
/// encoders, and starts missing ones if it has started the others. `is_forced`: also more than its machine has cores for. Returns the
/// pool and their previous number.
///
/// # Errors
/// Fails if nobody listens or answers, the peer is not the expected one, no pool is named of several, the run's encoders are not
/// elastic, others must start them, or there would be too many on the scheduler's machine.
pub fn scale_run(
    address: &Address,
    security: &Security,
    pool: Option<PoolName>,
    encoders: u32,
    is_forced: bool,
) -> Result<(PoolName, u32), RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| RunError::Start { what: "the runtime".into(), source })?;
    let name = address.to_string();
    let absent = |cause| JoinError::NoScheduler { address: name.clone(), seconds: PATIENCE.as_secs(), cause };
    let broken = |source| JoinError::Connection { address: name.clone(), source };
    let ask = async {
        let stream = connect(address, security, Some(Role::Scheduler)).await.map_err(|source| match source.kind() {
            std::io::ErrorKind::InvalidData => JoinError::Connect { address: name.clone(), source },
            _ => absent(hindrance(&source)),
        })?;
        let (mut sender, mut receiver) = link::<Up, Down>(stream);
        sender.send(&Up::Scale { pool, encoders, is_forced }).await.map_err(broken)?;
        match receiver.recv().await.map_err(broken)? {
            Some(Down::Scaling { pool, from }) => Ok((pool, from)),
            Some(Down::Refused { reason }) => Err(JoinError::NotScaled { address: name.clone(), reason }),
            Some(said) => Err(JoinError::OutOfTurn { address: name.clone(), said: format!("{said:?}") }),
            None => Err(JoinError::SchedulerGone { address: name.clone() }),
        }
    };
    let asked = async { tokio::time::timeout(PATIENCE, ask).await.unwrap_or_else(|_| Err(absent(String::new()))) };
    Ok(runtime.block_on(asked)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_whose_address_cannot_be_reached_is_told_with_the_cause() {
        let address = Address::Unix(format!("/{}", "a".repeat(300)).into());
        let error = scale_run(&address, &Security::plain("a"), None, 1, false).unwrap_err().to_string();
        assert!(error.contains(" after 10 s (") && error.contains("); start one with"), "{error}");
    }
}
