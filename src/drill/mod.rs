//! Drills: a run in which things go wrong on purpose beside one in which nothing does.
//!
//! Both are this program's own `run --processes`, over sockets instead of shared memory, so that the proxy of
//! `loongforge_actors::drill` stands between any two processes.

mod processes;
mod report;
mod run;
mod traces;

pub use report::Report;
pub use run::{Drill, Plan};
