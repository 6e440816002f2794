//! The digits zero to nine in synthetic voices of eSpeak NG (see `ATTRIBUTION.md`; `make.py` made them), and a small
//! Qwen2-Audio that learns to tell them. Held out are voices whose variant occurs nowhere in training.

mod compose;
mod model;

pub use compose::{Composed, PROMPT, compose};
pub use model::write_model;
