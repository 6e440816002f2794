//! The credit held by a parcel.

/// Credit taken for one parcel, returned on drop.
pub struct CreditGuard {
    _loan: Box<dyn Send>,
}

impl CreditGuard {
    /// Wraps a value that returns the credit when it is dropped.
    pub(super) fn new(loan: impl Send + 'static) -> Self {
        Self { _loan: Box::new(loan) }
    }
}
