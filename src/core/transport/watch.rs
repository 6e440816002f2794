//! Decides whether a thread that waits looks again and again for a while before it sleeps. Waking a sleeping thread takes as long as
//! copying a small parcel several times; a thread that looks takes a core from whoever has something to compute.

use std::cell::Cell;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// The longest time of looking: as long as a parcel of some MiB takes to copy.
const LONGEST: Duration = Duration::from_micros(250);
/// Looks from one look at the clock to the next.
const LOOKS: u32 = 8;
/// The most waits without looking between two with it.
const MAX_SKIPPED: u32 = 511;

/// Remembers whether looking was worth it. Where the other thread needs this core, or computes for long, looking finds
/// nothing: then it is tried in ever fewer waits.
pub(super) struct Watch {
    /// Waits without looking that are still to come, and how many there are after the next look in vain.
    skip: Cell<u32>,
    penalty: Cell<u32>,
    /// The longest time of looking; zero where there is one core only.
    longest: Duration,
}

impl Default for Watch {
    fn default() -> Self {
        let has_cores = available_parallelism().is_ok_and(|cores| cores.get() > 1);
        Self::new(if has_cores { LONGEST } else { Duration::ZERO })
    }
}

impl Watch {
    fn new(longest: Duration) -> Self {
        Self { skip: Cell::new(0), penalty: Cell::new(1), longest }
    }

    /// Looks until something is found, for `timeout` at most, or not at all.
    pub fn look<T>(&self, timeout: Duration, look: impl Fn() -> Option<T>) -> Option<T> {
        let longest = self.longest.min(timeout);
        if longest.is_zero() {
            return None;
        }
        if let Some(fewer) = self.skip.get().checked_sub(1) {
            self.skip.set(fewer);
            return None;
        }
        let begin = Instant::now();
        loop {
            let found = (0..LOOKS).find_map(|_| {
                std::hint::spin_loop();
                look()
            });
            let elapsed = begin.elapsed();
            let is_late = elapsed >= longest;
            if is_late {
                self.skip.set(self.penalty.get());
                self.penalty.set((2 * self.penalty.get() + 1).min(MAX_SKIPPED));
            } else if found.is_some() {
                self.penalty.set(1);
            }
            if is_late || found.is_some() {
                return found;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_vain_become_rare_and_a_find_makes_them_frequent() {
        let mut watch = Watch::new(Duration::from_nanos(1));
        let long = Duration::from_secs(3600);
        let num_looks = |watch: &Watch, num_waits: usize, found: Option<u32>| {
            let is_looking = |_: &usize| {
                let looked = Cell::new(false);
                let look = || {
                    looked.set(true);
                    found
                };
                assert_eq!(watch.look(long, look), found.filter(|_| looked.get()));
                looked.get()
            };
            (0..num_waits).filter(is_looking).count()
        };
        assert_eq!([1, 1, 1, 3, 1].map(|num_waits| num_looks(&watch, num_waits, None)), [1, 0, 1, 0, 1]);
        let num_vain = num_looks(&watch, 2000, None);
        assert!((7..14).contains(&num_vain), "{num_vain}");
        watch.longest = long;
        let skipped = watch.skip.get() as usize;
        assert_eq!(num_looks(&watch, skipped, Some(1)), 0);
        assert_eq!(num_looks(&watch, 50, Some(1)), 50);
        assert_eq!(watch.look(Duration::ZERO, || Some(2)), None);
        assert_eq!(Watch::new(Duration::ZERO).look(long, || Some(2)), None);
    }
}
