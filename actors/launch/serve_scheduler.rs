//! The scheduler's process: gathers the run's actors, or takes over, and runs it.

use super::children::{Children, Start};
use super::inlet::at_port;
use super::join::{JoinError, JoinServer, ReconnectRegistry, Roster, gather};
use super::net::Listener;
use super::requests::{Requests, place};
use super::socket_folder::hold;
use super::take_over::{RunJournal, Successor, replay};
use super::wires::Wires;
use super::{Meeting, RunError, RunSpec};
use crate::effect::Effect;
use crate::journal::{Record, RecoveredRun};
use crate::kernel::{Link, RunActors, in_system, run_actors};
use crate::scheduler::{Observer, Scheduler};
use loongforge_core::config::Address;
use loongforge_core::message::{ActorId, PoolName};
use loongforge_core::schedule::{Coordinator, Outcome};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// The time that the scheduler waits until its last messages are received.
const FAREWELL: Duration = Duration::from_secs(2);

/// A run whose actors are all there.
struct Begun {
    scheduler: Scheduler,
    links: BTreeMap<ActorId, Link>,
    /// The path at which each actor listens for edges.
    paths: BTreeMap<ActorId, PathBuf>,
    /// Effects that a scheduler which died still had to carry out.
    left: Vec<Effect>,
}

/// Listens, waits for every actor of the run, and runs it. With `children`, also starts their processes. With the journal of a
/// scheduler that died, waits for its actors to return, and continues.
///
/// # Errors
/// Fails if the address is in use or actors are missing; otherwise returns the root cause of the run's end.
pub fn serve_scheduler(
    mut spec: RunSpec,
    meeting: Meeting,
    children: Option<Start>,
    observer: Box<dyn Observer>,
) -> Result<Outcome, RunError> {
    let journal = RunJournal::open(meeting.journal.as_ref(), &meeting.config)?;
    // Who makes a folder removes those that no process needs.
    let held = journal.past.as_ref().and_then(|past| hold(&past.begin.rendezvous));
    let folder = super::in_process::rendezvous().inspect_err(|_| {
        if journal.past.is_none() {
            journal.end();
        }
    })?;
    let rendezvous = match &journal.past {
        Some(past) => {
            (spec.coordinator.first_step, spec.resume) = (past.begin.first_step, past.begin.resume.clone());
            spec.coordinator.state = past.begin.state.clone();
            spec.coordinator.is_kept = past.begin.is_kept;
            past.begin.rendezvous.clone()
        }
        None => meeting.store.map_or_else(|| folder.path().into(), at_port),
    };
    let roster = roster(&spec, &meeting, &journal, &rendezvous);
    let result = in_system(conduct(spec, &meeting, &journal, roster, children, observer));
    journal.end();
    if journal.past.is_some() {
        // Made by the process that has died; of a store there is no folder.
        let _ = std::fs::remove_dir_all(&rendezvous);
    }
    drop(held);
    result
}

fn roster(spec: &RunSpec, meeting: &Meeting, journal: &RunJournal, rendezvous: &Path) -> Roster {
    let reading = journal.past.as_ref().and_then(|past| past.reading.clone());
    let cached = spec.coordinator.encoders.iter().filter(|pool| pool.cached).map(|pool| pool.name).collect();
    Roster {
        address: meeting.address.to_string(),
        config: meeting.config.clone(),
        pools: spec.coordinator.pools.clone(),
        credits: spec.coordinator.plan.credits,
        resume: spec.resume.clone(),
        rendezvous: rendezvous.to_owned(),
        products: spec.coordinator.state.products,
        queue: spec.queue(),
        timeout: meeting.timeout,
        lease: spec.lease,
        cached,
        reading: reading.unwrap_or_else(|| spec.coordinator.reading()).into(),
        // A Unix socket does not break by itself: its other end is gone, and may be followed by another.
        returns: (!is_unix(meeting) || journal.file.is_some()).then(ReconnectRegistry::default),
    }
}

fn is_unix(meeting: &Meeting) -> bool {
    matches!(meeting.address, Address::Unix(_))
}

/// Carries the run from its first actor to its end.
async fn conduct(
    spec: RunSpec,
    meeting: &Meeting,
    journal: &RunJournal,
    roster: Roster,
    children: Option<Start>,
    observer: Box<dyn Observer>,
) -> Result<Outcome, RunError> {
    let RunSpec { coordinator, resume, stop, stop_grace, grace, lease, .. } = spec;
    let listener = Listener::bind(&meeting.address, &meeting.security).await.map_err(JoinError::from)?;
    let children = Rc::new(match children {
        Some(start) => Children::start(start, &roster.pools, listener.address(), journal.past.is_some()).await?,
        None => Children::default(),
    });
    let accept = async || listener.accept().await;
    let elastic = coordinator.encoders.iter().filter(|pool| pool.elastic).map(|pool| pool.name);
    let elastic: Rc<[PoolName]> = elastic.collect();
    let queue = roster.queue;
    let (open, closed) = flume::bounded(0);
    let wires = Wires {
        is_unix: is_unix(meeting),
        lease,
        elastic: elastic.clone(),
        queue,
        children: children.clone(),
        open,
        confirms: journal.file.is_some(),
    };
    let Begun { scheduler, links, paths, left } = match (&journal.past, &meeting.journal, &roster.returns) {
        (Some(past), Some(spec), Some(returns)) => {
            take_over(replay(past, spec, coordinator, observer, returns)?, past, journal, &wires)
        }
        _ => {
            let members = tokio::select! {
                members = gather(&accept, &roster) => members?,
                ended = children.first_end() => return Err(ended.into()),
                // Nothing has begun that could be saved.
                () = stop.stopped() => return Ok(Outcome::Preempted),
            };
            journal.begin(&meeting.config, &coordinator, resume.as_deref(), &roster.rendezvous);
            members.iter().for_each(|(&actor, member)| journal.write(&place(actor, member)));
            Begun {
                scheduler: Scheduler::new(Coordinator::new(coordinator), observer),
                paths: members.iter().map(|(&actor, member)| (actor, member.edges.clone())).collect(),
                links: members.into_iter().map(|(actor, member)| (actor, wires.link(actor, member))).collect(),
                left: Vec::new(),
            }
        }
    };
    let cut_after = meeting.journal.as_ref().map_or(0, |spec| spec.cut_after);
    let scheduler = scheduler.with_journal(journal.file.clone(), cut_after);
    let server = JoinServer::new(roster, paths, &elastic, |pool| children.free_index(pool));
    let (change, changes) = flume::bounded(queue);
    let actors = RunActors { stop, stop_grace, queue, grace, changes, left };
    // It has the wires, and ends with the server: then only wires that are not at their end keep `closed` waiting.
    let requests = Rc::new(Requests {
        children: children.clone(),
        server: server.clone(),
        journal: journal.file.clone(),
        wires,
        change,
    });
    let result = tokio::select! {
        result = run_actors(scheduler, links, actors) => result,
        () = server.clone().open(accept, move |request| requests.take(request)) => unreachable!("it never ends"),
        () = children.replace(|pool| server.next_index(pool)), if !elastic.is_empty() => unreachable!("it never ends"),
    };
    children.finish().await;
    let _ = tokio::time::timeout(FAREWELL, closed.recv_async()).await;
    Ok(result?)
}

/// Goes on with the actors of the scheduler that has died; those that it has given up are left out.
fn take_over(successor: Successor, past: &RecoveredRun, journal: &RunJournal, wires: &Wires) -> Begun {
    let (scheduler, before, left) = successor;
    journal.write(&Record::Life(past.lives + 1));
    tracing::info!("taking over from a scheduler that died, with {} actors", before.len());
    // The one before was asked for fewer encoders: nobody follows those that have not left yet.
    scheduler.leaving().into_iter().for_each(|actor| wires.children.leaves(actor));
    // Given up by the one before, and maybe not ended.
    let is_out = |actor: &ActorId| past.members.contains_key(actor) && !before.contains_key(actor);
    for actor in wires.children.encoders().into_iter().filter(is_out) {
        wires.children.forget(actor, wires.lease);
    }
    let paths = past.members.iter().map(|(&actor, (_, edges))| (actor, edges.clone())).collect();
    let links = before.into_iter().map(|(actor, before)| (actor, wires.link_again(actor, before))).collect();
    Begun { scheduler, links, paths, left }
}
