//! Tells code that waits on an engine's thread, in a collective for instance, that it waits in vain.

use crate::message::PoolName;
use crate::transport::Mailbox;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

thread_local! {
    static URGENT: RefCell<Option<Arc<AtomicU32>>> = const { RefCell::new(None) };
}

/// Begins to watch the mailbox of this thread's engine, which is of `pool`.
pub(super) fn watch(mailbox: &Mailbox, pool: PoolName) {
    URGENT.set(Some(mailbox.urgent(pool)));
}

/// Returns a count that is not 0 while this thread's engine has a command that makes it pointless to wait for other ranks
/// ([`Mailbox::urgent`]); `None` on a thread without an engine.
pub fn urgent_commands() -> Option<Arc<AtomicU32>> {
    URGENT.with_borrow(Option::clone)
}
