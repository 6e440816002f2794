//! Pads: a small task of a robot that is judged in seconds. Three colored pads lie on a square table; an agent is to go to the one
//! that is named, and stay. It sees a picture of 32 × 32 pixels and knows its own place.

mod demonstrations;
mod judge;
mod model;
mod picture;
mod players;
mod scene;
mod set;
#[cfg(test)]
mod tests;

pub use demonstrations::{Demonstration, Frame, demonstration};
pub use judge::{Tally, Trial, judge};
pub use picture::{SIDE, blank, picture};
pub use players::{CAMERA, CHUNK_SIZE, Expert, NUM_EXECUTED, Random, spec};
pub use scene::{COLORS, MAX_STEP, MAX_STEPS, Part, Scene, SceneLayout, instruction};
pub use set::{PadsSet, Written, compose_pads};
