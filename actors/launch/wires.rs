//! Wires between the scheduler and actors in other processes: their links, and when an actor is given up.

use super::children::Children;
use super::join::{Before, Member, Terms, link_again, remote_link};
use crate::kernel::Link;
use loongforge_core::message::{ActorId, PoolName};
use std::rc::Rc;
use std::time::Duration;

/// The time after which a process whose Unix socket has ended counts as dead.
const UNIX_ENDED: Duration = Duration::from_millis(20);

/// Settings shared by all connections of a run.
pub(super) struct Wires {
    pub is_unix: bool,
    pub lease: Duration,
    /// Pools whose encoders the run can continue without.
    pub elastic: Rc<[PoolName]>,
    /// Capacity of every queue.
    pub queue: usize,
    pub children: Rc<Children>,
    /// Each wire holds one until it is at its end.
    pub open: flume::Sender<()>,
    /// True if messages of actors are acknowledged once they are in the journal.
    pub confirms: bool,
}

impl Wires {
    /// Returns the link to an actor that has connected.
    pub fn link(&self, actor: ActorId, member: Member) -> Link {
        let member = Member { confirms: self.confirms, ..member };
        remote_link(member, self.queue, self.terms(actor), self.children.joined(actor), self.open.clone())
    }

    /// Returns the link to an actor of a scheduler that died, which reconnects by itself.
    pub fn link_again(&self, actor: ActorId, before: Before) -> Link {
        link_again(None, before, self.queue, self.terms(actor), self.children.joined(actor), self.open.clone())
    }

    fn terms(&self, actor: ActorId) -> Terms {
        let terms = Terms::new(self.lease, self.elastic.contains(&actor.pool));
        if self.is_unix { Terms { ended: terms.ended.min(UNIX_ENDED), ..terms } } else { terms }
    }
}
