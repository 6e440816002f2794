//! The trait of edges, implemented by each kind of transport.

use super::Parcel;
use super::limits::{MAX_DIMS, MAX_TENSORS};

/// The sending end of an edge.
pub trait Edge: Send {
    /// Sends the parcel, or returns it.
    ///
    /// # Errors
    /// See [`Refusal`]; after `NoCredit` the sender's mailbox gets a [`super::Mail::Credit`] when some has come back.
    fn try_send(&mut self, parcel: Parcel) -> Result<(), Refused>;

    /// Returns the bytes of parcels sent and not yet dropped, and the edge's whole credit.
    fn load(&mut self) -> (usize, usize);
}

/// A parcel that was not sent, and why.
#[derive(Debug)]
pub struct Refused {
    pub parcel: Parcel,
    pub why: Refusal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("no credit left")]
    NoCredit,
    #[error("the receiver is gone")]
    Closed,
    #[error(
        "{bytes} bytes exceed the edge's whole credit of {credit}; raise its `credit` or lower `data.pack.max_tokens`"
    )]
    TooLarge { bytes: usize, credit: usize },
    #[error(
        "the parcel has {num_tensors} tensors; between processes at most {MAX_TENSORS} are allowed, each with at most {MAX_DIMS} dimensions"
    )]
    Unfit { num_tensors: usize },
}
