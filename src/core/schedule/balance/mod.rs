//! Load balancing.
//!
//! [`balance`] assigns items to replicas that synchronize once a step, `sorted_rows` to replicas that synchronize after every
//! micro-batch, and `by_deadline` assigns media items to encoders; they and packing build on `longest_first`.

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
