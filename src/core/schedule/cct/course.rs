//! Simulates one micro-batch under given choices: a forward, a backward, and a queue of transfers beside them.
//!
//! Transfers run one at a time in the order in which they were requested. Computation waits if memory is short or a tensor has not
//! been fetched yet. An operation's tensors are fetched as early as memory allows with certainty.

/// Measured time and memory of one operation of a tape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Operation {
    /// Bytes that its backward reads, including its inputs.
    pub kept: u64,
    /// Bytes of its inputs, from which it can be recomputed.
    pub inputs: u64,
    /// Time of the forward, in seconds.
    pub forward: f64,
    /// Time of the backward without recomputation, in seconds.
    pub backward: f64,
    /// True if everything it keeps must stay in place.
    pub fixed: bool,
}

/// The treatment of the tensors that an operation's backward reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Choice {
    /// Keep them on the device.
    Keep,
    /// Keep the inputs and recompute the operation.
    Recompute,
    /// Offload them to the host and fetch them back.
    Offload,
    /// Offload the inputs, fetch them back and recompute the operation.
    OffloadInputs,
}

/// The link between device and host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes per second in either direction.
    pub bandwidth: f64,
    /// Latency of a transfer, in seconds.
    pub latency: f64,
}

/// The result of the choices.
#[derive(Clone, Debug, PartialEq)]
pub struct Course {
    /// For each operation, the operation before whose backward its tensors are fetched: itself, or a later one. It is the operation
    /// itself if nothing is fetched.
    pub fetch_before: Vec<usize>,
    /// Peak of bytes in memory.
    pub peak: u64,
    pub seconds: f64,
    /// Time that computation waited for transfers, in seconds.
    pub waited: f64,
}

impl Choice {
    pub const ALL: [Choice; 4] = [Choice::Keep, Choice::Recompute, Choice::Offload, Choice::OffloadInputs];

    /// Returns whether something is offloaded to the host.
    pub fn is_moved(self) -> bool {
        matches!(self, Choice::Offload | Choice::OffloadInputs)
    }

    /// Returns whether the operation is recomputed.
    pub fn is_recomputed(self) -> bool {
        matches!(self, Choice::Recompute | Choice::OffloadInputs)
    }

    /// Returns the bytes that the forward leaves, before any are offloaded.
    pub fn bytes(self, operation: &Operation) -> u64 {
        if self.is_recomputed() { operation.inputs } else { operation.kept }
    }
}

impl Link {
    fn seconds(&self, bytes: u64) -> f64 {
        self.latency + bytes as f64 / self.bandwidth
    }
}

/// The clock of computation, the queue of transfers, and the memory of both.
struct Clock {
    now: f64,
    /// The time at which the queue will have finished all requested transfers.
    queue_free: f64,
    waited: f64,
    /// Copies to the host that still occupy device memory: until when, and how many bytes.
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

    /// Waits until `bytes`, and copies in progress, fit in the budget. Returns false if they never will.
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
    /// Simulates the choices; `None` if they need more than `budget` bytes, or a link that does not exist.
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

/// Returns, for each operation, the earliest backward before which it can be fetched while every backward until its own stays
/// within the budget; `None` if one cannot.
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
