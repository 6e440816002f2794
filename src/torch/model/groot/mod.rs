//! GR00T N1.7 (`GR00TN17` of lerobot 0.6.1; NVIDIA's `Gr00tN1d7`) and N1.6 (`Gr00tN1d6` of Isaac-GR00T): the first layers of Qwen3-VL, or
//! of Eagle 3, read pictures and text, and a diffusion transformer learns the velocity from noise to actions of a robot, which is one of
//! several embodiments.
//!
//! 1. `config.rs` is a policy as data; which `config.json` says what is `family/groot.rs`'s.
//! 2. `layout.rs` finds which rows of a micro-batch's samples see which.
//! 3. `backbone.rs` makes states of tokens. `block.rs` is a layer of all transformers behind it.
//! 4. `context.rs` makes of states what actions see, `rows.rs` makes the rows of states and noised actions, `time.rs` their condition,
//!    `head.rs` velocities of rows.
//! 5. `network.rs` has these on their parameters; `record.rs` puts them on a tape with the loss, `flowing.rs` draws noise for it;
//!    `family.rs` is the foundation.
//! 6. `act.rs` makes actions of noise.
//! 7. `prefix.rs` is the language model as a tower, for policies whose actions alone are the foundation.

mod act;
mod backbone;
mod block;
mod config;
mod context;
mod family;
pub(super) mod fixture;
mod flowing;
mod head;
mod layout;
mod network;
mod prefix;
mod record;
mod rows;
#[cfg(test)]
mod tests;
mod time;

pub use config::{GrootConfig, TransformerSizes, Tuned};
