//! The protocols by which robots and simulators ask a policy: bytes in, bytes out; sockets are elsewhere.
//!
//! ```text
//! bytes ─ msgpack ─ fields ─ names ─ observation ─▶ policy ─▶ actions ─ dialogue ─ bytes
//!            └ array ─ picture ┘
//! ```
//!
//! Everything of a message is held against a limit before memory is taken for it: bytes, values, nesting, axes, pixels. Objects of
//! Python's (pickle) are never read.

mod array;
mod dialogue;
mod fields;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;
mod loongforge;
mod msgpack;
mod names;
mod openpi;
mod picture;
mod protocol;
#[cfg(test)]
mod tests;
mod vla_eval;

pub use dialogue::{Dialogue, Frame, Heard, MAX_MESSAGE, Offer, Reply, Timing};
pub use names::Names;
pub use protocol::Protocol;
#[cfg(test)]
use {
    array::Keys,
    msgpack::{Value, read, write},
};
