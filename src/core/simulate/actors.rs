//! The states of the simulated actors.

use crate::message::SampleMeta;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// A data actor.
#[derive(Default)]
pub(super) struct DataActor {
    pub windows: VecDeque<(u64, u64)>,
    /// The measured samples of the first window.
    pub measured: Vec<SampleMeta>,
    /// Next position of the first window.
    pub next: Option<u64>,
    /// Steps whose parcels are to be sent, and how many of them were.
    pub plans: VecDeque<(u64, usize)>,
}

/// One parcel that a plan asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sending {
    /// Pixels of a unit; otherwise tokens of a pack.
    pub is_pixels: bool,
    pub index: u32,
    /// Encoder; of tokens a replica.
    pub to: u32,
    pub bytes: u64,
}

/// An encoder.
#[derive(Default)]
pub(super) struct Encoder {
    pub is_trained: bool,
    /// Seconds that it pays once a step.
    pub per_step: f64,
    /// Units whose pixels are there and whose turn it is, by step.
    pub ready: BinaryHeap<Reverse<(u64, u32)>>,
    /// Units of the step being computed whose gradient is there and whose lane's turn it is.
    pub returned: BinaryHeap<Reverse<u32>>,
}

impl Encoder {
    /// Creates an idle encoder.
    pub fn new(is_trained: bool, per_step: f64) -> Self {
        Self { is_trained, per_step, ..Self::default() }
    }
}

/// One rank of a replica. Counts are over the whole run, as packs come in order.
#[derive(Clone, Copy, Default)]
pub(super) struct Stage {
    pub replica: u32,
    pub stage: u32,
    /// Packs of the steps before.
    pub before: u64,
    pub forwards: u64,
    pub backwards: u64,
    /// Packs that the stage before has passed on, and the stage after has given back.
    pub passed_on: u64,
    pub given_back: u64,
}

impl Stage {
    /// Creates an idle stage of a replica.
    pub fn new(replica: u32, stage: u32) -> Self {
        Self { replica, stage, ..Self::default() }
    }

    /// Returns the pack that goes forward next, of those of its step.
    pub fn next_forward(&self, packs: &[u32]) -> Option<u32> {
        packs.get((self.forwards - self.before) as usize).copied()
    }

    /// Returns whether 1F1B has a forward next.
    pub fn goes_forward(&self, end: u64, num_stages: u32) -> bool {
        let after = u64::from(num_stages - self.stage - 1);
        self.forwards < end && self.forwards - self.backwards <= after
    }
}
