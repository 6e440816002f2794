//! Objectives: what makes a scalar of a model's last states, on the tape of the model.

mod answers;
mod cross_entropy;
mod flow;
mod kto;
mod linear_cross_entropy;
mod measures;
mod preference;
mod score_passes;
mod smoothing;
mod target_scores;
mod vocab_parallel;

pub use answers::Answers;
pub(super) use cross_entropy::CrossEntropy;
pub use flow::{Draw, FlowSettings, LossKind, NoisePurpose, TimeWeight, noise};
pub use kto::{Groups, Kto};
pub(super) use linear_cross_entropy::soft_capped;
pub use preference::{Pairs, Preference, PreferenceLoss};
pub use smoothing::Smoothing;
