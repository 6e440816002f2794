//! A record of a test's thread, in order: collectives that were begun and waited for, and what the test notes itself.

use std::cell::RefCell;

thread_local! {
    static SEEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Notes something on this thread.
pub fn note(what: impl Into<String>) {
    SEEN.with_borrow_mut(|seen| seen.push(what.into()));
}

/// Returns all since the last call.
pub fn take() -> Vec<String> {
    SEEN.take()
}
