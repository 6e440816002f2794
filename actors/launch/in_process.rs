//! Runs all actors in this process: an engine is a thread, an edge is a move.

use super::topology::topology;
use super::{Assignment, EngineFactory, RunError, RunSpec};
use crate::kernel::{Link, RunActors, in_system, run_actors, spawn};
use crate::scheduler::{Observer, Scheduler};
use loongforge_core::config::Address;
use loongforge_core::message::{ActorId, Command};
use loongforge_core::schedule::{Coordinator, Outcome};
use loongforge_core::transport::{Edge, LocalEdge, Mailbox};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use tempfile::TempDir;

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
pub(super) fn rendezvous() -> Result<TempDir, RunError> {
    socket_folder().map_err(|source| RunError::Start { what: "a folder for the run".into(), source })
}

/// Bytes of the names of a folder for sockets and of what is in it.
const NAMES: usize = "/loongforge-abcdef/scheduler.sock".len();

/// Creates a folder for sockets with short enough paths: in the system's temporary folder, or, if that has a long path, as on some
/// clusters, in `/tmp`.
pub(super) fn socket_folder() -> io::Result<TempDir> {
    socket_folder_in(&std::env::temp_dir())
}

fn socket_folder_in(folder: &Path) -> io::Result<TempDir> {
    let fits = folder.as_os_str().len() + NAMES <= Address::MAX_PATH;
    let folder = if fits { folder } else { Path::new("/tmp") };
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{error}; TMPDIR names another folder for it"));
    tempfile::Builder::new().prefix("loongforge-").tempdir_in(folder).map_err(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn sockets_have_short_paths_wherever_temporary_files_are() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a".repeat(100));
        std::fs::create_dir(&deep).unwrap();
        for (folder, is_in_it) in [(dir.path(), true), (&deep, false)] {
            let made = socket_folder_in(folder).unwrap();
            assert_eq!(made.path().starts_with(folder), is_in_it);
            UnixListener::bind(made.path().join("scheduler.sock")).unwrap();
        }
        let error = socket_folder_in(&dir.path().join("gone")).unwrap_err();
        assert!(error.kind() == io::ErrorKind::NotFound && error.to_string().contains("TMPDIR"), "{error}");
    }
}
