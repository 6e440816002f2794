//! Jobs for the systems that place processes: text to be read, changed and submitted by whoever owns the cluster.
//!
//! The run is one process an actor, joined over TCP. The scheduler's end is the job's end; encoders that die are started
//! again alone; the foundation is a gang, restarted as a whole from the last checkpoint. Decisions follow the exit codes
//! of `loongforge run`. Pure functions: nothing is submitted here.

mod jobset;
mod slurm;
mod spec;
mod ssh;

pub use jobset::jobset;
pub use slurm::slurm;
pub use spec::{JobError, JobSpec, Pool, Tls};
pub use ssh::ssh;

#[cfg(test)]
mod tests;
