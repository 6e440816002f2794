//! A fixture's steps by the engine's parts, on any layout of the two pools: every one gives the numbers of one process.
//!
//! Ranks of the foundation come first, those of the encoders behind them; one process alone is both. Tensors that actors send each other
//! along edges go through one process group here. No scheduler takes part.

mod layout;
mod node;
mod plan;
#[cfg(test)]
mod receipt_tests;
#[cfg(test)]
mod tests;

pub use layout::{EncoderLayout, PoolLayouts};
pub use node::{alone, on_rank};
