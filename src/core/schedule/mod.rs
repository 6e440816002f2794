//! What is decided about a run: packs, units and the learning rate of every step.
//!
//! Pure: no I/O, no clocks, no threads. [`plan_step`] makes one global batch into a [`StepPlan`].
//!
//! [`StepPlan`]: crate::message::StepPlan

mod balance;
mod cost;
mod error;
mod learning_rate;
mod pack;
mod plan;
mod spec;
mod units;

pub use cost::CostModel;
pub use error::PlanError;
pub use learning_rate::LearningRate;
pub use pack::PackLimits;
pub use plan::plan_step;
pub use spec::{EdgeCredits, ModelShape, PlanSpec};
