//! The only queue of an engine thread: commands, parcels, returned credit and lost peers.
//!
//! The thread sleeps on a single bell: local senders queue mail and ring; peers in other processes write into shared memory and
//! ring, and the engine looks there itself ([`Source`]), without a thread in between. The queue is bounded and never full: each
//! incoming edge may have `MAX_PARCELS` in flight, and the scheduler keeps the number of unanswered commands below
//! `scheduler.queue`.

use super::Edge;
use super::limits::MAX_PARCELS;
use super::parcel::Parcel;
use super::slab::Bell;
use super::watch::Watch;
use crate::message::{ActorId, Command, PoolName};
use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The interval at which a sleeping engine checks that its peers are alive.
const PULSE: Duration = Duration::from_millis(100);

/// The events that wake an engine.
pub enum Mail {
    Command(Command),
    Parcel {
        from: ActorId,
        parcel: Parcel,
    },
    /// A refused send may be retried.
    Credit,
    /// An edge to a peer that has joined.
    Edge {
        to: ActorId,
        edge: Box<dyn Edge>,
    },
    /// A peer closed its end of an edge.
    Gone {
        peer: ActorId,
        reason: String,
    },
}

impl fmt::Debug for Mail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mail::Command(command) => write!(f, "{command:?}"),
            Mail::Parcel { from, parcel } => write!(f, "{parcel:?} from {from}"),
            Mail::Credit => f.write_str("credit"),
            Mail::Edge { to, .. } => write!(f, "an edge to {to}"),
            Mail::Gone { peer, reason } => write!(f, "{peer} gone: {reason}"),
        }
    }
}

/// The receiving end, owned by the engine's thread.
pub struct Mailbox {
    receiver: flume::Receiver<Mail>,
    sender: MailSender,
    /// The time at which the peers were last checked.
    checked: Cell<Instant>,
    watch: Watch,
}

/// The sending end, cloned to the actor shell, to edges and to their pumps.
#[derive(Clone)]
pub struct MailSender {
    queue: flume::Sender<Mail>,
    shared: Arc<Shared>,
}

struct Shared {
    bell: Bell,
    credit_waiting: AtomicBool,
    /// The engine's pool, once it is known.
    pool: OnceLock<PoolName>,
    /// Number of commands in the queue that make it pointless to wait for other ranks.
    urgent: Arc<AtomicU32>,
    /// True if the engine was told to stop.
    is_stopped: AtomicBool,
    sources: Mutex<Sources>,
}

#[derive(Default)]
struct Sources {
    all: Vec<Box<dyn Source>>,
    /// The source to check first, so that all get their turn.
    next: usize,
    /// True if the mailbox is gone.
    closed: bool,
}

/// An end of an edge that rings the bell and is then checked.
pub(super) trait Source: Send {
    fn poll(&mut self) -> Option<Mail>;
    /// Checks that the peer is alive.
    fn check(&mut self);
    /// Returns whether nothing more can arrive.
    fn is_over(&self) -> bool;
}

impl Mailbox {
    /// Creates a mailbox for an engine with `num_edges` incoming edges and at most `queue` unanswered commands.
    pub fn new(num_edges: usize, queue: usize) -> Self {
        // Each edge may bring its parcels and one `Gone`; one `Credit` is ever queued at a time.
        let (queue, receiver) = flume::bounded(num_edges * (MAX_PARCELS + 1) + queue + 1);
        let shared = Shared {
            bell: Bell::new(),
            credit_waiting: AtomicBool::new(false),
            pool: OnceLock::new(),
            urgent: Arc::default(),
            is_stopped: AtomicBool::new(false),
            sources: Mutex::default(),
        };
        let sender = MailSender { queue, shared: Arc::new(shared) };
        Self { receiver, sender, checked: Cell::new(Instant::now()), watch: Watch::default() }
    }

    /// Returns another sender to this mailbox.
    pub fn sender(&self) -> MailSender {
        self.sender.clone()
    }

    /// Returns a count that is not 0 while the queue of an engine of `pool` has a command that makes it pointless to wait for other
    /// ranks in a collective: the run ends, or a member of the pool has left.
    pub fn urgent(&self, pool: PoolName) -> Arc<AtomicU32> {
        // An engine stays in its pool.
        let _ = self.sender.shared.pool.set(pool);
        self.sender.shared.urgent.clone()
    }

    /// Returns whether the engine was told to stop, whether or not it has taken the command.
    pub fn is_told_to_stop(&self) -> bool {
        self.sender.shared.is_stopped.load(SeqCst)
    }

    /// Returns available mail without waiting; queued mail comes before mail in shared memory.
    pub fn try_recv(&self) -> Option<Mail> {
        self.receiver.try_recv().ok().inspect(|mail| self.taken(mail)).or_else(|| self.sender.shared.sources().poll())
    }

    /// Waits for mail; returns `None` after `timeout`.
    pub fn recv_timeout(&self, timeout: Duration) -> Option<Mail> {
        if let Some(mail) = self.try_recv() {
            return Some(mail);
        }
        let deadline = Instant::now() + timeout;
        if let Some(mail) = self.watch.look(timeout, || self.try_recv()) {
            return Some(mail);
        }
        let shared = &self.sender.shared;
        loop {
            shared.bell.will_sleep();
            if let Some(mail) = self.try_recv() {
                shared.bell.stay();
                return Some(mail);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let pulse = PULSE.saturating_sub(self.checked.get().elapsed());
            if !left.is_zero() && !pulse.is_zero() {
                shared.bell.sleep(left.min(pulse));
                continue;
            }
            shared.bell.stay();
            if left.is_zero() {
                return None;
            }
            self.checked.set(Instant::now());
            shared.sources().all.iter_mut().for_each(|source| source.check());
        }
    }

    fn taken(&self, mail: &Mail) {
        let shared = &self.sender.shared;
        match mail {
            Mail::Credit => shared.credit_waiting.store(false, SeqCst),
            // It holds for all that follows.
            Mail::Command(Command::Stop) => {}
            mail if shared.is_urgent(mail) => {
                let _ = shared.urgent.fetch_update(SeqCst, SeqCst, |count| count.checked_sub(1));
            }
            _ => {}
        }
    }
}

impl Drop for Mailbox {
    /// Drops queued messages now, so that their credit returns: flume keeps them until every sender is gone.
    fn drop(&mut self) {
        self.receiver.drain();
        let mut sources = self.sender.shared.sources();
        sources.closed = true;
        let all = std::mem::take(&mut sources.all);
        drop(sources);
        drop(all);
    }
}

impl MailSender {
    /// Queues mail; returns it if the engine is gone.
    ///
    /// # Panics
    /// The queue is full: somebody sent without credit, which is a bug of ours.
    ///
    /// # Errors
    /// The receiver is gone: the mail comes back.
    #[allow(clippy::result_large_err, reason = "the mail itself comes back")]
    pub fn send(&self, mail: Mail) -> Result<(), Mail> {
        if self.shared.is_urgent(&mail) {
            self.shared.urgent.fetch_add(1, SeqCst);
        }
        if matches!(mail, Mail::Command(Command::Stop)) {
            self.shared.is_stopped.store(true, SeqCst);
        }
        match self.queue.try_send(mail) {
            Ok(()) => {
                self.shared.bell.ring();
                Ok(())
            }
            Err(flume::TrySendError::Disconnected(mail)) => Err(mail),
            Err(flume::TrySendError::Full(mail)) => panic!("mailbox overrun by {mail:?}"),
        }
    }

    /// Queues a [`Mail::Credit`] unless one is already waiting.
    pub fn wake(&self) {
        if !self.shared.credit_waiting.swap(true, SeqCst) {
            // A gone engine needs no credit.
            let _ = self.send(Mail::Credit);
        }
    }

    /// Returns the bell that a peer rings when it has put something where a source looks.
    pub(super) fn bell(&self) -> &Bell {
        &self.shared.bell
    }

    /// Makes the engine check `source` from now on; it is dropped if the engine is gone.
    pub(super) fn attach(&self, source: Box<dyn Source>) {
        let mut sources = self.shared.sources();
        if !sources.closed {
            sources.all.push(source);
        }
        drop(sources);
        self.shared.bell.ring();
    }
}

impl Shared {
    /// Returns whether the engine, if it waits for other ranks, may wait in vain.
    fn is_urgent(&self, mail: &Mail) -> bool {
        match mail {
            Mail::Command(Command::Stop) => true,
            Mail::Command(Command::Regroup(regroup)) => {
                !regroup.left.is_empty() && self.pool.get() == Some(&regroup.pool)
            }
            _ => false,
        }
    }

    fn sources(&self) -> std::sync::MutexGuard<'_, Sources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sources {
    fn poll(&mut self) -> Option<Mail> {
        for _ in 0..self.all.len() {
            let index = self.next % self.all.len();
            self.next = index + 1;
            if let Some(mail) = self.all[index].poll() {
                return Some(mail);
            }
        }
        self.all.retain(|source| !source.is_over());
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Epoch, Regroup, StepId};
    use std::collections::BTreeSet;

    #[test]
    fn commands_that_make_it_pointless_to_wait_for_others_are_counted_until_they_are_taken() {
        let mailbox = Mailbox::new(0, 8);
        let count = mailbox.urgent(PoolName::ENCODER);
        let regroup = |pool, left: &[u32]| {
            let (epoch, members, step) = (Epoch(1), vec![0], StepId(0));
            let (left, moved, plans) = (left.to_vec(), BTreeSet::new(), Vec::new());
            Command::Regroup(Arc::new(Regroup { pool, epoch, members, num_current: 1, left, moved, step, plans }))
        };
        let num_urgent_after = |command| {
            mailbox.sender().send(Mail::Command(command)).unwrap();
            count.load(SeqCst)
        };
        assert_eq!(num_urgent_after(regroup(PoolName::ENCODER, &[])), 0);
        assert_eq!(num_urgent_after(regroup("audio".parse().unwrap(), &[1])), 0);
        assert_eq!(num_urgent_after(regroup(PoolName::ENCODER, &[1])), 1);
        while mailbox.try_recv().is_some() {}
        assert!(count.load(SeqCst) == 0 && !mailbox.is_told_to_stop());
        assert_eq!(num_urgent_after(Command::Stop), 1);
        assert!(mailbox.try_recv().is_some() && mailbox.is_told_to_stop());
        assert_eq!(count.load(SeqCst), 1, "it holds for all that follows");
    }
}
