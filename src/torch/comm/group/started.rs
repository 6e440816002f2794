//! A collective that was started, and the wait for its end.

use tch::Tensor;

use crate::native::{NativeError, Pending};

/// A collective on its way; of a group of one, one that is done.
#[must_use]
pub struct Started {
    pending: Option<Pending>,
    /// The tensor in host memory that the collective writes, and the one that it is copied to at the end.
    staged: Option<(Tensor, Tensor)>,
}

impl Started {
    /// Makes a collective that is done: there is one rank.
    pub(super) fn done() -> Started {
        Started { pending: None, staged: None }
    }

    /// Makes a collective that is on its way.
    pub(super) fn of(pending: Pending) -> Started {
        #[cfg(test)]
        crate::comm::witness::note(format!("start {}", pending.operation()));
        Started { pending: Some(pending), staged: None }
    }

    /// Copies `host`, which the collective writes to, to `target` when its end is waited for.
    pub(super) fn into(self, host: Tensor, target: &Tensor) -> Started {
        Started { staged: Some((host, target.shallow_clone())), ..self }
    }

    /// # Errors
    /// A rank is gone or did not come in time.
    pub fn wait(self) -> Result<(), NativeError> {
        #[cfg(test)]
        self.pending.iter().for_each(|pending| crate::comm::witness::note(format!("wait {}", pending.operation())));
        self.pending.map_or(Ok(()), Pending::wait)?;
        if let Some((host, mut target)) = self.staged {
            let _no_grad = tch::no_grad_guard();
            target.copy_(&host);
        }
        Ok(())
    }
}
