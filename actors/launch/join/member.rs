//! The actor's side of joining.

use super::protocol::OTHER_CONFIG;
use super::{Down, JoinError, Up, Welcome};
use crate::launch::WantedActor;
use loongforge_core::message::ActorId;
use loongforge_core::transport::{LinkReceiver, LinkSender, link};
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, interval_at, sleep};

/// The interval of attempts to reach a scheduler that is not there, and that of log lines about it.
const RETRY: Duration = Duration::from_millis(200);
const REMIND: Duration = Duration::from_secs(5);

/// A place in a run, and the connection that it is held by.
pub struct Joined<T> {
    pub welcome: Welcome,
    /// The result of `listen`.
    pub listener: T,
    pub sender: LinkSender<Up>,
    pub receiver: LinkReceiver<Down>,
}

/// Connects and joins, retrying until `timeout` has passed. `listen` creates the socket for the edges of the actor that it is
/// given.
///
/// # Errors
/// Fails if there is no scheduler, or it refuses, does not answer, or ends.
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
        let cause = match connect().await {
            Ok(stream) => break stream,
            // It is there, and not who is meant: waiting does not change that.
            Err(source) if source.kind() == io::ErrorKind::InvalidData => {
                return Err(JoinError::Connect { address, source });
            }
            Err(source) => hindrance(&source),
        };
        if begin.elapsed() >= timeout {
            return Err(JoinError::NoScheduler { address, seconds: timeout.as_secs(), cause });
        }
        if reminded.elapsed() >= REMIND {
            tracing::info!("waiting for a scheduler at {address}{cause}");
            reminded = Instant::now();
        }
        sleep(RETRY).await;
    };
    let (mut sender, mut receiver) = link::<Up, Down>(stream);
    let WantedActor { role, pool, index } = wanted;
    let broken = |source| JoinError::Connection { address: address.clone(), source };
    sender.send(&Up::Hello { config, role, pool, index }).await.map_err(broken)?;
    let me = match heard(&mut receiver, &address, "an answer", timeout).await? {
        Some(Down::Assigned(me)) => me,
        other => return Err(unexpected(other, address)),
    };
    let (listener, edges) = listen(me)?;
    sender.send(&Up::Listening { edges }).await.map_err(broken)?;
    // The scheduler waits for the others no longer than that, and had begun to.
    match heard(&mut receiver, &address, "the other processes of the run", timeout + REMIND).await? {
        Some(Down::Welcome(welcome)) => Ok(Joined { welcome, listener, sender, receiver }),
        other => Err(unexpected(other, address)),
    }
}

/// Returns the cause, in brackets, for which a process cannot reach its scheduler; an empty text if none listens yet.
pub fn hindrance(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => String::new(),
        _ => format!(" ({source})"),
    }
}

/// Returns the scheduler's next message within `limit`. From time to time a log line says what is waited for.
async fn heard(
    receiver: &mut LinkReceiver<Down>,
    address: &str,
    what: &str,
    limit: Duration,
) -> Result<Option<Down>, JoinError> {
    let deadline = sleep(limit);
    let receive = receiver.recv();
    tokio::pin!(deadline, receive);
    let mut remind = interval_at(Instant::now() + REMIND, REMIND);
    let address = address.to_owned();
    loop {
        tokio::select! {
            said = &mut receive => return said.map_err(|source| JoinError::Connection { address, source }),
            _ = remind.tick() => tracing::info!("waiting for {what} at {address}"),
            () = &mut deadline => return Err(JoinError::Silent { address, seconds: limit.as_secs() }),
        }
    }
}

fn unexpected(said: Option<Down>, address: String) -> JoinError {
    match said {
        None => JoinError::SchedulerGone { address },
        Some(Down::Refused { reason }) if reason.starts_with(OTHER_CONFIG) => {
            JoinError::OtherConfig { address, reason }
        }
        Some(Down::Refused { reason }) => JoinError::Refused { address, reason },
        Some(said) => JoinError::OutOfTurn { address, said: format!("{said:?}") },
    }
}
