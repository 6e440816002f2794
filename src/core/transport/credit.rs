//! Credit of one edge: limits bytes and parcels in flight; returned when the receiver drops a parcel.

use super::credit_guard::CreditGuard;
use super::limits::MAX_PARCELS;
use super::mailbox::MailSender;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// Credit of one edge, shared by its two ends.
#[derive(Clone)]
pub struct Credit(Arc<State>);

struct State {
    capacity: usize,
    bytes: AtomicUsize,
    parcels: AtomicUsize,
    /// True if the sender was refused and waits to be woken.
    starved: AtomicBool,
    sender: MailSender,
}

impl Credit {
    /// Creates credit of `capacity` bytes; `sender` is woken when credit returns after a refusal.
    pub fn new(capacity: usize, sender: MailSender) -> Self {
        let state = State {
            capacity,
            bytes: AtomicUsize::new(0),
            parcels: AtomicUsize::new(0),
            starved: AtomicBool::new(false),
            sender,
        };
        Self(Arc::new(state))
    }

    /// Returns the whole credit in bytes, whether or not it is in use.
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Returns the bytes of parcels sent and not yet dropped.
    pub fn in_flight(&self) -> usize {
        self.0.bytes.load(SeqCst)
    }

    /// Takes credit for one parcel of `bytes`. There is only one sender, so after a refusal the available credit can only grow.
    pub fn take(&self, bytes: usize) -> Option<CreditGuard> {
        self.try_take(bytes).or_else(|| {
            // Announce first, then look again: credit that came back in between is not missed.
            self.0.starved.store(true, SeqCst);
            self.try_take(bytes).inspect(|_| self.0.starved.store(false, SeqCst))
        })
    }

    fn try_take(&self, bytes: usize) -> Option<CreditGuard> {
        let fits = self.0.bytes.load(SeqCst) + bytes <= self.0.capacity && self.0.parcels.load(SeqCst) < MAX_PARCELS;
        fits.then(|| {
            self.0.bytes.fetch_add(bytes, SeqCst);
            self.0.parcels.fetch_add(1, SeqCst);
            CreditGuard::new(Loan { credit: self.clone(), bytes })
        })
    }
}

struct Loan {
    credit: Credit,
    bytes: usize,
}

impl Drop for Loan {
    fn drop(&mut self) {
        let state = &self.credit.0;
        state.bytes.fetch_sub(self.bytes, SeqCst);
        state.parcels.fetch_sub(1, SeqCst);
        if state.starved.swap(false, SeqCst) {
            state.sender.wake();
        }
    }
}
