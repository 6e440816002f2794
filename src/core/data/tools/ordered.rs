//! Work on the numbers of a range by several threads, results taken in order. Bounded: no thread runs far ahead.

use crate::threads::try_spawn;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Results that may wait for an earlier one, for each thread.
const AHEAD: u64 = 8;

struct State<T> {
    /// The next number that a thread takes.
    next: u64,
    /// The next result that is taken.
    taken: u64,
    done: BTreeMap<u64, T>,
    stop: bool,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the others when its thread ends, also by a panic.
struct Stop<'a, T>(&'a Shared<T>);

impl<T> Drop for Stop<'_, T> {
    fn drop(&mut self) {
        self.0.lock().stop = true;
        self.0.changed.notify_all();
    }
}

/// Calls `work` for every number of `range` on `jobs` threads and `take` with the results, in order, on this one.
/// The first error of `take` ends it all. With one job, or where the system gives no thread, everything happens on this one.
///
/// # Panics
/// `work` panics.
pub fn for_each_ordered<T: Send, E>(
    jobs: usize,
    range: Range<u64>,
    work: impl Fn(u64) -> T + Sync,
    mut take: impl FnMut(u64, T) -> Result<(), E>,
) -> Result<(), E> {
    if jobs <= 1 || range.end.saturating_sub(range.start) <= 1 {
        return range.into_iter().try_for_each(|index| take(index, work(index)));
    }
    let state = State { next: range.start, taken: range.start, done: BTreeMap::new(), stop: false };
    let shared = Shared { state: Mutex::new(state), changed: Condvar::new() };
    let window = AHEAD * jobs as u64;
    std::thread::scope(|scope| {
        for job in 0..jobs {
            let thread = try_spawn(scope, || {
                // Dropped by a panic of `work` only.
                let guard = Stop(&shared);
                loop {
                    let mut state = shared.lock();
                    while !state.stop && state.next < range.end && state.next >= state.taken + window {
                        state = shared.wait(state);
                    }
                    if state.stop || state.next >= range.end {
                        break;
                    }
                    let index = state.next;
                    state.next += 1;
                    drop(state);
                    let result = work(index);
                    shared.lock().done.insert(index, result);
                    shared.changed.notify_all();
                }
                std::mem::forget(guard);
            });
            match thread {
                Some(_) => {}
                None if job == 0 => return range.clone().try_for_each(|index| take(index, work(index))),
                None => break,
            }
        }
        let _stop = Stop(&shared);
        for index in range.clone() {
            let mut state = shared.lock();
            let result = loop {
                if let Some(result) = state.done.remove(&index) {
                    break result;
                }
                if state.stop {
                    // A thread panicked: the scope passes that on.
                    return Ok(());
                }
                state = shared.wait(state);
            };
            state.taken = index + 1;
            drop(state);
            shared.changed.notify_all();
            take(index, result)?;
        }
        Ok(())
    })
}

/// Returns the number of threads that the machine has cores for.
pub fn default_jobs() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn results_come_in_order_whatever_the_threads() {
        for jobs in [1, 2, 5] {
            let mut seen = Vec::new();
            let uneven = |index: u64| (0..index % 7 * 1000).fold(index, |sum, value| sum ^ value) ^ index;
            let all = for_each_ordered(jobs, 3..400, uneven, |index, result| {
                seen.push((index, result));
                Ok::<(), ()>(())
            });
            assert_eq!(all, Ok(()));
            assert_eq!(seen, (3..400).map(|index| (index, uneven(index))).collect::<Vec<_>>(), "{jobs} jobs");
        }
        crate::threads::REFUSES.set(true);
        let mut seen = Vec::new();
        let all = for_each_ordered(
            2,
            0..4,
            |index| index,
            |_, result| {
                seen.push(result);
                Ok::<(), ()>(())
            },
        );
        assert_eq!((all, seen), (Ok(()), vec![0, 1, 2, 3]), "no thread can be had");
    }

    #[test]
    fn an_error_ends_it_and_nobody_runs_far_ahead() {
        let furthest = AtomicU64::new(0);
        let work = |index: u64| furthest.fetch_max(index, Ordering::SeqCst);
        let end = for_each_ordered(3, 0..1_000_000, work, |index, _| if index == 10 { Err(index) } else { Ok(()) });
        assert_eq!(end, Err(10));
        assert!(furthest.into_inner() <= 10 + 3 * AHEAD + 3);
        assert_eq!(for_each_ordered(3, 5..5, |index| index, |_, _| Err(())), Ok(()));
    }

    #[test]
    #[should_panic(expected = "scoped thread panicked")]
    fn a_panic_is_passed_on() {
        let work = |index: u64| assert!(index < 20, "our own bug");
        let _ = for_each_ordered(2, 0..1000, work, |_, ()| Ok::<(), ()>(()));
    }
}
