//! A run on a virtual clock: the real [`Coordinator`] and the real plans, with engines that only spend time.
//!
//! The simulation is of discrete events, pure and deterministic: equal specs and seeds give equal reports, on any machine. It models
//! every actor of the run, each engine's order of work (as `torch::engine` has it), pipeline stages of a foundation replica in 1F1B
//! order, parcels with their credit, links with latency and bandwidth, reductions as barriers, jitter, and actors that share the cores of
//! one machine. It does not model the scheduler's own time, checkpoints, evaluations, memory, and tensor parallelism inside a rank, which
//! is part of its [`Costs`].
//!
//! [`Coordinator`]: crate::schedule::Coordinator

mod actors;
mod ahead;
mod alternatives;
mod clock;
mod cores;
mod costs;
mod data;
mod edges;
mod encoder;
mod event;
mod fit;
mod foundation;
mod gantt;
mod inbox;
mod jobs;
mod law;
mod parcels;
mod random;
mod rank;
mod report;
mod simulation;
mod spec;
mod step;
mod steps;
mod svg;
mod wake_filter;

pub use crate::message::Activity;
pub use alternatives::{Alternative, PoolLayout, alternatives};
pub use costs::{Costs, DataCosts, RoleCosts};
pub use fit::{FitError, Observation, fit};
pub use gantt::{Gantt, Span};
pub use law::{Law, LawError, LawSamples, Measured, Samples};
pub use report::{Bound, PoolReport, SimReport};
pub use simulation::simulate;
pub use spec::{Cluster, SimError, SimSpec};
pub use svg::{gantt_html, gantt_svg};

#[cfg(test)]
mod course_tests;
#[cfg(test)]
mod tests;
