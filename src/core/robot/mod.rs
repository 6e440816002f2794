//! Robots: what a policy is, the protocols by which it is asked, and a small task by which it is judged.

pub mod pads;
mod policy;
pub mod wire;
mod wilson;

pub use policy::{Actions, Moment, Observation, Policy, PolicySpec};
pub use wilson::wilson;
