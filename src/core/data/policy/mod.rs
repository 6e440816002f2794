//! Samples for robot policies: what the robot sees and feels, its instruction, and the actions that follow.
//!
//! ```text
//! step ─┬ pictures ── augment ── resize with pad ── patches ── items of the vision tower ─┐
//!       ├ state ───── normalize ──┬ digits ┐                                   │
//!       │                         └ column │                                   ├ sample
//!       ├ task ───────────────────── prompt ── tokens ─────────────────────────┤
//!       └ actions ─── relative ── normalize ── columns `actions`, `action_weights`
//! ```

mod augment;
mod files;
mod maker;
mod normalizer;
mod observation;
mod pictures;
mod prompt;
mod relative;
mod scales;
mod spec;
#[cfg(test)]
mod tests;

pub use files::is_processor_file;
pub use maker::PolicyMaker;
pub use observation::Observation;
