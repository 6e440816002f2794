//! Messages between actors and engines: ids, the step plan, control messages and the codec.
//!
//! Tensors are not messages: they travel as [`crate::transport::Parcel`]s over edges. Everything here is small, serializable and
//! comparable by value.

mod activity;
mod codec;
mod control;
mod ids;
mod pictured_answer;
mod pictured_text;
mod plan;
mod pool;
mod pool_name;
mod tower;
mod trace;

pub use activity::Activity;
pub use codec::{CodecError, decode, encode};
pub use control::{
    Command, Commit, EvaluationReport, Event, ExpertLoads, MemoryReport, PairReport, RoutingReport, SaveTo, SavedFile,
    SkippedSample, StepReport, Timings,
};
pub use ids::{
    ActorId, Epoch, FIRST_EVALUATION_INDEX, ItemId, Lane, PackId, Replica, Role, SampleId, StepId, UnitId, UnknownRole,
    Version,
};
pub use pictured_answer::PicturedAnswer;
pub use pictured_text::{NoPicturedText, PicturedText};
pub use plan::{Grid, ItemMeta, Pack, Purpose, SKIPPED, SampleMeta, Sigma, StepPlan, Target, Unit, UnitItem};
pub use pool::Regroup;
pub use pool_name::{BadPoolName, PoolName};
pub use tower::{Tower, TowerPart, TowerSet};
pub use trace::{EdgeLoad, Trace, TraceSpan};
