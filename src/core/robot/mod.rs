//! Robots: what a policy is, the protocols by which it is asked, and a small task by which it is judged.

pub mod pads;
mod policy;
mod replay;
mod wilson;
pub mod wire;

pub use policy::{Actions, DataNames, Moment, Observation, Policy, PolicySpec};
pub use replay::{ACTION, Replay, STATE};
pub use wilson::wilson;
