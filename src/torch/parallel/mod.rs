//! Describes how a pool's work is spread over ranks: what is split, who keeps what, and what moves between tapes.

#[cfg(test)]
mod filler_tests;
mod frozen;
pub mod pipeline;
mod zero;

pub use frozen::FrozenWeights;
pub use zero::Zero;
