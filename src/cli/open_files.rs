//! The number of files that this process may have open: sockets of actors, their runtimes, data and checkpoints.

use super::UsageError;
use loongforge_core::schedule::PoolSizes;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A run of one encoder, one data actor and one foundation passes with so many; the smallest number that it needs is not known.
const LEAST: u64 = 128;
/// The limit is raised to so many at most: programs that go over all numbers of files take long where there is none.
const WANTED: u64 = 1 << 16;

/// Raises the limit of this process and its children as far as it may by itself, and refuses to begin where that is below what
/// any run needs.
///
/// # Errors
/// The limit is that low.
pub fn expect_open_files() -> Result<(), UsageError> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = maximum.unwrap_or(WANTED).min(WANTED);
    if current.is_some_and(|current| current < raised) {
        // A system that refuses it leaves the limit as it is.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum });
    }
    expect(LEAST, "a run takes")
}

/// Refuses a run whose actors are threads of this process where they would need more files than it may have open.
///
/// # Errors
/// The limit is that low.
pub fn expect_open_files_of(pools: &PoolSizes) -> Result<(), UsageError> {
    let encoders = pools.encoders.iter().map(|pool| u64::from(pool.actors)).sum();
    let foundations = u64::from(pools.num_foundations());
    expect(files_of(encoders, foundations), "a run of so many actors in one process takes about")
}

/// Returns the number of files of a run in one process, as they were counted for 1 to 8 actors of each pool: those that compute together
/// are all connected with each other, at both ends here.
fn files_of(encoders: u64, foundations: u64) -> u64 {
    let pairs = |actors: u64| actors * actors.saturating_sub(1);
    48 + 24 * foundations + 5 * pairs(foundations) + 2 * pairs(encoders)
}

fn expect(files: u64, what: &str) -> Result<(), UsageError> {
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < files => Err(UsageError(format!(
            "this process may have {limit} files open, but {what} {files}: raise the limit (`ulimit -n {}`){}",
            (2 * files).next_multiple_of(1024),
            if files > LEAST { ", or give each actor a process (`--processes`)" } else { "" }
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_grow_with_the_actors_that_are_connected() {
        // Counted: 43, 84, 194 (in two dimensions), 402 and 127.
        assert!(files_of(1, 1) < LEAST);
        assert_eq!([files_of(1, 2), files_of(1, 4), files_of(1, 8), files_of(8, 1)], [106, 204, 520, 184]);
    }
}
