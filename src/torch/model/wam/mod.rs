//! World-action models: a transformer of frames and one of actions with weights and widths of their own, joined in every layer by one
//! attention over both (FastWAM of lerobot 0.6.1). Frames learn the velocity from data to noise, and so do actions, each at a time of
//! its own; frames behind the first are never seen by actions, so that a policy acts without making any.
//!
//! 1. `config.rs` is a policy as data, with the table of what sees what; which `config.json` says what is `family/fastwam.rs`'s.
//! 2. `layout.rs` finds the rows of a micro-batch's samples in both streams; `noise.rs` is what is drawn for them.
//! 3. `stream.rs` is one stream on its parameters: Wan's blocks (`dit/wan`), whatever the width; `network.rs` has both.
//! 4. `record.rs` puts everything on a tape with both losses (`flow.rs`); `family.rs` is the foundation.
//! 5. `act.rs` makes actions of noise, with keys and values of the first frame computed once.

mod act;
mod config;
mod family;
pub(super) mod fixture;
mod flow;
mod layout;
mod network;
mod noise;
mod record;
mod stream;
#[cfg(test)]
mod tests;

pub(super) use config::RULES;
pub use config::{Flow, WamConfig};
