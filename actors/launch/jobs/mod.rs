//! Job scripts and manifests for cluster schedulers: text for the cluster's users to read, change and submit.
//!
//! The run has one process per actor, joined over TCP. The job ends with the scheduler; encoders that die are restarted
//! individually; the foundation is a gang, restarted as a whole from the last checkpoint. Decisions follow the exit codes of
//! `loongforge run`. Pure functions: nothing is submitted here.

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
