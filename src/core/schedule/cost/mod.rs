//! Describes what work costs a replica: a model of three numbers, and its fit to measured times.

mod fit;
mod model;

pub use fit::Fit;
pub use model::{CostModel, Work};
