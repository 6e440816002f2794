//! Runs all actors in this process: an engine is a thread, an edge is a move.

use super::socket_folder::SocketFolder;
use super::topology::topology;
use super::{Assignment, EngineFactory, RunError, RunSpec};
use crate::kernel::{Link, RunActors, in_system, run_actors, spawn};
use crate::scheduler::{Observer, Scheduler};
use loongforge_core::message::{ActorId, Command};
use loongforge_core::schedule::{Coordinator, Outcome};
use loongforge_core::transport::{Edge, LocalEdge, Mailbox};
use std::collections::BTreeMap;

/// Runs until the end; every engine thread has then been joined, except one that did not stop in time. The observer is called on
/// this thread.
///
/// # Errors
/// Returns the root cause of the run's end, or a thread or folder that could not be created.
pub fn run_in_process(
    spec: RunSpec,
    make_engine: impl Fn(Assignment) -> EngineFactory,
    observer: Box<dyn Observer>,
) -> Result<Outcome, RunError> {
    let queue = spec.queue();
    let pools = &spec.coordinator.pools;
    let rendezvous = rendezvous()?;
    let reading = spec.coordinator.reading();

    let mut edges: BTreeMap<ActorId, BTreeMap<ActorId, Box<dyn Edge>>> = BTreeMap::new();
    let topology = topology(pools, spec.coordinator.plan.credits);
    let num_incoming = |actor| topology.iter().filter(|edge| edge.to == actor).count();
    let mailboxes: BTreeMap<ActorId, Mailbox> =
        pools.actors().map(|actor| (actor, Mailbox::new(num_incoming(actor), queue))).collect();
    for edge in &topology {
        let (sender, receiver) = (mailboxes[&edge.from].sender(), mailboxes[&edge.to].sender());
        let local = LocalEdge::new(edge.from, sender, receiver, edge.credit as usize);
        edges.entry(edge.from).or_default().insert(edge.to, Box::new(local));
    }

    let mut links: BTreeMap<ActorId, Link> = BTreeMap::new();
    for (me, mailbox) in mailboxes {
        let (resume, products) = (spec.resume.clone(), spec.coordinator.state.products);
        let build = make_engine(Assignment {
            me,
            pools: pools.clone(),
            resume,
            rendezvous: rendezvous.path().into(),
            products,
            reads: reading.contains(&me.pool),
        });
        let link = spawn(me, build, mailbox, edges.remove(&me).unwrap_or_default(), queue, None);
        match link {
            Ok(link) => drop(links.insert(me, link)),
            Err(source) => {
                links.values().for_each(|link| link.commands.send(Command::Stop));
                return Err(RunError::Start { what: format!("the thread of {me}"), source });
            }
        }
    }
    let scheduler = Scheduler::new(Coordinator::new(spec.coordinator), observer);
    // Nobody can come to a run in one process.
    let (_, changes) = flume::bounded(1);
    let how =
        RunActors { stop: spec.stop, stop_grace: spec.stop_grace, queue, grace: spec.grace, changes, left: Vec::new() };
    Ok(in_system(run_actors(scheduler, links, how))?)
}

/// Creates a temporary folder for this run only, open to this user only.
pub(super) fn rendezvous() -> Result<SocketFolder, RunError> {
    SocketFolder::new().map_err(|source| RunError::Start { what: "a folder for the run".into(), source })
}
