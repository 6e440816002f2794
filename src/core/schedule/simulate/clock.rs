//! The virtual clock: what happens next. Ties are in the order in which they were scheduled.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A queue of happenings by their time.
pub(super) struct Clock<T> {
    now: f64,
    num_scheduled: u64,
    queue: BinaryHeap<Entry<T>>,
}

struct Entry<T> {
    /// Seconds from 0 on as bits: those of non-negative floats order as the floats do.
    time: u64,
    number: u64,
    what: T,
}

impl<T> Clock<T> {
    pub fn new() -> Self {
        Self { now: 0.0, num_scheduled: 0, queue: BinaryHeap::new() }
    }

    /// Seconds since the run's beginning.
    pub fn now(&self) -> f64 {
        self.now
    }

    /// Schedules something for `time`, or for now where that is past.
    pub fn at(&mut self, time: f64, what: T) {
        let time = time.max(self.now);
        self.queue.push(Entry { time: time.to_bits(), number: self.num_scheduled, what });
        self.num_scheduled += 1;
    }

    /// When that is.
    pub fn next_time(&self) -> Option<f64> {
        self.queue.peek().map(|entry| f64::from_bits(entry.time))
    }

    /// Goes on to what happens next.
    pub fn next(&mut self) -> Option<T> {
        let entry = self.queue.pop()?;
        self.now = f64::from_bits(entry.time);
        Some(entry.what)
    }
}

impl<T> Ord for Entry<T> {
    /// The earliest is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.time, other.number).cmp(&(self.time, self.number))
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_and_ties_keep_their_order() {
        let mut clock = Clock::new();
        for (time, what) in [(2.0, 'd'), (0.5, 'a'), (1.0, 'b'), (1.0, 'c')] {
            clock.at(time, what);
        }
        assert_eq!(clock.next(), Some('a'));
        clock.at(0.1, 'x');
        let rest: String = std::iter::from_fn(|| clock.next()).collect();
        assert_eq!((rest.as_str(), clock.now()), ("xbcd", 2.0));
    }
}
