//! An actor's edges to other processes: shared memory on one host, parcels over sockets between hosts.
//!
//! Which of the two is each actor's choice for what comes in: it says one address. A run whose scheduler listens on a
//! Unix socket or loopback is on one host; `--no-shared-memory` says that it is not.

use super::join::{JoinError, Up};
use super::net::{Listener, Security, Stream, connect, first_message};
use super::{EdgeSpec, Meeting};
use loongforge_core::config::Address;
use loongforge_core::message::{ActorId, Role};
use loongforge_core::transport::{Edge, MailSender, SlabEdge, SlabListener, StreamEdge, frame, receive};
use std::io;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{timeout, timeout_at};

/// How long what was sent may take to be written once an engine has ended.
const FAREWELL: Duration = Duration::from_secs(2);

/// Where edges come in before it is known whose.
pub(super) enum Inlet {
    Slab(PathBuf),
    Stream(Listener),
}

/// Where edges come in.
pub(super) enum Door {
    Slab(SlabListener),
    Stream(Listener),
}

/// What writes the parcels of an edge over a socket.
pub(super) type Carrier = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What carries the edges between hosts, until the engine has ended.
pub(super) struct Carriers {
    me: ActorId,
    mail: MailSender,
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

impl Inlet {
    /// Must be called inside a runtime. `folder`: of this process alone.
    pub async fn new(meeting: &Meeting, folder: &Path) -> Result<Self, JoinError> {
        let Address::Tcp { host, port } = &meeting.address else { return Ok(Self::Slab(folder.join("edges"))) };
        if meeting.shared_memory && meeting.address.is_local() {
            return Ok(Self::Slab(folder.join("edges")));
        }
        // The address that the scheduler is reached from: nothing is sent for it.
        let mine = || {
            let unspecified = if host.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
            let socket = UdpSocket::bind(unspecified)?;
            socket.connect((&**host, *port))?;
            socket.local_addr()
        };
        let failed = |source| JoinError::Listen { address: meeting.address.to_string(), source };
        let at = Address::Tcp { host: mine().map_err(failed)?.ip().to_string(), port: 0 };
        Ok(Self::Stream(Listener::bind(&at, &meeting.security).await?))
    }

    /// The door of `me`, and the address that the others are told.
    pub fn open(self, me: ActorId) -> Result<(Door, PathBuf), JoinError> {
        match self {
            Self::Slab(path) => {
                let address = path.display().to_string();
                let bound = SlabListener::bind(&path, me).map_err(|error| io::Error::other(error.to_string()));
                let bound = bound.map_err(|source| JoinError::Listen { address, source })?;
                Ok((Door::Slab(bound), path))
            }
            Self::Stream(listener) => {
                let address = listener.address().to_string();
                Ok((Door::Stream(listener), address.into()))
            }
        }
    }
}

/// An edge from `me` to whoever has said that it listens at `path`, and what carries it, between hosts.
pub(super) async fn connect_edge(
    path: &Path,
    me: ActorId,
    edge: EdgeSpec,
    security: &Security,
    mail: &MailSender,
) -> Result<(Box<dyn Edge>, Option<Carrier>), String> {
    let credit = edge.credit as usize;
    let address: Address = path.to_string_lossy().parse()?;
    if let Address::Unix(path) = &address {
        let edge = SlabEdge::connect(path, me, edge.to, credit, mail).map_err(|error| error.to_string())?;
        return Ok((Box::new(edge), None));
    }
    let failed = |error: io::Error| format!("edge to {} at {address}: {error}", edge.to);
    let mut stream = connect(&address, security, Some(edge.to.role)).await.map_err(failed)?;
    let hello = frame(&Up::Edge { from: me, to: edge.to, credit: edge.credit }).map_err(|error| error.to_string())?;
    stream.write_all(&hello).await.map_err(failed)?;
    stream.flush().await.map_err(failed)?;
    let (edge, carrier) = StreamEdge::new(stream, edge.to, credit, mail.clone());
    Ok((Box::new(edge), Some(Box::pin(carrier))))
}

impl Carriers {
    /// Of the edges into the mailbox of `mail`, which is `me`'s.
    pub fn new(me: ActorId, mail: MailSender) -> Self {
        let (stays, here) = flume::bounded(0);
        Self { me, mail, tasks: JoinSet::new(), stays, here }
    }

    /// Runs what writes an edge's parcels.
    pub fn carry(&mut self, carrier: Option<Carrier>) {
        if let Some(carrier) = carrier {
            self.tasks.spawn(carrier);
        }
    }

    /// Waits until every one of `producers` has connected.
    pub async fn accept(&mut self, door: &Door, producers: &[ActorId], patience: Duration) -> Result<(), String> {
        let listener = match door {
            Door::Slab(listener) => {
                return listener.accept(producers, &self.mail, patience).map_err(|error| error.to_string());
            }
            Door::Stream(listener) => listener,
        };
        let deadline = tokio::time::Instant::now() + patience;
        let mut missing = producers.to_vec();
        while !missing.is_empty() {
            let names = missing.iter().map(ActorId::to_string).collect::<Vec<_>>().join(", ");
            let late = |_| format!("no connection from {names} after {} s", patience.as_secs());
            let heard = timeout_at(deadline, hear(listener, self.me)).await.map_err(late)?;
            match heard.map_err(|error| error.to_string())? {
                Some((stream, from, credit)) if missing.contains(&from) => {
                    missing.retain(|&actor| actor != from);
                    self.tasks.spawn(receive(stream, from, credit, self.mail.clone(), self.here.clone()));
                }
                Some((_, from, _)) => tracing::warn!("an edge from {from} is refused: {} does not expect it", self.me),
                None => {}
            }
        }
        Ok(())
    }

    /// From now on encoders that join may connect.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn keep_open(&mut self, door: Door) -> io::Result<Open> {
        let (me, mail, here) = (self.me, self.mail.clone(), self.here.clone());
        match door {
            Door::Slab(listener) => Open::slab(listener, mail),
            Door::Stream(listener) => {
                let task = tokio::spawn(async move {
                    while let Ok(heard) = hear(&listener, me).await {
                        if let Some((stream, from, credit)) = heard.filter(|(_, from, _)| from.role == Role::Encoder) {
                            tokio::spawn(receive(stream, from, credit, mail.clone(), here.clone()));
                        }
                    }
                });
                Ok(Open::Stream(task.abort_handle()))
            }
        }
    }

    /// The engine has ended: says farewell, for as long as somebody may hear it.
    pub async fn finish(mut self) {
        drop((self.stays, self.here));
        let _ = timeout(FAREWELL, async { while self.tasks.join_next().await.is_some() {} }).await;
    }
}

/// The next edge that comes in; `None` where somebody said something else.
async fn hear(listener: &Listener, me: ActorId) -> io::Result<Option<(Stream, ActorId, usize)>> {
    let mut stream = listener.accept().await?;
    // Whoever was let in has said it already.
    match first_message::<Up>(&mut stream).await {
        Ok(Up::Edge { from, to, credit }) if to == me && credit > 0 => Ok(Some((stream, from, credit as usize))),
        Ok(said) => {
            tracing::warn!("a connection to {me} is dropped: it said {said:?}");
            Ok(None)
        }
        Err(error) => {
            tracing::warn!("a connection to {me} is dropped: {error}");
            Ok(None)
        }
    }
}

impl Open {
    /// How long it may take to close.
    const PULSE: Duration = Duration::from_millis(100);

    /// On a thread of its own that ends with it.
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
