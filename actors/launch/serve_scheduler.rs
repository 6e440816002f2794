//! The scheduler's process: gathers the run, or finds it again, and conducts it.

use super::children::{Children, Start};
use super::edges::at_port;
use super::join::{
    Down, JoinError, JoinRequest, JoinServer, Member, ReconnectRegistry, Roster, Terms, gather, link_again, remote_link,
};
use super::net::Listener;
use super::take_over::{Kept, hear_again};
use super::{Meeting, RunError, RunSpec};
use crate::journal::Record;
use crate::kernel::{Change, Link, RunActors, in_system, run_actors};
use crate::scheduler::{Observer, Scheduler};
use loongforge_core::config::Address;
use loongforge_core::message::{ActorId, PoolName};
use loongforge_core::schedule::{Coordinator, Outcome};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// Sets how long the scheduler waits for its last words to be heard.
const FAREWELL: Duration = Duration::from_secs(2);

/// The time after which a process whose Unix socket has ended counts as dead.
const UNIX_ENDED: Duration = Duration::from_millis(20);

/// Listens, waits for every actor of the run, and conducts it. With `children`, starts their processes too. With a journal
/// of a scheduler that has died, waits for its actors to come back, and goes on.
///
/// # Errors
/// The address is in use, actors are missing, or the first cause of the run's end.
pub fn serve_scheduler(
    mut spec: RunSpec,
    meeting: Meeting,
    children: Option<Start>,
    observer: Box<dyn Observer>,
) -> Result<Outcome, RunError> {
    let queue = spec.queue();
    let folder = super::in_process::rendezvous()?;
    let kept = Kept::open(meeting.journal.as_ref(), &meeting.config)?;
    let mut rendezvous: PathBuf = meeting.store.map_or_else(|| folder.path().into(), at_port);
    if let Some(past) = &kept.past {
        rendezvous = past.begin.rendezvous.clone();
        (spec.coordinator.first_step, spec.resume) = (past.begin.first_step, past.begin.resume.clone());
        spec.coordinator.state = past.begin.state.clone();
    }
    let is_unix = matches!(meeting.address, Address::Unix(_));
    let mut reading = spec.coordinator.reading();
    if let Some(past) = &kept.past {
        reading = past.reading.clone().unwrap_or(reading);
    }
    let cached = spec.coordinator.encoders.iter().filter(|pool| pool.cached).map(|pool| pool.name).collect();
    let roster = Roster {
        address: meeting.address.to_string(),
        config: meeting.config.clone(),
        pools: spec.coordinator.pools.clone(),
        credits: spec.coordinator.plan.credits,
        resume: spec.resume.clone(),
        rendezvous: rendezvous.clone(),
        products: spec.coordinator.state.products,
        queue,
        timeout: meeting.timeout,
        lease: spec.lease,
        cached,
        reading: reading.into(),
        // A Unix socket does not break by itself: its other end is gone, and may be followed by another.
        returns: (!is_unix || kept.journal.is_some()).then(ReconnectRegistry::default),
    };
    let result = in_system(async {
        let listener = Listener::bind(&meeting.address, &meeting.security).await.map_err(JoinError::from)?;
        let children = match children {
            Some(start) => Children::start(start, &roster.pools, listener.address(), kept.past.is_some()).await?,
            None => Children::default(),
        };
        let children = Rc::new(children);
        let accept = async || listener.accept().await;
        let elastic = spec.coordinator.encoders.iter().filter(|pool| pool.elastic).map(|pool| pool.name);
        let elastic: Rc<[PoolName]> = elastic.collect();
        // Held by every wire that is not at its end.
        let (open, closed) = flume::bounded(0);
        let may_leave = elastic.clone();
        let terms = move |actor: ActorId| {
            let terms = Terms::new(spec.lease, may_leave.contains(&actor.pool));
            if is_unix { Terms { ended: terms.ended.min(UNIX_ENDED), ..terms } } else { terms }
        };
        let link = {
            let (children, open, confirms) = (children.clone(), open.clone(), kept.journal.is_some());
            let terms = terms.clone();
            move |actor: ActorId, member: Member| {
                let member = Member { confirms, ..member };
                remote_link(member, queue, terms(actor), children.joined(actor), open.clone())
            }
        };
        let (links, paths, left, scheduler): (BTreeMap<ActorId, Link>, BTreeMap<ActorId, PathBuf>, _, _) =
            match (&kept.past, &meeting.journal, &roster.returns) {
                (Some(past), Some(keep), Some(returns)) => {
                    let (scheduler, before, left) = hear_again((past, keep), spec.coordinator, observer, returns)?;
                    kept.write(&Record::Life(past.lives + 1));
                    tracing::info!("taking over from a scheduler that died, with {} actors", before.len());
                    // Given up by the one before, and maybe not ended.
                    let is_out = |actor: &ActorId| past.members.contains_key(actor) && !before.contains_key(actor);
                    for actor in children.encoders().into_iter().filter(is_out) {
                        children.forget(actor, spec.lease);
                    }
                    let again = |(actor, before)| {
                        (actor, link_again(None, before, queue, terms(actor), children.joined(actor), open.clone()))
                    };
                    let paths = past.members.iter().map(|(&actor, (_, edges))| (actor, edges.clone())).collect();
                    (before.into_iter().map(again).collect(), paths, left, scheduler)
                }
                _ => {
                    let members = tokio::select! {
                        members = gather(&accept, &roster) => members?,
                        ended = children.first_end() => return Err(ended.into()),
                        // Nothing has begun that could be saved.
                        () = spec.stop.stopped() => return Ok(Outcome::Preempted),
                    };
                    kept.begin(&meeting.config, &spec.coordinator, spec.resume.as_deref(), &rendezvous)?;
                    members.iter().for_each(|(&actor, member)| kept.write(&place(actor, member)));
                    let paths = members.iter().map(|(&actor, member)| (actor, member.edges.clone())).collect();
                    let links = members.into_iter().map(|(actor, member)| (actor, link(actor, member)));
                    (links.collect(), paths, Vec::new(), Scheduler::new(Coordinator::new(spec.coordinator), observer))
                }
            };
        drop(open);
        let cut_after = meeting.journal.as_ref().map_or(0, |keep| keep.cut_after);
        let scheduler = scheduler.with_journal(kept.journal.clone(), cut_after);
        let server = JoinServer::new(roster, paths, &elastic, |pool| children.free_index(pool));
        let (change, changes) = flume::bounded(queue);
        let how = RunActors { stop: spec.stop, stop_grace: spec.stop_grace, queue, grace: spec.grace, changes, left };
        let request = {
            let (children, server, journal) = (children.clone(), server.clone(), kept.journal.clone());
            let link = Rc::new(link);
            move |request| match request {
                JoinRequest::Join { actor, member, edges } => {
                    journal.iter().for_each(|journal| journal.borrow_mut().append(&place(actor, &member)));
                    let _ = change.try_send(Change::Join { actor, link: link(actor, member), edges });
                }
                JoinRequest::Scale { encoders: 0, answer, .. } if !children.can_start() => {
                    let reason = "it starts no processes, and the one that is to read the features is missing";
                    answer(Down::Refused { reason: reason.to_owned() });
                }
                JoinRequest::Scale { pool, encoders, answer } if !children.can_start() => {
                    let (tell, told) = flume::bounded(1);
                    let _ = change.try_send(Change::LetGo { pool, encoders, answer: tell });
                    tokio::task::spawn_local(async move {
                        let ended = || Err("the run has ended".to_owned());
                        answer(match told.recv_async().await.unwrap_or_else(|_| ended()) {
                            Ok(from) => Down::Scaling { from },
                            Err(reason) => Down::Refused { reason },
                        });
                    });
                }
                JoinRequest::Scale { pool, encoders, answer } => {
                    let here = children.encoders().into_iter().filter(|actor| actor.pool == pool).count() as u32;
                    let (reads, read) = (encoders == 0, server.reads(pool));
                    let next_index = |pool| server.next_index(pool);
                    let leaving = match reads == read {
                        true => children.scale(pool, encoders.max(1), next_index),
                        false => {
                            server.set_reads(pool, reads);
                            journal.iter().for_each(|journal| journal.borrow_mut().append(&server.reading()));
                            children.renew(pool, encoders.max(1), next_index)
                        }
                    };
                    for actor in leaving {
                        let _ = change.try_send(Change::Retire(actor));
                    }
                    answer(Down::Scaling { from: if read { 0 } else { here } });
                }
            }
        };
        let result = tokio::select! {
            result = run_actors(scheduler, links, how) => result,
            () = server.clone().open(accept, request) => unreachable!("it never ends"),
            () = children.replace(|pool| server.next_index(pool)), if !elastic.is_empty() => unreachable!("it never ends"),
        };
        children.finish().await;
        let _ = tokio::time::timeout(FAREWELL, closed.recv_async()).await;
        Ok(result?)
    });
    kept.end();
    if kept.past.is_some() {
        // Made by the process that has died; of a store there is no folder.
        let _ = std::fs::remove_dir_all(&rendezvous);
    }
    result
}

fn place(actor: ActorId, member: &Member) -> Record {
    let wire = member.wire.as_ref().map_or(0, |(number, _)| *number);
    Record::Member { actor, wire, edges: member.edges.clone() }
}
