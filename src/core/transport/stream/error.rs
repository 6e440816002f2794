//! Errors of a stream of parcels.

use crate::transport::WireError;

#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("it sent something other than a parcel")]
    NotAParcel,
    #[error("a parcel of {bytes} bytes exceeds what is left of the credit of {credit}")]
    TooLong { bytes: usize, credit: usize },
    #[error("a parcel's tensors of {tensors} bytes do not fit its body of {body}")]
    Unfit { tensors: u128, body: usize },
    #[error("it gave back parcel {number}, which is not in flight")]
    NotInFlight { number: u64 },
}
