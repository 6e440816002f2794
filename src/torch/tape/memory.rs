//! The memory of an execution under a plan: the places of each operation's tensors, a count of their bytes, and transfers at the plan's
//! points. The plan does not change the results.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use loongforge_core::schedule::cct::{Choice, MemoryPlan, Operation};
use tch::{Device, Tensor};

use super::held::{Held, Source};
use super::transfers::Transfers;
use crate::native::{NativeError, storage};

/// The plan for each operation of a tape, and the measurements that it was made from.
pub struct TapePlan {
    pub plan: MemoryPlan,
    pub operations: Vec<Operation>,
}

/// The memory and time of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Bytes that its backward reads, its inputs among them.
    pub kept: u64,
    /// Bytes of its inputs.
    pub inputs: u64,
    /// Seconds.
    pub forward: f64,
    pub backward: f64,
    /// True if it can be neither computed again nor moved.
    pub fixed: bool,
}

enum Course {
    Planned(Rc<TapePlan>),
    /// The first micro-batches: as little as possible stays, and times are taken.
    Measuring {
        budget: u64,
    },
}

pub(super) struct Memory {
    course: Course,
    transfers: Option<Rc<Transfers>>,
    held: Vec<Option<Held>>,
    /// The operations whose tensors are on their way to the host, in order.
    leaving: VecDeque<usize>,
    choices: Vec<Choice>,
    pub measured: Vec<Measured>,
    /// The bytes of each operation that are on the device and count.
    counted: Vec<u64>,
    bytes: u64,
    peak: u64,
}

impl Memory {
    /// Follows a plan, with the transfers that it needs.
    pub fn planned(plan: Rc<TapePlan>, transfers: Option<Rc<Transfers>>) -> Memory {
        let choices = plan.plan.choices.clone();
        Memory::new(Course::Planned(plan), choices, transfers)
    }

    /// Makes the memory of an execution that measures `count` operations: all are computed again, from inputs that go to the host where
    /// they would take more than a quarter of `budget`.
    pub fn measuring(count: usize, budget: u64, transfers: Option<Rc<Transfers>>) -> Memory {
        Memory::new(Course::Measuring { budget }, vec![Choice::Recompute; count], transfers)
    }

    fn new(course: Course, choices: Vec<Choice>, transfers: Option<Rc<Transfers>>) -> Memory {
        let count = choices.len();
        Memory {
            course,
            transfers,
            held: (0..count).map(|_| None).collect(),
            leaving: VecDeque::new(),
            choices,
            measured: vec![Measured::default(); count],
            counted: vec![0; count],
            bytes: 0,
            peak: 0,
        }
    }

    /// Returns whether the execution is one that measures what a plan is made from.
    pub fn is_measuring(&self) -> bool {
        matches!(self.course, Course::Measuring { .. })
    }

    /// Returns the number of bytes held at most so far.
    pub fn peak(&self) -> u64 {
        self.peak
    }

    /// Returns the bytes held now.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether the operation is computed again in the backward. One that cannot be is not asked about.
    pub fn recomputes(&self, index: usize) -> bool {
        self.choices[index].is_recomputed()
    }

    /// Operation `index` can be neither computed again nor moved.
    pub fn fix(&mut self, index: usize) {
        self.choices[index] = Choice::Keep;
        self.measured[index].fixed = true;
    }

    /// Waits until there is room for what operation `index`, which reads `reads`, will hold. Tensors may have any shape.
    ///
    /// # Errors
    /// A transfer failed.
    pub fn prepare(&mut self, index: usize, reads: &[Tensor]) -> Result<(), NativeError> {
        let expected = match &self.course {
            Course::Planned(plan) => self.choices[index].bytes(&plan.operations[index]),
            Course::Measuring { .. } => reads.iter().map(|read| storage(read).bytes as u64).sum(),
        };
        self.make_room(expected)
    }

    /// Takes what operation `index` holds; tensors that lie in the memory of `slots` are its own. Tensors may have any shape.
    ///
    /// # Errors
    /// A transfer failed.
    pub fn hold(&mut self, index: usize, source: Source, slots: &[Tensor]) -> Result<(), NativeError> {
        let held = Held::new(source, &addresses(slots));
        let bytes = held.bytes();
        let measured = &mut self.measured[index];
        if self.choices[index].is_recomputed() {
            measured.inputs = bytes;
        } else {
            measured.kept = bytes;
        }
        self.count(index, bytes);
        self.held[index] = Some(held);
        if let Course::Measuring { budget } = self.course
            && self.bytes > budget / 4
            && self.transfers.is_some()
            && !self.measured[index].fixed
        {
            self.choices[index] = Choice::OffloadInputs;
        }
        if self.choices[index].is_moved() && bytes > 0 {
            let transfers = self.transfers.as_ref().expect("a plan that moves has transfers");
            let held = self.held[index].as_mut().expect("just put there");
            held.leave(transfers)?;
            self.leaving.push_back(index);
        }
        Ok(())
    }

    /// Begins to bring back what the plan wants back before the backward of operation `index`.
    ///
    /// # Errors
    /// A transfer failed.
    pub fn fetch(&mut self, index: usize) -> Result<(), NativeError> {
        let due: Vec<usize> = match &self.course {
            Course::Planned(plan) => {
                let before = &plan.plan.course.fetch_before;
                (0..=index).rev().filter(|&at| self.choices[at].is_moved() && before[at] == index).collect()
            }
            Course::Measuring { .. } if self.choices[index].is_moved() => vec![index],
            Course::Measuring { .. } => Vec::new(),
        };
        for at in due {
            // It may not even have left.
            self.wait_left(at)?;
            let Some(bytes) = self.held[at].as_ref().map(Held::bytes) else { continue };
            self.make_room(bytes)?;
            self.count(at, bytes);
            let (held, transfers) = (&mut self.held[at], self.transfers.as_ref().expect("it was moved"));
            let held = held.as_mut().expect("looked at above");
            held.come_back(transfers)?;
        }
        Ok(())
    }

    /// Gives back what operation `index` holds; it counts until [`Memory::release`].
    ///
    /// # Errors
    /// A transfer failed.
    pub fn take(&mut self, index: usize) -> Result<Option<Source>, NativeError> {
        let Some(mut held) = self.held[index].take() else { return Ok(None) };
        if self.choices[index].is_moved() {
            let transfers = self.transfers.as_ref().expect("it was moved");
            held.wait_back(transfers)?;
        }
        Ok(Some(held.into_source()))
    }

    /// Counts what an operation that was computed again holds now besides its inputs, whose memory is that of `slots`. Tensors may have
    /// any shape.
    pub fn recomputed(&mut self, index: usize, source: Source, slots: &[Tensor]) {
        let all = Held::new(source, &addresses(slots)).bytes();
        let measured = &mut self.measured[index];
        // The graph may hold its inputs or not; the tape does, until the graph is there.
        measured.kept = measured.kept.max(all.max(measured.inputs));
        let more = all.saturating_sub(measured.inputs);
        self.count(index, more);
    }

    /// Waits until there is room to compute operation `index` again.
    ///
    /// # Errors
    /// A transfer failed.
    pub fn prepare_again(&mut self, index: usize) -> Result<(), NativeError> {
        let more = match &self.course {
            Course::Planned(plan) => plan.operations[index].kept.saturating_sub(plan.operations[index].inputs),
            // It is not known: all that leaves is to have left.
            Course::Measuring { .. } => u64::MAX / 2,
        };
        self.make_room(more)
    }

    /// Operation `index` has had its backward: what it held is free.
    pub fn release(&mut self, index: usize) {
        self.bytes -= std::mem::take(&mut self.counted[index]);
    }

    /// Operation `index` has no backward to run: what it holds is dropped, wherever it is.
    ///
    /// # Errors
    /// A transfer failed.
    pub fn drop_held(&mut self, index: usize) -> Result<(), NativeError> {
        self.wait_left(index)?;
        self.held[index] = None;
        self.release(index);
        Ok(())
    }

    /// Returns the time, where it is measured, when the device has done what it was given.
    pub fn clock(&self, device: Device) -> Option<Instant> {
        if !self.is_measuring() {
            return None;
        }
        if let Device::Cuda(index) = device {
            tch::Cuda::synchronize(index as i64);
        }
        Some(Instant::now())
    }

    fn count(&mut self, index: usize, bytes: u64) {
        self.counted[index] += bytes;
        self.bytes += bytes;
        self.peak = self.peak.max(self.bytes);
    }

    /// Waits for what is leaving while `more` bytes would be too many; what has left is counted off in any case.
    fn make_room(&mut self, more: u64) -> Result<(), NativeError> {
        let budget = match &self.course {
            Course::Planned(plan) => plan.plan.budget,
            Course::Measuring { budget } => *budget,
        };
        while let Some(&first) = self.leaving.front() {
            let has_left = self.held[first].as_ref().is_none_or(Held::has_left);
            if !has_left && self.bytes + more <= budget {
                return Ok(());
            }
            self.wait_left(first)?;
        }
        Ok(())
    }

    /// Waits until operation `index`, and all before it in the queue, have left.
    fn wait_left(&mut self, index: usize) -> Result<(), NativeError> {
        if !self.leaving.contains(&index) {
            return Ok(());
        }
        while let Some(first) = self.leaving.pop_front() {
            if let Some(held) = &mut self.held[first] {
                held.wait_left()?;
                self.bytes -= std::mem::take(&mut self.counted[first]);
            }
            if first == index {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn addresses(slots: &[Tensor]) -> Vec<i64> {
    slots.iter().map(|slot| storage(slot).address).collect()
}
