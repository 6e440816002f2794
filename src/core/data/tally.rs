//! Counts samples that are not wrong, but not as their author may think.

use std::sync::atomic::{AtomicU64, Ordering};

/// A sentence's beginning with the number of samples that it is about.
pub struct Tally {
    what: String,
    count: AtomicU64,
}

impl Tally {
    /// Counts samples of which `what` is true.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), count: AtomicU64::new(0) }
    }

    /// Counts one. A run's log says so at the 1st, 10th, 100th … sample.
    pub fn add(&self) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if 10u64.pow(count.ilog10()) == count {
            tracing::warn!("{}: {count}", self.what);
        }
    }

    /// Returns the count so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the sentence; `None` where there was no sample of the kind.
    pub fn line(&self) -> Option<String> {
        let count = self.count();
        (count > 0).then(|| format!("{}: {count}", self.what))
    }
}
