//! Objectives: what makes a scalar of a model's last states, on the tape of the model.

mod cross_entropy;
mod flow;
mod linear_cross_entropy;
mod preference;
mod smoothing;
mod target_scores;
mod vocab_parallel;

pub(super) use cross_entropy::CrossEntropy;
pub use flow::{Draw, FlowSettings, LossKind, NoisePurpose, TimeWeight, noise};
pub(super) use linear_cross_entropy::soft_capped;
pub use preference::{Pairs, Preference, PreferenceLoss};
pub use smoothing::Smoothing;
