//! Work that several threads share, where the system may give fewer threads than there are cores (`ulimit -u`, the limit of a
//! container): then the others do it.

use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Calls `work` on this thread and on `count - 1` others beside it, or as many as the system gives. `work` takes its tasks from a place
/// that all share.
///
/// # Panics
/// `work` panics.
pub fn with_threads(count: usize, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 1..count {
            if try_spawn(scope, &work).is_none() {
                break;
            }
        }
        work();
    });
}

/// Starts a thread of `scope`; `None` where the system gives none.
pub fn try_spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Option<ScopedJoinHandle<'scope, T>> {
    if is_refused() {
        return None;
    }
    Builder::new().spawn_scoped(scope, work).ok()
}

#[cfg(not(test))]
fn is_refused() -> bool {
    false
}

#[cfg(test)]
std::thread_local! {
    /// Set by tests of a system that gives this thread none.
    pub(crate) static REFUSES: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

#[cfg(test)]
fn is_refused() -> bool {
    REFUSES.get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[test]
    fn all_is_done_whatever_number_of_threads_there_is() {
        for refuses in [false, true] {
            REFUSES.set(refuses);
            let (next, sum) = (AtomicUsize::new(1), AtomicUsize::new(0));
            with_threads(4, || {
                while let at @ 1..=100 = next.fetch_add(1, Relaxed) {
                    sum.fetch_add(at, Relaxed);
                }
            });
            assert_eq!(sum.into_inner(), 5050);
        }
    }
}
