//! Plans which activations are kept, recomputed or offloaded under a memory budget: computation, communication and transfer (CCT)
//! as three queues over one tape.
//!
//! Pure: sizes and times are the input, a plan is the output. [`solve`] chooses; [`Course::of`] computes the time and memory of a
//! choice. The plan does not change the numbers that a step computes.

mod course;
mod solve;
#[cfg(test)]
mod tests;

pub use course::{Choice, Course, Link, Operation};
pub use solve::{MemoryPlan, NoPlan, solve};
