//! Sharing work out evenly.
//!
//! [`balance`] shares items out to replicas that meet once a step, `sorted_rows` to replicas that meet after every
//! micro-batch, `by_deadline` shares media items out to encoders; `longest_first` is what they and packing are
//! made of.

#[cfg(test)]
mod consecutive;
mod deadline;
mod longest_first;
mod refine;
mod rows;

#[cfg(test)]
use consecutive::consecutive;
pub(super) use deadline::{Chunk, by_deadline};
pub(super) use longest_first::{Capacity, by_falling, longest_first};
pub(super) use refine::refine;
pub use refine::{balance, loads_of};
pub use rows::sorted_rows;
