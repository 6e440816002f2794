//! Starting a run: who is connected with whom, threads or processes, and what the caller gets back.

mod in_process;
mod spec;
mod topology;

pub use in_process::run_in_process;
pub use spec::{Assignment, EngineFactory, RunError, RunSpec};
pub use topology::{EdgeSpec, topology};
