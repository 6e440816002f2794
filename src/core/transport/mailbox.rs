//! The one queue of an engine thread: commands, parcels, returned credit and lost peers.
//!
//! One queue, so that the thread can sleep on one thing. It is bounded and never full: each edge into it may have
//! `MAX_PARCELS` in flight, and the scheduler keeps the number of unanswered commands below `scheduler.queue`.

use super::credit::MAX_PARCELS;
use super::parcel::Parcel;
use crate::message::{ActorId, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// What wakes an engine.
#[derive(Debug)]
pub enum Mail {
    Command(Command),
    Parcel {
        from: ActorId,
        parcel: Parcel,
    },
    /// A refused send may be tried again.
    Credit,
    /// A peer's end of an edge closed.
    Gone {
        peer: ActorId,
        reason: String,
    },
}

/// The receiving end, owned by the engine's thread.
pub struct Mailbox {
    receiver: flume::Receiver<Mail>,
    sender: MailSender,
}

/// The sending end: cloned to the actor shell, to edges and to their pumps.
#[derive(Clone)]
pub struct MailSender {
    queue: flume::Sender<Mail>,
    credit_waiting: Arc<AtomicBool>,
}

impl Mailbox {
    /// For an engine with `num_edges` incoming edges and at most `queue` unanswered commands.
    pub fn new(num_edges: usize, queue: usize) -> Self {
        // Each edge may bring its parcels and one `Gone`; one `Credit` is ever queued at a time.
        let (queue, receiver) = flume::bounded(num_edges * (MAX_PARCELS + 1) + queue + 1);
        Self { receiver, sender: MailSender { queue, credit_waiting: Arc::default() } }
    }

    pub fn sender(&self) -> MailSender {
        self.sender.clone()
    }

    pub fn try_recv(&self) -> Option<Mail> {
        self.receiver.try_recv().ok().inspect(|mail| self.taken(mail))
    }

    /// Waits for mail; `None` after `timeout`.
    pub fn recv_timeout(&self, timeout: Duration) -> Option<Mail> {
        self.receiver.recv_timeout(timeout).ok().inspect(|mail| self.taken(mail))
    }

    fn taken(&self, mail: &Mail) {
        if matches!(mail, Mail::Credit) {
            self.sender.credit_waiting.store(false, SeqCst);
        }
    }
}

impl Drop for Mailbox {
    /// flume keeps queued messages until every sender is gone: drop them now, so that their credit returns.
    fn drop(&mut self) {
        self.receiver.drain();
    }
}

impl MailSender {
    /// Queues mail; gives it back when the engine is gone.
    ///
    /// # Panics
    /// The queue is full: somebody sent without credit, which is a bug of ours.
    #[allow(clippy::result_large_err, reason = "the mail itself comes back")]
    pub fn send(&self, mail: Mail) -> Result<(), Mail> {
        match self.queue.try_send(mail) {
            Ok(()) => Ok(()),
            Err(flume::TrySendError::Disconnected(mail)) => Err(mail),
            Err(flume::TrySendError::Full(mail)) => panic!("mailbox overrun by {mail:?}"),
        }
    }

    /// Queues a [`Mail::Credit`] unless one is waiting.
    pub fn wake(&self) {
        if !self.credit_waiting.swap(true, SeqCst) {
            // A gone engine needs no credit.
            let _ = self.send(Mail::Credit);
        }
    }
}
