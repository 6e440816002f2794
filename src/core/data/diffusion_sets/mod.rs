//! Two data sets for tiny diffusion models, made of scans of handwritten digits: numbers to draw, and digits that move. The
//! scans of held-out samples occur nowhere in training.

mod digits;
mod folder;
mod model;
mod motion;

pub use digits::{DiffusionDigits, compose_digits};
pub(crate) use model::merges;

pub use folder::Composed;
pub use motion::{DiffusionMotion, compose_motion};
