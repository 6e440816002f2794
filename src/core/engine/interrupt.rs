//! Lets an engine and the collectives that it waits for tell each other: that it waits in vain, or that one has failed.

use crate::message::PoolName;
use crate::transport::Mailbox;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

thread_local! {
    static URGENT: RefCell<Option<Arc<AtomicU32>>> = const { RefCell::new(None) };
    static HAS_LOST_RANK: Cell<bool> = const { Cell::new(false) };
}

/// Begins to watch the mailbox of this thread's engine, which is of `pool`.
pub(super) fn watch(mailbox: &Mailbox, pool: PoolName) {
    URGENT.set(Some(mailbox.urgent(pool)));
    HAS_LOST_RANK.set(false);
}

/// Returns a count that is not 0 while this thread's engine has a command that makes it pointless to wait for other ranks
/// ([`Mailbox::urgent`]); `None` on a thread without an engine.
pub fn urgent_commands() -> Option<Arc<AtomicU32>> {
    URGENT.with_borrow(Option::clone)
}

/// Records that a collective of this thread has failed: most likely another rank of the engine's pool is gone. If the engine then
/// fails, its error is a consequence.
pub fn note_failed_collective() {
    HAS_LOST_RANK.set(true);
}

/// Returns whether a collective of this thread has failed.
pub(super) fn has_lost_rank() -> bool {
    HAS_LOST_RANK.get()
}
