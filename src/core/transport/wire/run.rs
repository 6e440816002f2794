//! Runs a wire over one connection after the other.

use super::WireError;
use super::carry::{End, carry, greet, greeted};
use super::shared::Shared;
use super::spec::{In, Out, Raw, Reconnect, Recovery, Returned, WireSpec};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// The pause between two attempts to reach a peer that is not there.
const RETRY: Duration = Duration::from_millis(50);
/// The time that a greeting may take.
const GREETING: Duration = Duration::from_secs(2);
/// The time that a peer that only has to receive the farewell may take to return.
const LAST: Duration = Duration::from_secs(1);

/// Runs until both ends have sent a farewell, or one is gone.
pub async fn run(
    first: Option<Raw>,
    mut recovery: Recovery,
    spec: WireSpec,
    shared: Arc<Shared>,
    queue: flume::Receiver<Out>,
    arrived: flume::Sender<In>,
) {
    let mut arrived = Some(arrived);
    let end = End { spec: &spec, shared: &shared, queue: &queue };
    let result = live(first, &mut recovery, end, &mut arrived).await;
    if let Err(error) = result {
        shared.fail(error);
    }
    // Nothing changes any more, whatever was heard.
    shared.settled.send_replace(true);
    // Dropped after the error is known: the receiver looks for it then.
    drop(arrived);
}

/// A connection that is lost, or was never there.
struct Lost {
    /// Connections that come to nothing since give nobody more time.
    at: Instant,
    why: WireError,
    /// Attempts to connect again, counted over all connections.
    attempts: u64,
}

async fn live(
    first: Option<Raw>,
    recovery: &mut Recovery,
    end: End<'_>,
    arrived: &mut Option<flume::Sender<In>>,
) -> Result<(), WireError> {
    let End { spec, shared, .. } = end;
    let mut key = spec.number;
    let mut has_been = first.is_some();
    let mut next = first.map(|raw| Returned { raw, received: spec.sent });
    let mut lost = Lost { at: Instant::now(), why: WireError::Ended, attempts: 0 };
    loop {
        let Returned { mut raw, received } = match next.take() {
            Some(returned) => returned,
            None => {
                let patience = match &lost.why {
                    _ if !has_been => spec.patience_first,
                    WireError::Ended => spec.patience_ended,
                    _ => spec.patience,
                };
                again(recovery, &mut lost, patience, key, shared).await?
            }
        };
        let patience = spec.quiet.min(GREETING);
        let begun = timeout(patience, begin(&mut raw, spec, &mut key, received, shared)).await;
        let has_begun = matches!(begun, Ok(Ok(_)));
        let carried = match begun.unwrap_or(Err(WireError::Silent(patience))) {
            Err(error) => Err(error),
            Ok(key) => {
                let carrying = carry(raw, key, end, arrived);
                let comes_back = match recovery {
                    Recovery::Accept(returned) => Some(&*returned),
                    _ => None,
                };
                tokio::select! {
                    carried = carrying => carried,
                    // It has another connection; this one is broken, and that was not noticed here.
                    returned = replaced(comes_back) => {
                        (next, lost.at) = (Some(returned), Instant::now());
                        continue;
                    }
                }
            }
        };
        has_been |= has_begun;
        if has_begun {
            lost.at = Instant::now();
        }
        match carried {
            Ok(()) => return Ok(()),
            // Whoever has left in order needs to be waited for no more.
            Err(_) if shared.state().has_left => return Ok(()),
            Err(error) if error.is_final() => return Err(error),
            Err(error) => {
                if !matches!(recovery, Recovery::None) {
                    tracing::debug!("a connection is broken: {error}");
                }
                // One that comes to nothing, as of a proxy before who cannot be reached, takes no time away.
                if has_begun || matches!(lost.why, WireError::Ended) {
                    lost.why = error;
                }
                // Something answers in the place of who is not there (a proxy): not to be asked without a pause.
                if !has_begun && matches!(recovery, Recovery::Connect(_)) {
                    sleep(RETRY).await;
                }
            }
        }
    }
}

/// Greets, or is greeted; everything that the peer has not received is to be written then. Returns the wire's number.
async fn begin(
    raw: &mut Raw,
    spec: &WireSpec,
    key: &mut Option<u128>,
    received: u64,
    shared: &Shared,
) -> Result<u128, WireError> {
    if spec.accepts {
        let key = key.expect("the accepting end has drawn it");
        let mine = shared.state().received;
        shared.state().outbox.resume(received)?;
        greet(raw, key, mine, spec.life).await?;
        return Ok(key);
    }
    let (theirs, received, life) = greeted(raw).await?;
    if key.is_some_and(|ours| ours != theirs) {
        return Err(WireError::Refused);
    }
    let newest = shared.state().life;
    if life < newest {
        return Err(WireError::Stale { life, newest });
    }
    shared.state().life = life;
    *key = Some(theirs);
    shared.state().outbox.resume(received)?;
    Ok(theirs)
}

/// Tells who has come back that there is no such wire here.
pub async fn refuse(mut raw: Raw) {
    let _ = timeout(Duration::from_secs(5), greet(&mut raw, 0, 0, u64::MAX)).await;
    let _ = raw.writer.shutdown().await;
}

/// Waits for another connection in the place of the one that is `lost`.
async fn again(
    recovery: &mut Recovery,
    lost: &mut Lost,
    patience: Duration,
    key: Option<u128>,
    shared: &Shared,
) -> Result<Returned, WireError> {
    // Who has nothing to say any more does not wait long for somebody to hear it.
    let patience = if shared.state().is_closed { patience.min(LAST) } else { patience };
    let deadline = lost.at + patience;
    match recovery {
        Recovery::None => Err(lost.why.clone()),
        Recovery::Accept(returned) => match timeout_at(deadline, returned.recv_async()).await {
            Ok(Ok(returned)) => Ok(returned),
            _ => Err(lost.why.clone()),
        },
        // Who is connected at once could go on for ever.
        Recovery::Connect(_) if Instant::now() >= deadline => Err(lost.why.clone()),
        Recovery::Connect(connect) => {
            let tries = reconnect(connect, key.unwrap_or(0), &mut lost.attempts, shared);
            timeout_at(deadline, tries).await.unwrap_or_else(|_| Err(lost.why.clone()))
        }
    }
}

async fn reconnect(
    connect: &mut Reconnect,
    key: u128,
    attempts: &mut u64,
    shared: &Shared,
) -> Result<Returned, WireError> {
    loop {
        *attempts += 1;
        let received = shared.state().received;
        match connect(key, *attempts, received).await {
            // The greeting says what was received.
            Ok(raw) => return Ok(Returned { raw, received: 0 }),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(WireError::Message(error.to_string()));
            }
            Err(_) => sleep(RETRY).await,
        }
    }
}

async fn replaced(returned: Option<&flume::Receiver<Returned>>) -> Returned {
    match returned {
        Some(returned) => match returned.recv_async().await {
            Ok(returned) => returned,
            Err(_) => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}
