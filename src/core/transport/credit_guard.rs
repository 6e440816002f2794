//! Credit that a parcel holds.

/// Credit taken for one parcel; comes back on drop.
pub struct CreditGuard {
    _loan: Box<dyn Send>,
}

impl CreditGuard {
    /// Whatever gives the credit back when it is dropped.
    pub(super) fn new(loan: impl Send + 'static) -> Self {
        Self { _loan: Box::new(loan) }
    }
}
