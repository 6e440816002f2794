//! One process per actor on one host: the scheduler's process and an engine's process.

use super::children::{Children, Start};
use super::join::{Desk, Down, JoinError, Joined, Roster, Up, Wish, gather, join, remote_link};
use super::{Assignment, EngineFactory, RunError, RunSpec};
use crate::kernel::{Change, Conduct, Link, conduct, in_system, spawn};
use crate::scheduler::{Observer, Scheduler};
use loongforge_core::message::{ActorId, Command, Event, Role};
use loongforge_core::schedule::{Coordinator, Failure, Outcome};
use loongforge_core::transport::{Edge, Mail, MailSender, Mailbox, SlabEdge, SlabListener};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};

/// How the processes of a run find each other.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// The scheduler's Unix socket.
    pub address: PathBuf,
    /// Hash of the run's configuration: all processes must have the same.
    pub config: String,
    /// `scheduler.join_timeout`.
    pub timeout: Duration,
}

/// Listens, waits for every actor of the run, and conducts it. With `children`, starts their processes too.
///
/// # Errors
/// The address is in use, actors are missing, or the first cause of the run's end.
pub fn serve_scheduler(
    spec: RunSpec,
    meeting: Meeting,
    children: Option<Start>,
    observer: Box<dyn Observer>,
) -> Result<Outcome, RunError> {
    let queue = spec.queue();
    let rendezvous = super::in_process::rendezvous()?;
    let roster = Roster {
        address: meeting.address.display().to_string(),
        config: meeting.config,
        pools: spec.coordinator.pools,
        credits: spec.coordinator.plan.credits,
        resume: spec.resume,
        rendezvous: rendezvous.path().into(),
        queue,
        timeout: meeting.timeout,
        lease: spec.lease,
    };
    in_system(async move {
        let (listener, _socket) = listen(&meeting.address)?;
        let children = match children {
            Some(start) => Children::start(start, roster.pools, &meeting.address)?,
            None => Children::default(),
        };
        let children = Rc::new(children);
        let accept = async || listener.accept().await.map(|(stream, _)| stream);
        let members = tokio::select! {
            members = gather(&accept, &roster) => members?,
            ended = children.first_end() => return Err(ended.into()),
        };
        let is_elastic = spec.coordinator.elastic && spec.coordinator.pools.encoder > 0;
        let desk = Desk::new(roster, &members, is_elastic);
        let link = {
            let children = children.clone();
            move |actor: ActorId, member| {
                // What a run cannot go on without is given more time.
                let lease = if is_elastic && actor.role == Role::Encoder { spec.lease } else { 12 * spec.lease };
                remote_link(member, queue, lease, children.process(actor))
            }
        };
        let links = members.into_iter().map(|(actor, member)| (actor, link(actor, member)));
        let links: BTreeMap<ActorId, Link> = links.collect();
        let scheduler = Scheduler::new(Coordinator::new(spec.coordinator), observer);
        let (change, changes) = flume::bounded(queue);
        let how = Conduct { stop: spec.stop, stop_grace: spec.stop_grace, queue, grace: spec.grace, changes };
        let wish = {
            let (children, desk) = (children.clone(), desk.clone());
            let link = Rc::new(link);
            move |wish| match wish {
                Wish::Join { actor, member, edges } => {
                    let _ = change.try_send(Change::Join { actor, link: link(actor, member), edges });
                }
                Wish::Scale { encoders, answer } => {
                    let members = children.encoders();
                    for actor in children.scale(encoders, &members, || desk.next_index()) {
                        let _ = change.try_send(Change::Retire(actor));
                    }
                    answer(Down::Scaling { from: members.len() as u32 });
                }
            }
        };
        let result = tokio::select! {
            result = conduct(scheduler, links, how) => result,
            () = desk.clone().open(accept, wish) => unreachable!("it never ends"),
            () = children.replace(|| desk.next_index()), if is_elastic => unreachable!("it never ends"),
        };
        children.finish().await;
        Ok(result?)
    })
}

/// Joins a run as `role` and serves it until it ends.
///
/// # Errors
/// The run could not be joined, or the engine failed or lost the scheduler.
pub fn serve_role(
    role: Role,
    meeting: Meeting,
    make_engine: impl FnOnce(Assignment) -> EngineFactory,
) -> Result<(), RunError> {
    let index = super::children::bind_to_parent()?;
    let folder = super::in_process::rendezvous()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| RunError::Start { what: "the runtime".into(), source })?;
    runtime.block_on(async {
        let address = meeting.address.display().to_string();
        let connect = async || UnixStream::connect(&meeting.address).await;
        let listen = |me| {
            let path = folder.path().join("edges");
            let bound = SlabListener::bind(&path, me).map_err(|error| io::Error::other(error.to_string()));
            let address = path.display().to_string();
            bound.map(|bound| (bound, path)).map_err(|source| JoinError::Listen { address, source })
        };
        let joined = join(connect, &address, (meeting.config, role, index), meeting.timeout, listen).await?;
        serve(joined, make_engine).await
    })
}

async fn serve(
    joined: Joined<SlabListener>,
    make_engine: impl FnOnce(Assignment) -> EngineFactory,
) -> Result<(), RunError> {
    let Joined { welcome, listener, mut sender, mut receiver } = joined;
    let me = welcome.assignment.me;
    let failed = |cause: String| RunError::Failed(Failure { actor: me, cause, is_loss: false });
    let mailbox = Mailbox::new(welcome.producers.len(), welcome.queue);
    let mail = mailbox.sender();
    let mut edges: BTreeMap<ActorId, Box<dyn Edge>> = BTreeMap::new();
    for (edge, path) in &welcome.edges {
        let slab = SlabEdge::connect(path, me, edge.to, edge.credit as usize, &mail);
        edges.insert(edge.to, Box::new(slab.map_err(|error| failed(error.to_string()))?));
    }
    // Everyone connects before accepting, and connecting waits for nobody.
    listener.accept(&welcome.producers, &mail, Duration::from_secs(60)).map_err(|error| failed(error.to_string()))?;
    let _door = Door::open(listener, mail.clone())
        .map_err(|source| RunError::Start { what: format!("the door of {me}"), source })?;
    let lease = welcome.lease;

    let build = make_engine(welcome.assignment);
    let link = spawn(me, build, mailbox, edges, welcome.queue)
        .map_err(|source| RunError::Start { what: format!("the thread of {me}"), source })?;
    let commands = link.commands;
    let listen = tokio::spawn(async move {
        let reason = loop {
            match receiver.recv().await {
                Ok(Some(Down::Command(Command::Connect { to, credit, path }))) => {
                    // One that is gone again is no loss: the scheduler knows.
                    match SlabEdge::connect(&path, me, to, credit as usize, &mail) {
                        Ok(edge) => drop(mail.send(Mail::Edge { to, edge: Box::new(edge) })),
                        Err(error) => tracing::warn!("no edge to {to}: {error}"),
                    }
                }
                Ok(Some(Down::Command(command))) => commands.send(command),
                Ok(Some(other)) => break format!("it said {other:?}, which was not its turn"),
                Ok(None) => break "its process ended".to_owned(),
                Err(error) => break error.to_string(),
            }
        };
        // An engine that is gone knows already.
        drop(mail.send(Mail::Gone { peer: ActorId::SCHEDULER, reason }));
    });
    let mut last = None;
    let mut sign = tokio::time::interval(lease / 4);
    loop {
        let event = tokio::select! {
            event = link.events.recv_async() => event,
            _ = sign.tick() => {
                let _ = sender.send(&Up::Alive).await;
                continue;
            }
        };
        let Ok(event) = event else { break };
        // A scheduler that is gone is learnt from the other half.
        let _ = sender.send(&Up::Event(event.clone())).await;
        last = Some(event);
    }
    let end = (link.end)();
    let result = match last {
        Some(Event::Stopped) => Ok(()),
        Some(Event::Failed { error, .. }) => Err(failed(error)),
        _ => {
            let _ = sender.send(&Up::Event(Event::Failed { error: end.clone(), lost: None })).await;
            Err(failed(end))
        }
    };
    let _ = sender.close().await;
    listen.abort();
    result
}

/// Lets encoders that join a run connect their edges, on a thread of its own that ends with it.
struct Door {
    closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    /// How long it may take to close.
    const PULSE: Duration = Duration::from_millis(100);

    fn open(listener: SlabListener, mail: MailSender) -> io::Result<Self> {
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
        Ok(Self { closed, thread: Some(thread) })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.closed.store(true, SeqCst);
        // It does not panic, and if it did there would be nothing left to do.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Removes the socket's file.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens at `path`, open to this user only. A file that a killed scheduler left behind is replaced.
fn listen(path: &Path) -> Result<(UnixListener, SocketFile), JoinError> {
    let address = path.display().to_string();
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => return Err(JoinError::AddressInUse { address }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => drop(std::fs::remove_file(path)),
        Err(_) => {}
    }
    let bind = || {
        let listener = UnixListener::bind(path)?;
        let file = SocketFile(path.to_owned());
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok((listener, file))
    };
    bind().map_err(|source| JoinError::Listen { address, source })
}
