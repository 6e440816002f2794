//! A spoken digit and a picture of a handwritten one in each sample, and a small Qwen2.5-Omni thinker that says the one and
//! then the other. Voices and handwriting of the held-out samples occur nowhere in training.

mod compose;
mod model;

pub use compose::{Composed, HeardAndSeen, compose};
