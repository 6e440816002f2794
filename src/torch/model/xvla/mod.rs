//! X-VLA (Zheng et al. 2025; `XVLAModel` of lerobot): Florence-2 reads the first picture and the prompt, and one transformer reads
//! noised actions, what Florence-2 has made of both, the other pictures, and prompts that are learned for each domain. It predicts the
//! actions themselves.
//!
//! 1. `config.rs` is a policy as data; which `config.json` says what is `family/xvla.rs`'s.
//! 2. `layout.rs` finds the rows of a micro-batch's samples in both transformers.
//! 3. `domain.rs` is a map of each domain, `actions.rs` makes rows of actions and actions of rows,
//!    `block.rs` is a block of the transformer, `network.rs` has all of them.
//! 4. `loss.rs` is the loss of an action space; `record.rs` puts everything on a tape; `family.rs` is the foundation.
//! 5. `act.rs` makes actions of one noise.

mod act;
mod actions;
mod block;
mod config;
mod domain;
mod family;
pub(super) mod fixture;
mod layout;
mod loss;
mod network;
mod record;
#[cfg(test)]
mod tests;

pub use config::{FrozenParts, XvlaConfig};
