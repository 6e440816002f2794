//! One process per actor on one host: the scheduler's process and an engine's process.

use super::children::{Children, Start};
use super::join::{Down, JoinError, Joined, Roster, Up, gather, join, remote_link, turn_away};
use super::{Assignment, EngineFactory, RunError, RunSpec};
use crate::kernel::{Conduct, Link, conduct, in_system, spawn};
use crate::scheduler::{Observer, Scheduler};
use loongforge_core::message::{ActorId, Event, Role};
use loongforge_core::schedule::{Coordinator, Failure, Outcome};
use loongforge_core::transport::{Edge, Mail, Mailbox, SlabEdge, SlabListener};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
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
    };
    in_system(async move {
        let (listener, _socket) = listen(&meeting.address)?;
        let children = match children {
            Some(start) => Children::start(start, roster.pools, &meeting.address)?,
            None => Children::default(),
        };
        let accept = async || listener.accept().await.map(|(stream, _)| stream);
        let members = tokio::select! {
            members = gather(&accept, &roster) => members?,
            ended = children.first_end() => return Err(ended.into()),
        };
        let link = |(actor, member)| (actor, remote_link(member, queue, children.exit(actor)));
        let links: BTreeMap<ActorId, Link> = members.into_iter().map(link).collect();
        let scheduler = Scheduler::new(Coordinator::new(spec.coordinator), observer);
        let how = Conduct { stop: spec.stop, stop_grace: spec.stop_grace, queue };
        let result = tokio::select! {
            result = conduct(scheduler, links, how) => result,
            () = turn_away(accept) => unreachable!("it never ends"),
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
    let failed = |cause: String| RunError::Failed(Failure { actor: me, cause });
    let mailbox = Mailbox::new(welcome.producers.len(), welcome.queue);
    let mail = mailbox.sender();
    let mut edges: BTreeMap<ActorId, Box<dyn Edge>> = BTreeMap::new();
    for (edge, path) in &welcome.edges {
        let slab = SlabEdge::connect(path, me, edge.to, edge.credit as usize, &mail);
        edges.insert(edge.to, Box::new(slab.map_err(|error| failed(error.to_string()))?));
    }
    // Everyone connects before accepting, and connecting waits for nobody.
    listener.accept(&welcome.producers, &mail, Duration::from_secs(60)).map_err(|error| failed(error.to_string()))?;

    let build = make_engine(welcome.assignment);
    let link = spawn(me, build, mailbox, edges, welcome.queue)
        .map_err(|source| RunError::Start { what: format!("the thread of {me}"), source })?;
    let commands = link.commands;
    let listen = tokio::spawn(async move {
        let reason = loop {
            match receiver.recv().await {
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
    while let Ok(event) = link.events.recv_async().await {
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
