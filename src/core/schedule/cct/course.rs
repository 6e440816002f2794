//! The course of one micro-batch under given choices: a forward, a backward, and a queue of transfers beside them.
//!
//! Transfers go one at a time in the order in which they were asked for. Whoever computes waits where memory lacks or
//! where something is not back yet. An operation is brought back as early as memory allows for certain.

/// Holds what one operation of a tape takes, as measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Operation {
    /// Bytes that its backward reads, its inputs among them.
    pub kept: u64,
    /// Bytes of its inputs, from which it can be computed again.
    pub inputs: u64,
    /// Seconds of the forward.
    pub forward: f64,
    /// Seconds of the backward, without computing anything again.
    pub backward: f64,
    /// True if nothing can be done but keep what it keeps.
    pub fixed: bool,
}

/// Says what becomes of what an operation's backward reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Choice {
    /// It stays.
    Keep,
    /// The inputs stay, and the operation is computed again.
    Recompute,
    /// It goes to the host and comes back.
    Offload,
    /// The inputs go to the host and come back, and the operation is computed again.
    OffloadInputs,
}

/// Between device and host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes a second, in either direction.
    pub bandwidth: f64,
    /// Seconds that a transfer takes besides.
    pub latency: f64,
}

/// Holds what choices lead to.
#[derive(Clone, Debug, PartialEq)]
pub struct Course {
    /// For each operation the one before whose backward it is asked back: itself, or a later one. Itself where it stays.
    pub fetch_before: Vec<usize>,
    /// The most bytes held at once.
    pub peak: u64,
    pub seconds: f64,
    /// Seconds during which transfers made the computation wait.
    pub waited: f64,
}

impl Choice {
    pub const ALL: [Choice; 4] = [Choice::Keep, Choice::Recompute, Choice::Offload, Choice::OffloadInputs];

    /// Returns whether something goes to the host.
    pub fn is_moved(self) -> bool {
        matches!(self, Choice::Offload | Choice::OffloadInputs)
    }

    /// Returns whether the operation is computed twice.
    pub fn is_recomputed(self) -> bool {
        matches!(self, Choice::Recompute | Choice::OffloadInputs)
    }

    /// Bytes that the forward leaves, before any goes away.
    pub fn bytes(self, operation: &Operation) -> u64 {
        if self.is_recomputed() { operation.inputs } else { operation.kept }
    }
}

impl Link {
    fn seconds(&self, bytes: u64) -> f64 {
        self.latency + bytes as f64 / self.bandwidth
    }
}

/// The clock of whoever computes, the queue of transfers, and the memory of both.
struct Clock {
    now: f64,
    /// Tells when the queue will have done all that it was asked for.
    queue_free: f64,
    waited: f64,
    /// Copies to the host that still hold memory here: until when, and how much.
    leaving: std::collections::VecDeque<(f64, u64)>,
    leaving_bytes: u64,
    peak: u64,
}

impl Clock {
    fn wait_until(&mut self, time: f64) {
        if time > self.now {
            self.waited += time - self.now;
            self.now = time;
        }
    }

    /// Waits until `bytes`, and what is still leaving, are within the budget. False where they never will be.
    fn make_room(&mut self, bytes: u64, budget: u64) -> bool {
        while let Some(&(end, left)) = self.leaving.front() {
            if end > self.now && bytes + self.leaving_bytes <= budget {
                break;
            }
            self.wait_until(end);
            self.leaving_bytes -= left;
            self.leaving.pop_front();
        }
        self.peak = self.peak.max(bytes + self.leaving_bytes);
        bytes <= budget
    }

    fn ask(&mut self, bytes: u64, link: &Link) -> f64 {
        self.queue_free = self.queue_free.max(self.now) + link.seconds(bytes);
        self.queue_free
    }
}

impl Course {
    /// `None` where the choices need more than `budget` bytes, or a link that is not there.
    pub fn of(operations: &[Operation], choices: &[Choice], budget: u64, link: Option<&Link>) -> Option<Course> {
        let moved = choices.iter().any(|choice| choice.is_moved());
        let link = match link {
            Some(link) => *link,
            None if moved => return None,
            None => Link { bandwidth: f64::INFINITY, latency: 0.0 },
        };
        let fetch_before = fetches(operations, choices, budget)?;
        let mut clock =
            Clock { now: 0.0, queue_free: 0.0, waited: 0.0, leaving: Default::default(), leaving_bytes: 0, peak: 0 };
        // Bytes that are here, without those that leave.
        let mut held = 0;
        for (operation, choice) in operations.iter().zip(choices) {
            let bytes = choice.bytes(operation);
            if !clock.make_room(held + bytes, budget) {
                return None;
            }
            clock.now += operation.forward;
            if choice.is_moved() {
                let end = clock.ask(bytes, &link);
                clock.leaving.push_back((end, bytes));
                clock.leaving_bytes += bytes;
            } else {
                held += bytes;
            }
        }
        let mut back = vec![0.0; operations.len()];
        let mut next = operations.len();
        for at in (0..operations.len()).rev() {
            // Asked back in the order of need, as many as are due before this backward.
            while let Some(due) = (0..next).rev().find(|&index| choices[index].is_moved())
                && fetch_before[due] >= at
            {
                let bytes = choices[due].bytes(&operations[due]);
                held += bytes;
                if !clock.make_room(held, budget) {
                    return None;
                }
                back[due] = clock.ask(bytes, &link);
                next = due;
            }
            clock.wait_until(back[at]);
            let (operation, choice) = (&operations[at], choices[at]);
            let again = if choice.is_recomputed() { operation.kept.saturating_sub(operation.inputs) } else { 0 };
            if !clock.make_room(held + again, budget) {
                return None;
            }
            clock.now += operation.backward + if choice.is_recomputed() { operation.forward } else { 0.0 };
            held -= choice.bytes(operation);
        }
        Some(Course { fetch_before, peak: clock.peak, seconds: clock.now, waited: clock.waited })
    }
}

/// For each operation the earliest backward before which it can be asked back while every backward until its own keeps
/// within the budget. `None` where one cannot.
fn fetches(operations: &[Operation], choices: &[Choice], budget: u64) -> Option<Vec<usize>> {
    // Room that is left during each backward, where an operation comes back for its own only.
    let mut room = Vec::with_capacity(operations.len());
    let mut below = 0;
    for (operation, choice) in operations.iter().zip(choices) {
        let own = if choice.is_recomputed() { operation.kept.max(operation.inputs) } else { operation.kept };
        room.push(budget.checked_sub(below + own)?);
        if !choice.is_moved() {
            below += choice.bytes(operation);
        }
    }
    let mut before: Vec<usize> = (0..operations.len()).collect();
    // Those that come back sooner are asked for first.
    let mut earliest = operations.len().saturating_sub(1);
    for index in (0..operations.len()).rev().filter(|&index| choices[index].is_moved()) {
        let bytes = choices[index].bytes(&operations[index]);
        let mut at = index;
        while at < earliest && room[at + 1] >= bytes {
            at += 1;
            room[at] -= bytes;
        }
        before[index] = at;
        earliest = at;
    }
    Some(before)
}
