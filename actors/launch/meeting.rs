//! The meeting of a run's processes: how they find each other.

use super::net::Security;
use super::take_over::JournalSpec;
use loongforge_core::config::Address;
use std::time::Duration;

/// The settings by which the processes of a run find each other.
#[derive(Clone)]
pub struct Meeting {
    /// The scheduler's address.
    pub address: Address,
    /// The settings by which the processes authenticate each other.
    pub security: Security,
    /// Hash of the run's config, which must be the same for all processes.
    pub config: String,
    /// `scheduler.join_timeout`.
    pub timeout: Duration,
    /// True if processes may share memory, since they are on one host.
    pub shared_memory: bool,
    /// The scheduler's journal, so that another process can take over.
    pub journal: Option<JournalSpec>,
    /// Port of the rendezvous store of a pool's members; otherwise they use a folder on this machine.
    pub store: Option<u16>,
}
