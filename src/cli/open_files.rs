//! How many files this process may have open: sockets of actors, their runtimes, data and checkpoints.

use super::UsageError;
use rustix::process::{Resource, getrlimit};

/// A run of one encoder, one data actor and one foundation passes with so many; the smallest number that it needs is not known.
const LEAST: u64 = 128;

/// Refuses to begin where fewer files may be open than any run needs.
///
/// # Errors
/// The limit is that low.
pub fn expect_open_files() -> Result<(), UsageError> {
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < LEAST => Err(UsageError(format!(
            "this process may have {limit} files open, and a run takes {LEAST}: raise the limit (`ulimit -n 1024`)"
        ))),
        _ => Ok(()),
    }
}
