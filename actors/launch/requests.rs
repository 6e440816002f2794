//! Requests to a running job: an encoder joins, or an encoder pool is scaled.

use super::children::Children;
use super::join::{Down, ENDED, JoinRequest, JoinServer, Member};
use super::wires::Wires;
use crate::journal::{Journal, Record};
use crate::kernel::Change;
use flume::TrySendError;
use loongforge_core::message::{ActorId, PoolName};
use std::cell::RefCell;
use std::rc::Rc;

type Answer = Box<dyn FnOnce(Down)>;

/// Encoders that a request without `--force` may have this machine run for each of its cores, and in any case.
const MAX_PER_CORE: usize = 4;
const MAX_ON_ANY: usize = 16;

/// Turns requests into changes of the run, and answers them.
pub(super) struct Requests {
    pub children: Rc<Children>,
    pub server: Rc<JoinServer>,
    pub journal: Option<Rc<RefCell<Journal>>>,
    pub wires: Wires,
    pub change: flume::Sender<Change>,
}

impl Requests {
    /// Handles or refuses a request of an actor or a user during the run.
    pub fn take(&self, request: JoinRequest) {
        match request {
            JoinRequest::Join { actor, member, edges } => {
                self.note(&place(actor, &member));
                self.change(Change::Join { actor, link: self.wires.link(actor, member), edges });
            }
            JoinRequest::Scale { pool, encoders, is_forced, answer } if self.children.can_start() => {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                match excess(encoders, self.children.num_places(pool), cores).filter(|_| !is_forced) {
                    Some(reason) => answer(Down::Refused { reason }),
                    None => self.scale_children(pool, encoders, answer),
                }
            }
            JoinRequest::Scale { encoders: 0, answer, .. } => {
                let reason = "the run starts no processes itself, and the process that reads the features is missing";
                answer(Down::Refused { reason: reason.to_owned() });
            }
            JoinRequest::Scale { pool, encoders, answer, .. } => self.let_go(pool, encoders, answer),
        }
    }

    /// Removes the encoders of a pool above this number: whoever started them elsewhere adds missing ones.
    fn let_go(&self, pool: PoolName, encoders: u32, answer: Answer) {
        let (tell, told) = flume::bounded(1);
        self.change(Change::LetGo { pool, encoders, answer: tell });
        tokio::task::spawn_local(async move {
            let ended = || Err(ENDED.to_owned());
            answer(match told.recv_async().await.unwrap_or_else(|_| ended()) {
                Ok(from) => Down::Scaling { pool, from },
                Err(reason) => Down::Refused { reason },
            });
        });
    }

    /// Starts or retires processes of this scheduler; a pool of 0 encoders has one that reads features.
    fn scale_children(&self, pool: PoolName, encoders: u32, answer: Answer) {
        let here = self.children.encoders().into_iter().filter(|actor| actor.pool == pool).count() as u32;
        let (reads, read) = (encoders == 0, self.server.reads(pool));
        let next_index = |pool| self.server.next_index(pool);
        let leaving = match reads == read {
            true => self.children.scale(pool, encoders.max(1), next_index),
            false => {
                self.server.set_reads(pool, reads);
                self.note(&self.server.reading());
                self.children.renew(pool, encoders.max(1), next_index)
            }
        };
        if !leaving.is_empty() {
            self.change(Change::Retire(leaving));
        }
        answer(Down::Scaling { pool, from: if read { 0 } else { here } });
    }

    /// Hands a change to the run, which takes them in their order; one that is at its end takes no more.
    fn change(&self, change: Change) {
        let Err(TrySendError::Full(change)) = self.change.try_send(change) else { return };
        let to_run = self.change.clone();
        tokio::task::spawn_local(async move { drop(to_run.send_async(change).await) });
    }

    fn note(&self, record: &Record) {
        self.journal.iter().for_each(|journal| journal.borrow_mut().append(record));
    }
}

/// Returns why a pool does not get this many encoders on a machine with so many cores, if it does not. `here`: those of the pool and of
/// others. Fewer than there are is never too many.
fn excess(encoders: u32, here: (usize, usize), cores: usize) -> Option<String> {
    let (of_pool, of_others) = here;
    let wanted = encoders as usize;
    let (total, most) = (of_others + wanted, MAX_ON_ANY.max(MAX_PER_CORE * cores));
    (wanted > of_pool && total > most).then(|| {
        format!(
            "its machine, which has {cores} cores, would run {total} encoders; at most {most} are started there: \
             start others elsewhere (`loongforge run CONFIG --role encoder --join ADDRESS`), or add `--force`"
        )
    })
}

/// Returns the record of an actor's place in the run: its wire, and the address of its incoming edges.
pub(super) fn place(actor: ActorId, member: &Member) -> Record {
    let wire = member.wire.as_ref().map_or(0, |(number, _)| *number);
    Record::Member { actor, wire, edges: member.edges.clone() }
}

#[cfg(test)]
mod tests {
    use super::super::join::Roster;
    use super::*;
    use std::collections::BTreeMap;
    use std::time::Duration;

    #[test]
    fn changes_that_come_at_once_wait_for_their_turn() {
        let (change, changes) = flume::bounded(1);
        let children: Rc<Children> = Rc::default();
        let wires = Wires {
            is_unix: true,
            lease: Duration::from_secs(1),
            elastic: Rc::from([]),
            queue: 1,
            children: children.clone(),
            open: flume::bounded(0).0,
            confirms: false,
        };
        let server = JoinServer::new(Roster::of_three(), BTreeMap::new(), &[], |_| 0);
        let requests = Requests { children, server, journal: None, wires, change };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            (0..3).for_each(|index| requests.change(Change::Retire(vec![ActorId::encoder(index)])));
            for index in 0..3 {
                let Ok(Change::Retire(actors)) = changes.recv_async().await else { panic!("it is lost") };
                assert_eq!(actors, [ActorId::encoder(index)]);
            }
        });
    }

    #[test]
    fn more_encoders_than_a_machine_has_cores_for_are_refused_unless_they_are_there() {
        let reason = excess(1000, (2, 3), 8).unwrap();
        for part in ["has 8 cores", "run 1003 encoders", "at most 32", "`--force`"] {
            assert!(reason.contains(part), "{reason}");
        }
        for (encoders, here, cores, is_refused) in [
            (16, (1, 0), 1, false),
            (17, (1, 0), 1, true),
            (16, (1, 1), 1, true),
            (32, (1, 0), 8, false),
            (33, (1, 0), 8, true),
            (40, (40, 0), 1, false),
            (20, (40, 0), 1, false),
            (0, (1, 40), 1, false),
        ] {
            assert_eq!(excess(encoders, here, cores).is_some(), is_refused, "{encoders} {here:?} {cores}");
        }
    }
}
