//! The whole machine as bytes, so that another process can go on with it.

use super::{Coordinator, Planner};
use crate::message::{CodecError, decode, encode};
use crate::schedule::plan_step;
use std::path::PathBuf;

impl Coordinator {
    /// Everything that its answers depend on, between two inputs. A planner of its own is not in it.
    ///
    /// # Panics
    /// Some part of it cannot be written, which is a bug of ours.
    pub fn snapshot(&self) -> Vec<u8> {
        encode(self).expect("a coordinator is data")
    }

    /// Goes on where [`Coordinator::snapshot`] was taken, as if it had never stopped; with [`plan_step`]. `memory`:
    /// [`CoordinatorSpec::snapshots`](crate::schedule::CoordinatorSpec::snapshots) of this process, for the former one's is gone.
    ///
    /// # Errors
    /// The bytes are no snapshot of this version.
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
