//! One process per actor: the scheduler's process and an engine's process.

use super::children::{Children, Start};
use super::edges::{Carriers, Door, Inlet, connect_edge};
use super::join::{Desk, Down, JoinError, Joined, Roster, Up, Wish, gather, join, remote_link};
use super::net::{Listener, Security, connect};
use super::{Assignment, EdgeSpec, EngineFactory, RunError, RunSpec};
use crate::kernel::{Change, Conduct, Link, conduct, in_system, leave_to_the_scheduler, spawn};
use crate::scheduler::{Observer, Scheduler};
use loongforge_core::config::Address;
use loongforge_core::message::{ActorId, Command, Event, Role};
use loongforge_core::schedule::{Coordinator, Failure, Outcome};
use loongforge_core::transport::{Edge, Mail, Mailbox};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// How the processes of a run find each other.
#[derive(Clone)]
pub struct Meeting {
    /// Where the scheduler listens.
    pub address: Address,
    /// How the processes log in with each other.
    pub security: Security,
    /// Hash of the run's configuration: all processes must have the same.
    pub config: String,
    /// `scheduler.join_timeout`.
    pub timeout: Duration,
    /// Whether processes may share memory: they are on one host.
    pub shared_memory: bool,
    /// The place in its pool that an actor is meant for, if that matters.
    pub index: Option<u32>,
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
        address: meeting.address.to_string(),
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
        let listener = Listener::bind(&meeting.address, &meeting.security).await.map_err(JoinError::from)?;
        let children = match children {
            Some(start) => Children::start(start, roster.pools, listener.address())?,
            None => Children::default(),
        };
        let children = Rc::new(children);
        let accept = async || listener.accept().await;
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
    let index = super::children::bind_to_parent()?.or(meeting.index);
    let folder = super::in_process::rendezvous()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| RunError::Start { what: "the runtime".into(), source })?;
    runtime.block_on(async {
        leave_to_the_scheduler();
        let address = meeting.address.to_string();
        let connect = async || connect(&meeting.address, &meeting.security, Some(Role::Scheduler)).await;
        let inlet = Inlet::new(&meeting, folder.path()).await?;
        let listen = |me| inlet.open(me);
        let joined = join(connect, &address, (meeting.config.clone(), role, index), meeting.timeout, listen).await?;
        serve(joined, &meeting.security, make_engine).await
    })
}

async fn serve(
    joined: Joined<Door>,
    security: &Security,
    make_engine: impl FnOnce(Assignment) -> EngineFactory,
) -> Result<(), RunError> {
    let Joined { welcome, listener, mut sender, mut receiver } = joined;
    let me = welcome.assignment.me;
    let failed = |cause: String| RunError::Failed(Failure { actor: me, cause, is_loss: false, is_numeric: false });
    let mailbox = Mailbox::new(welcome.producers.len(), welcome.queue);
    let mail = mailbox.sender();
    let mut edges: BTreeMap<ActorId, Box<dyn Edge>> = BTreeMap::new();
    let mut carriers = Carriers::new(me, mail.clone());
    for (edge, path) in &welcome.edges {
        let (made, carrier) = connect_edge(path, me, *edge, security, &mail).await.map_err(failed)?;
        edges.insert(edge.to, made);
        carriers.carry(carrier);
    }
    // Everyone connects before accepting, and connecting waits for nobody.
    carriers.accept(&listener, &welcome.producers, Duration::from_secs(60)).await.map_err(failed)?;
    let _door =
        carriers.keep_open(listener).map_err(|source| RunError::Start { what: format!("the door of {me}"), source })?;
    let security = security.clone();
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
                    match connect_edge(&path, me, EdgeSpec::new(me, to, credit), &security, &mail).await {
                        Ok((edge, carrier)) => {
                            carrier.map(tokio::spawn);
                            drop(mail.send(Mail::Edge { to, edge }));
                        }
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
    carriers.finish().await;
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
