//! Serializes the whole machine, so that another process can continue it.

use super::{Coordinator, Planner};
use crate::message::{CodecError, decode, encode};
use crate::schedule::plan_step;
use std::path::PathBuf;

impl Coordinator {
    /// Returns everything that its answers depend on, between two inputs. A custom planner is not included.
    ///
    /// # Panics
    /// Some part of it cannot be written, which is a bug of ours.
    pub fn snapshot(&self) -> Vec<u8> {
        encode(self).expect("a coordinator is data")
    }

    /// Continues from a [`Coordinator::snapshot`] as if it had never stopped; with [`plan_step`]. `memory`:
    /// [`CoordinatorSpec::snapshots`](crate::schedule::CoordinatorSpec::snapshots) of this process, since the former one's is gone.
    ///
    /// # Errors
    /// Fails if the bytes are not a snapshot of this version.
    pub fn restore(snapshot: &[u8], memory: Option<(PathBuf, u64)>) -> Result<Self, CodecError> {
        let mut coordinator: Self = decode(snapshot)?;
        coordinator.spec.snapshots = memory;
        Ok(coordinator)
    }
}

/// Returns the planner of every run; tests have others.
pub(super) fn planner() -> Planner {
    Box::new(plan_step)
}
