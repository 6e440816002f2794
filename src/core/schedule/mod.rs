//! Decisions of a run: packs, units, learning rate, and the progress of every step.
//!
//! Pure: no I/O, no clocks, no threads. [`plan_step`] turns one global batch into a [`StepPlan`]; [`Coordinator`] drives the run
//! from step to step as a state machine with inputs and outputs.
//!
//! [`StepPlan`]: crate::message::StepPlan

mod balance;
mod batch;
pub mod cct;
mod coordinator;
mod cost;
mod error;
mod learning_rate;
mod pack;
mod pipeline;
mod plan;
mod sigma;
mod skipped;
mod spec;
mod units;

pub use balance::{balance, loads_of, sorted_rows};
pub use batch::Batch;
pub(crate) use coordinator::Planner;
pub use coordinator::{
    Batches, Best, CheckpointDraft, Coordinator, CoordinatorSpec, Doubt, EncoderPoolSpec, Evaluated, EvaluationPass,
    EvaluationSet, EvaluationSpec, EvaluationSummary, ExpertStep, FailedSave, Failure, FittedCosts, Formed, Imbalance,
    Input, Ledger, MAX_CRASHES, NonFinite, Outcome, Output, PoisonItem, PoolChange, PoolSize, PoolSizes,
    SchedulerState, SetResult, StepBalance, StepSummary, Straggler, Verdict,
};
pub use cost::{CostModel, Fit, Work};
pub use error::PlanError;
pub use learning_rate::LearningRate;
pub use pack::{OfflinePacks, PackLimits, SampleSize, StreamPacker, TooLarge, least_packs, pack_lengths, pack_offline};
pub use pipeline::{Pass, Pipeline, Task};
pub use plan::{plan_evaluation, plan_step};
pub use sigma::{AutoShift, FlowShape, HIGH_NOISE, LOW_NOISE, SigmaSpec, TimeSampler};
pub use skipped::{MIN_SEEN, Skipped, are_too_many_bad};
pub use spec::{ByTower, EdgeCredits, EncoderPlanSpec, FoundationPlanSpec, ModelShape, PlanSpec};
