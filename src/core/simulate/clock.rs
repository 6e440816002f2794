//! The virtual clock: what happens next. Ties are in the order in which they were scheduled.

use super::event::{self, SimEvent};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Bits of what happens, and of the number that it has in the order of scheduling.
const WHAT: u32 = event::BITS;
const NUMBER: u32 = u64::BITS - WHAT;
/// Stretches of time that are looked at one after the other, and happenings that one of them holds, about.
const STRETCHES: usize = 512;
const PER_STRETCH: usize = 16;
/// The number of near happenings above which the stretches are set anew.
const MAX_NEAR: usize = 512;

/// Time, number and what happens in one word. Seconds from 0 on as bits: those of non-negative floats order as the floats
/// do.
type Entry = u128;

/// A queue of happenings by their time. Only the near ones are in order; the others wait in stretches of time for their turn
/// (a calendar queue: Brown 1988), so that thousands that are pending cost no more than a few.
pub(super) struct Clock {
    now: f64,
    num_scheduled: u64,
    /// Happenings of the stretches before `next`.
    near: BinaryHeap<Reverse<Entry>>,
    /// The number of near happenings above which the stretches are set anew.
    max_near: usize,
    far: Vec<Vec<Entry>>,
    num_far: usize,
    next: usize,
    /// The time at which the first stretch begins, and how long one is.
    start: f64,
    width: f64,
    /// Happenings after the last stretch.
    late: Vec<Entry>,
}

impl Clock {
    /// Creates an empty queue at time 0.
    pub fn new() -> Self {
        let far = vec![Vec::new(); STRETCHES];
        Self {
            now: 0.0,
            num_scheduled: 0,
            near: BinaryHeap::new(),
            max_near: MAX_NEAR,
            far,
            num_far: 0,
            next: 0,
            start: 0.0,
            width: 0.0,
            late: Vec::new(),
        }
    }

    /// Seconds since the run's beginning.
    pub fn now(&self) -> f64 {
        self.now
    }

    /// Schedules something for `time`, or for now where that is past.
    ///
    /// # Panics
    /// There were too many to number them.
    pub fn at(&mut self, time: f64, what: SimEvent) {
        assert!(self.num_scheduled < 1 << NUMBER, "happenings have numbers");
        let time = time.max(self.now);
        let order = self.num_scheduled << WHAT | u64::from(u32::from(what));
        self.num_scheduled += 1;
        self.put(u128::from(time.to_bits()) << u64::BITS | u128::from(order));
    }

    fn put(&mut self, entry: Entry) {
        // What is later is in no earlier stretch, however this is rounded.
        let stretch = ((time_of(entry) - self.start) / self.width) as usize;
        if stretch < self.next {
            self.near.push(Reverse(entry));
            if self.near.len() > self.max_near {
                self.cut_anew();
            }
        } else if let Some(stretch) = self.far.get_mut(stretch) {
            stretch.push(entry);
            self.num_far += 1;
        } else {
            self.late.push(entry);
        }
    }

    /// Returns the time of the next one.
    pub fn next_time(&mut self) -> Option<f64> {
        self.come_near();
        self.near.peek().map(|&Reverse(entry)| time_of(entry))
    }

    /// Returns the event that is likely to be next.
    pub fn peek(&self) -> Option<SimEvent> {
        self.near.peek().map(|&Reverse(entry)| happening_of(entry))
    }

    /// Goes on to what happens next.
    pub fn next(&mut self) -> Option<SimEvent> {
        self.come_near();
        let Reverse(entry) = self.near.pop()?;
        self.now = time_of(entry);
        Some(happening_of(entry))
    }

    /// Makes sure that the next is near, if there is any.
    fn come_near(&mut self) {
        while self.near.is_empty() {
            if self.num_far == 0 && self.late.is_empty() {
                return;
            }
            if self.num_far == 0 {
                self.begin_stretches();
            }
            let stretch = &mut self.far[self.next];
            self.num_far -= stretch.len();
            self.near.extend(stretch.drain(..).map(Reverse));
            self.next += 1;
        }
    }

    /// Makes the stretches shorter, where too much happens in one.
    fn cut_anew(&mut self) {
        self.late.extend(self.near.drain().map(|Reverse(entry)| entry));
        self.far.iter_mut().for_each(|stretch| self.late.append(stretch));
        self.num_far = 0;
        self.begin_stretches();
        self.come_near();
        // Where they happen at once nothing is shorter.
        self.max_near = MAX_NEAR.max(2 * self.near.len());
    }

    /// Stretches anew, for what was late.
    fn begin_stretches(&mut self) {
        let mut late = std::mem::take(&mut self.late);
        let first = late.iter().copied().min().unwrap_or_default();
        let middle = late.len() / 2;
        let (_, &mut median, _) = late.select_nth_unstable(middle);
        self.start = time_of(first);
        self.width = (time_of(median) - self.start) * PER_STRETCH as f64 / middle.max(1) as f64;
        (self.next, self.max_near) = (0, MAX_NEAR);
        late.drain(..).for_each(|entry| self.put(entry));
        // What is not late now goes into the same memory.
        late.append(&mut self.late);
        self.late = late;
    }
}

fn time_of(entry: Entry) -> f64 {
    f64::from_bits((entry >> u64::BITS) as u64)
}

fn happening_of(entry: Entry) -> SimEvent {
    SimEvent::from(entry as u32 & ((1 << WHAT) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn time_goes_on_and_ties_keep_their_order() {
        let mut clock = Clock::new();
        for (time, rank) in [(2.0, 4), (0.5, 1), (1.0, 9), (1.0, 3)] {
            clock.at(time, SimEvent::Done(rank));
        }
        assert_eq!(clock.next(), Some(SimEvent::Done(1)));
        clock.at(0.1, SimEvent::Mail(7));
        let rest: Vec<SimEvent> = std::iter::from_fn(|| clock.next()).collect();
        let done = [9, 3, 4].map(SimEvent::Done);
        assert_eq!((rest.as_slice(), clock.now()), ([&[SimEvent::Mail(7)], &done[..]].concat().as_slice(), 2.0));
    }

    proptest! {
        /// The events are scheduled in between, at equal times, close together and far apart; the earliest comes first, and of those at
        /// one time the first that was scheduled.
        #[test]
        fn the_earliest_is_next(
            rounds in prop::collection::vec((prop::collection::vec((0_u32..4, 0_u32..6), 0..400), 0_usize..400), 1..12),
        ) {
            let (mut clock, mut all, mut number) = (Clock::new(), Vec::new(), 0);
            for (delays, num_taken) in rounds {
                for (delay, size) in delays {
                    let time = clock.now() + f64::from(delay) * 0.01_f64.powi(size as i32);
                    clock.at(time, SimEvent::Done(number));
                    all.push((time, number));
                    number += 1;
                }
                for _ in 0..num_taken {
                    all.sort_by(|one, other| other.0.total_cmp(&one.0).then(other.1.cmp(&one.1)));
                    prop_assert_eq!(clock.next_time(), all.last().map(|&(time, _)| time));
                    prop_assert_eq!(clock.next(), all.pop().map(|(_, number)| SimEvent::Done(number)));
                }
            }
        }
    }
}
