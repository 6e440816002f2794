//! Cost of work on a replica: a model with three coefficients, and its fit to measured times.

mod fit;
mod model;

pub use fit::Fit;
pub use model::{CostModel, Work};
