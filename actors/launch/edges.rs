//! An actor's edges to other processes: shared memory on one host, parcels over sockets between hosts.
//!
//! Each actor chooses one of the two for its incoming edges, and gives a single address. A run whose scheduler listens on a Unix
//! socket or loopback is on one host; `--no-shared-memory` overrides that.

use super::EdgeSpec;
use super::inlet::Door;
use super::join::{ReconnectRegistry, Terms, Up};
use super::net::{Listener, Security, Stream, connect, first_message};
use loongforge_core::config::Address;
use loongforge_core::message::{ActorId, Role};
use loongforge_core::transport::{
    Edge, MailSender, Raw, Reconnect, Recovery, SlabEdge, SlabError, SlabListener, StreamEdge, StreamSpec, frame,
    receive,
};
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout, timeout_at};

/// The time that pending messages may take to be written after an engine has ended.
const FAREWELL: Duration = Duration::from_secs(2);

/// The pause before a peer that could not be reached is tried again.
const RETRY: Duration = Duration::from_millis(50);
/// The pause between two looks for connections over shared memory.
const POLL: Duration = Duration::from_millis(5);

/// The task that writes the parcels of an edge to a socket.
pub(super) type Carrier = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The tasks of the edges between hosts, until the engine has ended.
pub(super) struct Carriers {
    edges: Edges,
    returns: ReconnectRegistry,
    tasks: JoinSet<()>,
    /// The receiving ends end in order when it is dropped.
    stays: flume::Sender<()>,
    here: flume::Receiver<()>,
}

/// An open door: encoders that join the run come in. Closed when it is dropped.
pub(super) enum Open {
    Slab { closed: Arc<AtomicBool>, thread: Option<JoinHandle<()>> },
    Stream(AbortHandle),
}

/// Settings shared by the edges of an actor.
#[derive(Clone)]
pub(super) struct Edges {
    pub me: ActorId,
    pub security: Security,
    pub mail: MailSender,
    /// A connection that is silent for half of it is broken; one that broke may take twice as long to be mended, and one to a silent
    /// data or foundation actor as long as the scheduler waits for it. A lease is also how long a first one is tried.
    pub lease: Duration,
}

impl Edges {
    fn spec(&self, peer: ActorId, credit: usize, number: Option<u128>) -> StreamSpec {
        let patience = 2 * self.lease;
        let silence = if peer.role == Role::Encoder { patience } else { Terms::new(self.lease, false).silence };
        StreamSpec { credit, number, quiet: self.lease / 2, patience, silence }
    }

    /// Returns an edge to whoever has said that it listens at `path`, and what carries it, between hosts.
    ///
    /// # Errors
    /// `path` is no address, or nobody there accepts the edge within a lease.
    pub async fn connect(&self, path: &Path, edge: EdgeSpec) -> Result<(Box<dyn Edge>, Option<Carrier>), String> {
        let address: Address = path.to_string_lossy().parse()?;
        if let Address::Unix(path) = &address {
            return self.slab(path, edge);
        }
        let failed = |error: io::Error| format!("edge to {} at {address}: {error}", edge.to);
        let mut dial = self.dial(&address, edge);
        let (first, num_failed) = reach(&mut dial, self.lease).await.map_err(failed)?;
        // The peer may have heard of attempts that failed here, and takes later ones alone.
        let again: Reconnect = Box::new(move |wire, attempt, received| dial(wire, num_failed + attempt, received));
        Ok(self.stream(Some(first), again, edge))
    }

    /// Works like [`Edges::connect`] for an encoder that has joined, which may be gone again: nobody waits for it. Between hosts the
    /// carrier connects, and the mailbox is told that it is gone where it cannot be reached.
    ///
    /// # Errors
    /// `path` is no address, or on this host nobody there accepts the edge.
    pub fn connect_later(&self, path: &Path, edge: EdgeSpec) -> Result<(Box<dyn Edge>, Option<Carrier>), String> {
        let address: Address = path.to_string_lossy().parse()?;
        match &address {
            Address::Unix(path) => self.slab(path, edge),
            address => Ok(self.stream(None, self.dial(address, edge), edge)),
        }
    }

    fn slab(&self, path: &Path, edge: EdgeSpec) -> Result<(Box<dyn Edge>, Option<Carrier>), String> {
        let edge = SlabEdge::connect(path, self.me, edge.to, edge.credit as usize, &self.mail);
        Ok((Box::new(edge.map_err(|error| error.to_string())?), None))
    }

    fn stream(&self, first: Option<Raw>, dial: Reconnect, edge: EdgeSpec) -> (Box<dyn Edge>, Option<Carrier>) {
        let (spec, recovery) = (self.spec(edge.to, edge.credit as usize, None), Recovery::Connect(dial));
        let (edge, carrier) = StreamEdge::new(first, recovery, spec, edge.to, self.mail.clone());
        (Box::new(edge), Some(Box::pin(carrier)))
    }

    fn dial(&self, address: &Address, EdgeSpec { to, credit, .. }: EdgeSpec) -> Reconnect {
        let from = self.me;
        let hello = move |attempt| Up::Edge { from, to, credit, attempt };
        dial(address.clone(), self.security.clone(), to.role, from, hello)
    }
}

/// Connects to an address as often as it is asked to. The first message there is `hello`, until the other end has drawn the wire's
/// number.
pub(super) fn dial(
    address: Address,
    security: Security,
    role: Role,
    from: ActorId,
    hello: impl Fn(u64) -> Up + Send + 'static,
) -> Reconnect {
    Box::new(move |wire, attempt, received| {
        let said = if wire == 0 { hello(attempt) } else { Up::Return { from, wire, attempt, received } };
        let (address, security) = (address.clone(), security.clone());
        Box::pin(async move {
            // Who was there once may be there again: a damaged handshake looks like another's.
            let retried = |error: io::Error| io::Error::other(error.to_string());
            let mut stream = connect(&address, &security, Some(role)).await.map_err(retried)?;
            stream.write_all(&frame(&said).map_err(io::Error::other)?).await?;
            stream.flush().await?;
            Ok(Raw::new(stream))
        })
    })
}

/// Connects for the first time, in as many attempts as `patience` allows. Returns also how many of them failed.
async fn reach(dial: &mut Reconnect, patience: Duration) -> io::Result<(Raw, u64)> {
    let deadline = Instant::now() + patience;
    let mut num_failed = 0;
    loop {
        match dial(0, num_failed, 0).await {
            Ok(raw) => return Ok((raw, num_failed)),
            Err(error) if Instant::now() + RETRY >= deadline => return Err(error),
            Err(error) => tracing::debug!("a peer cannot be reached, and is tried again: {error}"),
        }
        num_failed += 1;
        sleep(RETRY).await;
    }
}

impl Carriers {
    /// Makes the carriers of the edges into a mailbox.
    pub fn new(edges: Edges) -> Self {
        let (stays, here) = flume::bounded(0);
        Self { edges, returns: ReconnectRegistry::default(), tasks: JoinSet::new(), stays, here }
    }

    /// Runs what writes an edge's parcels.
    pub fn carry(&mut self, carrier: Option<Carrier>) {
        if let Some(carrier) = carrier {
            self.tasks.spawn(carrier);
        }
    }

    /// Waits until all `producers` have connected.
    ///
    /// # Errors
    /// One of them has not connected within `patience`, or the listener fails.
    pub async fn accept(&mut self, door: &Door, producers: &[ActorId], patience: Duration) -> Result<(), String> {
        let deadline = tokio::time::Instant::now() + patience;
        let mut missing = producers.to_vec();
        while !missing.is_empty() {
            let names = missing.iter().map(ActorId::to_string).collect::<Vec<_>>().join(", ");
            let late = |_| format!("no connection from {names} after {} s", patience.as_secs());
            let from = match door {
                Door::Slab(listener) => {
                    let came = next_slab(listener, &missing, &self.edges.mail);
                    timeout_at(deadline, came).await.map_err(late)?.map_err(|error| error.to_string())?
                }
                Door::Stream(listener) => {
                    let heard = timeout_at(deadline, hear(listener, self.edges.me)).await.map_err(late)?;
                    let Some(came) = heard.map_err(|error| error.to_string())? else { continue };
                    let (from, is_new) = (came.from, missing.contains(&came.from));
                    if let Some(receiving) = arrive(came, is_new, &self.returns, &self.edges, &self.here).await {
                        self.tasks.spawn(receiving);
                    }
                    from
                }
            };
            missing.retain(|&actor| actor != from);
        }
        Ok(())
    }

    /// Lets joining encoders connect from now on.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn keep_open(&mut self, door: Door) -> io::Result<Open> {
        match door {
            Door::Slab(listener) => Open::slab(listener, self.edges.mail.clone()),
            Door::Stream(listener) => {
                let (edges, returns, here) = (self.edges.clone(), self.returns.clone(), self.here.clone());
                let task = tokio::spawn(async move {
                    while let Ok(heard) = hear(&listener, edges.me).await {
                        let Some(came) = heard else { continue };
                        let is_new = came.from.role == Role::Encoder;
                        if let Some(receiving) = arrive(came, is_new, &returns, &edges, &here).await {
                            tokio::spawn(receiving);
                        }
                    }
                });
                Ok(Open::Stream(task.abort_handle()))
            }
        }
    }

    /// Sends a farewell after the engine has ended, for as long as peers may receive it.
    pub async fn finish(mut self) {
        drop((self.stays, self.here));
        let _ = timeout(FAREWELL, async { while self.tasks.join_next().await.is_some() {} }).await;
    }
}

/// Returns the next of these actors that connects over shared memory. The thread does not wait for it: it has other tasks.
async fn next_slab(listener: &SlabListener, expected: &[ActorId], mail: &MailSender) -> Result<ActorId, SlabError> {
    loop {
        match listener.accept_one(|from| expected.contains(&from), mail, Instant::now())? {
            Some(from) => return Ok(from),
            None => sleep(POLL).await,
        }
    }
}

/// Somebody who has connected for an edge.
struct Came {
    stream: Stream,
    from: ActorId,
    /// Bytes, where it comes for the first time, as far as it knows.
    credit: Option<usize>,
    /// The number of the wire that it comes back to; 0 where it knows none.
    wire: u128,
    attempt: u64,
    received: u64,
}

/// Takes one who has connected: a new edge, where one `may_begin`, or another connection of one that there is.
async fn arrive(
    came: Came,
    may_begin: bool,
    returns: &ReconnectRegistry,
    edges: &Edges,
    here: &flume::Receiver<()>,
) -> Option<impl Future<Output = ()> + Send + 'static> {
    let Came { stream, from, credit, wire, attempt, received } = came;
    let raw = Raw::new(stream);
    match credit {
        Some(credit) if may_begin && !returns.knows(from) => {
            let (number, returned) = returns.expect(from);
            let spec = edges.spec(from, credit, Some(number));
            Some(receive(raw, returned, spec, from, edges.mail.clone(), here.clone()))
        }
        _ => {
            returns.come_back(from, wire, attempt, received, raw).await;
            None
        }
    }
}

/// Returns the next one who comes for an edge; `None` where somebody said something else.
async fn hear(listener: &Listener, me: ActorId) -> io::Result<Option<Came>> {
    let mut stream = listener.accept().await?;
    // Whoever was let in has said it already.
    match first_message::<Up>(&mut stream).await {
        Ok(Up::Edge { from, to, credit, attempt }) if to == me && credit > 0 => {
            Ok(Some(Came { stream, from, credit: Some(credit as usize), wire: 0, attempt, received: 0 }))
        }
        Ok(Up::Return { from, wire, attempt, received }) => {
            Ok(Some(Came { stream, from, credit: None, wire, attempt, received }))
        }
        Ok(said) => {
            tracing::warn!("a connection to {me} is dropped: it sent {said:?}");
            Ok(None)
        }
        Err(error) => {
            tracing::warn!("a connection to {me} is dropped: {error}");
            Ok(None)
        }
    }
}

impl Open {
    /// The time that it may take to close.
    const PULSE: Duration = Duration::from_millis(100);

    /// Accepts edges on a thread of its own, which ends when it is dropped.
    fn slab(listener: SlabListener, mail: MailSender) -> io::Result<Self> {
        let closed = Arc::new(AtomicBool::new(false));
        let is_closed = closed.clone();
        let body = move || {
            while !is_closed.load(SeqCst) {
                let is_encoder = |from: ActorId| from.role == Role::Encoder;
                if let Err(error) = listener.accept_one(is_encoder, &mail, Instant::now() + Self::PULSE) {
                    tracing::warn!("an edge is refused: {error}");
                    std::thread::sleep(Self::PULSE);
                }
            }
        };
        let thread = std::thread::Builder::new().name("door".into()).spawn(body)?;
        Ok(Self::Slab { closed, thread: Some(thread) })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        match self {
            Self::Slab { closed, thread } => {
                closed.store(true, SeqCst);
                // It does not panic, and if it did there would be nothing left to do.
                let _ = thread.take().map(JoinHandle::join);
            }
            Self::Stream(task) => task.abort(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::transport::{Mail, Mailbox};

    #[test]
    fn a_peer_that_cannot_be_reached_at_once_is_tried_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let failing = |num_failures: u64| -> Reconnect {
            Box::new(move |wire, attempt, received| {
                assert_eq!((wire, received), (0, 0), "there was no connection yet");
                Box::pin(async move {
                    match attempt < num_failures {
                        true => Err(io::Error::other(format!("attempt {attempt} failed"))),
                        false => Ok(Raw::new(tokio::io::duplex(1).0)),
                    }
                })
            })
        };
        let reached = runtime.block_on(reach(&mut failing(2), Duration::from_secs(20)));
        assert_eq!(reached.map(|(_, num_failed)| num_failed).unwrap(), 2);
        let error = runtime.block_on(reach(&mut failing(u64::MAX), 3 * RETRY)).map(drop).unwrap_err().to_string();
        assert!(error.starts_with("attempt ") && error != "attempt 0 failed", "{error}");
    }

    #[test]
    fn nobody_waits_for_an_encoder_that_has_joined_and_is_gone_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (mailbox, to) = (Mailbox::new(1, 4), ActorId::encoder(3));
        let (security, lease) = (Security::plain("a"), Duration::from_millis(200));
        let edges = Edges { me: ActorId::foundation(0), security, mail: mailbox.sender(), lease };
        // A port at which somebody was.
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        runtime.block_on(async {
            let (_edge, carrier) = edges.connect_later(address.as_ref(), EdgeSpec::new(edges.me, to, 1000)).unwrap();
            carrier.unwrap().await;
            // Who tells the mailbox has its turn.
            sleep(RETRY).await;
        });
        let told = mailbox.recv_timeout(Duration::ZERO);
        assert!(matches!(told, Some(Mail::Gone { peer, .. }) if peer == to), "{told:?}");
    }
}
