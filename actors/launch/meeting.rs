//! Lets the processes of a run find each other.

use super::net::Security;
use super::take_over::JournalSpec;
use loongforge_core::config::Address;
use std::time::Duration;

/// Describes how the processes of a run find each other.
#[derive(Clone)]
pub struct Meeting {
    /// Tells where the scheduler listens.
    pub address: Address,
    /// Tells how the processes log in with each other.
    pub security: Security,
    /// Hash of the run's configuration: all processes must have the same.
    pub config: String,
    /// `scheduler.join_timeout`.
    pub timeout: Duration,
    /// True if processes may share memory: they are on one host.
    pub shared_memory: bool,
    /// The journal in which the scheduler writes what it is told, so that another can take its place.
    pub journal: Option<JournalSpec>,
    /// Port of the store through which the members of a pool find each other; else they do in a folder of this machine.
    pub store: Option<u16>,
}
