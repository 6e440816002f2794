//! The digits zero to nine in synthetic voices of eSpeak NG (see `ATTRIBUTION.md`; `make.py` made them), and a small
//! Qwen2-Audio that learns to tell them. Held out are voices whose variant occurs nowhere in training. [`super::heard_and_seen`] has
//! the same voices beside pictures.

mod compose;
mod model;

pub use compose::{Composed, PROMPT, compose};
pub(super) use compose::{Part, write_sounds};
pub use model::write_model;
