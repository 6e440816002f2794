//! `loongforge plan`: what the scheduler will do with a run, before the run.

mod args;
mod case;
mod show;
mod simulated;

pub use args::PlanArgs;
pub use case::plan;
