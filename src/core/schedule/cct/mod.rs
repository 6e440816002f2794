//! Describes what each operation of a step leaves for its backward, under a budget of bytes: computation, communication
//! and transfer (CCT) as three queues over one tape.
//!
//! Pure: sizes and times come in as numbers, and a plan goes out. [`solve`] chooses; [`Course::of`] tells what a choice
//! takes, in time and in memory. Whatever the plan, the numbers that a step computes are the same.

mod course;
mod solve;
#[cfg(test)]
mod tests;

pub use course::{Choice, Course, Link, Operation};
pub use solve::{MemoryPlan, NoPlan, solve};
