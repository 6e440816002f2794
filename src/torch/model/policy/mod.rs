//! Robot policies: two streams of tokens with weights of their own and one attention over both (Black et al. 2024). The prefix is
//! pictures, prompt and maybe a state; the actions' stream is noised actions, which learn the velocity from actions to noise.
//!
//! 1. `config.rs` is a policy as data; which `config.json` says what is said by `family/pi.rs` and `family/smolvla.rs`.
//! 2. `layout.rs` finds the rows of a micro-batch's samples and their draws of noise.
//! 3. `embed.rs` makes the rows of both streams, `layer.rs` is a layer of both, `head.rs` what is behind the last.
//! 4. `noise.rs` is what is drawn; `record.rs` puts all on a tape with the loss; `two_streams.rs` is the foundation.
//! 5. `act.rs` makes actions of noise, with the prefix computed once.
//! 6. `tokens.rs` is the loss of tokens behind the prompt, which the prefix's stream may learn beside (knowledge insulation).
//!
//! `writing.rs` is a policy without the second stream, which writes actions as tokens.
//!
//! What policies of every build have in common: `robot.rs` says what each offers, `family.rs` makes a foundation of any, `columns.rs` is
//! what they read of samples.

mod act;
#[cfg(test)]
pub(super) mod checks;
mod columns;
mod config;
mod embed;
mod family;
pub(super) mod fixture;
mod head;
mod layer;
mod layout;
mod network;
mod noise;
mod record;
mod robot;
#[cfg(test)]
mod tests;
mod tokens;
mod two_streams;
mod writing;
pub(super) mod writing_fixture;

pub(super) use columns::{ACTIONS, STATE, WEIGHTS, action_columns, fixed_rows, state_column};
pub use config::{FrozenParts, PolicyConfig, PolicyOptions, PolicyTree, StateToken, StreamConfig, TimeUse};
pub(super) use family::{Architecture, PolicyFamily, PolicyModel, PolicyNetwork};
pub(super) use noise::{Noise, shares, times_of};
pub use robot::{Acting, ActionChunk, Denoising, Observed, RobotPolicy};
pub use writing::{WritingFamily, WritingSizes};
