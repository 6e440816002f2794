//! An actor's side of joining.

use super::{Down, JoinError, Up, Welcome};
use crate::launch::WantedActor;
use loongforge_core::message::ActorId;
use loongforge_core::transport::{LinkReceiver, LinkSender, link};
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep};

/// Sets how often a scheduler that is not there is tried again, and how often that is said.
const RETRY: Duration = Duration::from_millis(200);
const REMIND: Duration = Duration::from_secs(5);

/// A place in a run, and the connection that it is held by.
pub struct Joined<T> {
    pub welcome: Welcome,
    /// Holds what `listen` made.
    pub listener: T,
    pub sender: LinkSender<Up>,
    pub receiver: LinkReceiver<Down>,
}

/// Connects, until `timeout` has passed, and joins. `listen` makes the socket of the edges of the actor it is told.
///
/// # Errors
/// There is no scheduler, it refuses, or it ends.
pub async fn join<S, T>(
    mut connect: impl AsyncFnMut() -> io::Result<S>,
    address: &str,
    (config, wanted): (String, WantedActor),
    timeout: Duration,
    listen: impl FnOnce(ActorId) -> Result<(T, PathBuf), JoinError>,
) -> Result<Joined<T>, JoinError>
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let address = address.to_owned();
    let begin = Instant::now();
    let mut reminded = begin;
    let stream = loop {
        match connect().await {
            Ok(stream) => break stream,
            // It is there, and not who is meant: waiting does not change that.
            Err(source) if source.kind() == io::ErrorKind::InvalidData => {
                return Err(JoinError::Connect { address, source });
            }
            Err(_) => {}
        }
        if begin.elapsed() >= timeout {
            return Err(JoinError::NoScheduler { address, seconds: timeout.as_secs() });
        }
        if reminded.elapsed() >= REMIND {
            tracing::info!("waiting for a scheduler at {address}");
            reminded = Instant::now();
        }
        sleep(RETRY).await;
    };
    let (mut sender, mut receiver) = link::<Up, Down>(stream);
    let WantedActor { role, pool, index } = wanted;
    let broken = |source| JoinError::Connection { address: address.clone(), source };
    sender.send(&Up::Hello { config, role, pool, index }).await.map_err(broken)?;
    let me = match receiver.recv().await.map_err(broken)? {
        Some(Down::Assigned(me)) => me,
        other => return Err(unexpected(other, address)),
    };
    let (listener, edges) = listen(me)?;
    sender.send(&Up::Listening { edges }).await.map_err(broken)?;
    match receiver.recv().await.map_err(broken)? {
        Some(Down::Welcome(welcome)) => Ok(Joined { welcome, listener, sender, receiver }),
        other => Err(unexpected(other, address)),
    }
}

fn unexpected(said: Option<Down>, address: String) -> JoinError {
    match said {
        None => JoinError::SchedulerGone { address },
        Some(Down::Refused { reason }) => JoinError::Refused { address, reason },
        Some(said) => JoinError::OutOfTurn { address, said: format!("{said:?}") },
    }
}
