//! The tape: a model's step as a list of operations over numbered slots, defined first and executed piece by piece.
//!
//! A segment reads some slots and writes others, and is its own small autograd graph whose inputs are leaves. The operations between
//! segments are explicit: residual additions, rows that other pools fill in, and later collectives, transfers and pipeline boundaries. A
//! slot's gradient is the sum over its readers, in reverse order of the tape, so the same tape gives the same bits however its execution
//! is cut up.

mod across;
mod context;
mod exchange;
mod execution;
mod held;
mod memory;
#[cfg(test)]
mod memory_tests;
mod planner;
mod record;
#[cfg(test)]
mod tests;
mod transfers;
mod turns;

pub use context::{Block, ContextShard, RowSplit, SumOverContext};
pub use execution::Execution;
pub use memory::{Measured, TapePlan};
pub use planner::MemoryPlanner;
pub use record::{Boundary, Custom, Exchange, KeyValues, Needs, ParamGrads, Policy, Slot, Tape};
pub use transfers::{Transfer, Transfers};
pub use turns::{Turn, backward_in_turns, forward_in_turns};
