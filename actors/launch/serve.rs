//! An engine's process: joins a run and serves it.

use super::edges::{Carriers, Door, Edges, Inlet, Open, dial, rendezvous_at};
use super::join::{Down, Joined, Line, Up, Welcome, hear, join, line, say, say_loose, say_out};
use super::net::connect;
use super::{Assignment, EdgeSpec, EngineFactory, Meeting, RunError, WantedActor};
use crate::kernel::{Link, leave_to_the_scheduler, spawn};
use loongforge_core::config::Address;
use loongforge_core::message::{ActorId, Command, Event, Role};
use loongforge_core::schedule::Failure;
use loongforge_core::transport::{Edge, Mail, Mailbox, Recovery, WireSender, raw};
use std::collections::BTreeMap;
use std::time::Duration;

/// Sets how long the last words to the scheduler may take.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Joins a run as the actor `wanted` and serves it until it ends. The parent that started this process may have set its
/// place.
///
/// # Errors
/// The run could not be joined, or the engine failed or lost the scheduler.
pub fn serve_role(
    wanted: impl Into<WantedActor>,
    meeting: Meeting,
    make_engine: impl FnOnce(Assignment) -> EngineFactory,
) -> Result<(), RunError> {
    let wanted = wanted.into();
    let index = super::children::bind_to_parent()?.or(wanted.index);
    let wanted = WantedActor { index, ..wanted };
    let folder = super::in_process::rendezvous()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| RunError::Start { what: "the runtime".into(), source })?;
    runtime.block_on(async {
        leave_to_the_scheduler();
        let address = meeting.address.to_string();
        let connect = async || connect(&meeting.address, &meeting.security, Some(Role::Scheduler)).await;
        let inlet = Inlet::new(&meeting, folder.path()).await?;
        let listen = |me| inlet.open(me);
        let joined = join(connect, &address, (meeting.config.clone(), wanted), meeting.timeout, listen).await?;
        serve(joined, &meeting, make_engine).await
    })
}

async fn serve(
    joined: Joined<Door>,
    meeting: &Meeting,
    make_engine: impl FnOnce(Assignment) -> EngineFactory,
) -> Result<(), RunError> {
    let Joined { welcome, listener, sender, receiver } = joined;
    let (me, lease) = (welcome.assignment.me, welcome.lease);
    let recovery = match &meeting.address {
        Address::Unix(_) if !welcome.returns => Recovery::None,
        address => {
            let hello = |_| Up::Alive;
            Recovery::Connect(dial(address.clone(), meeting.security.clone(), Role::Scheduler, me, hello))
        }
    };
    // Without another connection to be had, silence of the scheduler is no reason to leave.
    let (sender, mut receiver, carrier) = line(raw(sender, receiver), recovery, &Line { number: welcome.wire, lease });
    tokio::spawn(carrier);
    let mailbox = Mailbox::new(welcome.producers.len(), welcome.queue);
    let mail = mailbox.sender();
    let shared = Edges { me, security: meeting.security.clone(), mail: mail.clone(), lease };
    let begun = begin(welcome, listener, mailbox, &shared, meeting, make_engine).await;
    let Begun { link, tell, carriers, _door } = match begun {
        Ok(begun) => begun,
        Err(error) => {
            let cause = match &error {
                RunError::Failed(failure) => failure.cause.clone(),
                other => other.to_string(),
            };
            leave(sender, Some(Event::Failed { error: cause, lost: None })).await;
            return Err(error);
        }
    };
    let commands = link.commands;
    let listen = tokio::spawn(async move {
        let reason = loop {
            match hear(&mut receiver).await {
                Ok(Some(Down::Command(Command::Connect { to, credit, path }))) => {
                    // One that is gone again is no loss: the scheduler knows.
                    match shared.connect(&path, EdgeSpec::new(me, to, credit)).await {
                        Ok((edge, carrier)) => {
                            carrier.map(tokio::spawn);
                            drop(mail.send(Mail::Edge { to, edge }));
                        }
                        Err(error) => tracing::warn!("no edge to {to}: {error}"),
                    }
                }
                Ok(Some(Down::Command(command))) => commands.send(command),
                Ok(Some(other)) => break format!("protocol violation: it sent {other:?} out of turn"),
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
                say_loose(&sender, &Up::Alive);
                continue;
            }
        };
        let Ok(event) = event else { break };
        // A scheduler that is gone is learned from the other half.
        match event {
            Event::Trace(_) => say_loose(&sender, &Up::Event(event)),
            Event::At { unit: Some(_) } => {
                say_out(&sender, &Up::Event(event)).await;
                // The engine waits for it, or has ended.
                let _ = tell.try_send(());
            }
            event => {
                say(&sender, &Up::Event(event.clone())).await;
                last = Some(event);
            }
        }
    }
    let end = (link.end)();
    carriers.finish().await;
    let failed = |cause: String| RunError::Failed(failure(me, cause));
    let (result, last_words) = match last {
        Some(Event::Stopped) => (Ok(()), None),
        Some(Event::Failed { error, .. }) => (Err(failed(error)), None),
        _ => (Err(failed(end.clone())), Some(Event::Failed { error: end, lost: None })),
    };
    leave(sender, last_words).await;
    listen.abort();
    result
}

/// An engine at work, and what it is connected by.
struct Begun {
    link: Link,
    /// The engine is told that its words have left the process.
    tell: flume::Sender<()>,
    carriers: Carriers,
    _door: Open,
}

/// Makes the edges of a member, then its engine.
///
/// # Errors
/// An edge cannot be made, or the system gives no thread.
async fn begin(
    welcome: Welcome,
    listener: Door,
    mailbox: Mailbox,
    shared: &Edges,
    meeting: &Meeting,
    make_engine: impl FnOnce(Assignment) -> EngineFactory,
) -> Result<Begun, RunError> {
    let me = shared.me;
    let failed = |cause: String| RunError::Failed(failure(me, cause));
    let mut edges: BTreeMap<ActorId, Box<dyn Edge>> = BTreeMap::new();
    let mut carriers = Carriers::new(shared.clone());
    for (edge, path) in &welcome.edges {
        let (made, carrier) = shared.connect(path, *edge).await.map_err(failed)?;
        edges.insert(edge.to, made);
        carriers.carry(carrier);
    }
    // Everyone connects before accepting, and connecting waits for nobody.
    carriers.accept(&listener, &welcome.producers, Duration::from_secs(60)).await.map_err(failed)?;
    let _door =
        carriers.keep_open(listener).map_err(|source| RunError::Start { what: format!("the door of {me}"), source })?;

    let mut assignment = welcome.assignment;
    if let Some(rendezvous) = rendezvous_at(&assignment.rendezvous, &meeting.address) {
        let rendezvous = rendezvous.map_err(|source| RunError::Start { what: "edges between hosts".into(), source })?;
        assignment.rendezvous = rendezvous;
    }
    let build = make_engine(assignment);
    let (tell, told) = flume::bounded(1);
    let link = spawn(me, build, mailbox, edges, welcome.queue, Some(told))
        .map_err(|source| RunError::Start { what: format!("the thread of {me}"), source })?;
    Ok(Begun { link, tell, carriers, _door })
}

/// Says farewell. A scheduler that is gone needs no last words.
async fn leave(sender: WireSender, last_words: Option<Event>) {
    if let Some(event) = last_words {
        say(&sender, &Up::Event(event)).await;
    }
    let _ = tokio::time::timeout(LAST_WORDS, sender.close()).await;
}

fn failure(actor: ActorId, cause: String) -> Failure {
    Failure { actor, cause, is_loss: false, is_numeric: false }
}
