//! The edge between two hosts: parcels as messages on a wire, limited by credit like any edge.
//!
//! The producer copies a parcel's tensors once, into a message. The consumer checks every field before use, copies the tensors into
//! ordinary memory, and reports by number whose credit was dropped, in any order. Until then the producer counts the parcel as in
//! flight, so that the credit limits the memory of both ends. The wire handles order, checksums and broken connections; the stream
//! below it handles encryption and authentication.
//!
//! ```text
//! parcel   length of header u32, header: postcard of (Header, [TensorMeta]), the tensors end to end
//! credit   numbers of parcels, u64 each
//! ```

mod contents;
mod error;
mod receive;
mod send;
#[cfg(test)]
mod tests;

pub use error::StreamError;
pub use receive::receive;
pub use send::StreamEdge;

use super::WireSpec;
use super::limits::MAX_PARCELS;
use std::time::Duration;

/// Settings of one edge, for either end.
#[derive(Clone, Copy, Debug)]
pub struct StreamSpec {
    /// Maximum number of bytes in flight.
    pub credit: usize,
    /// Number of the wire, which the receiving end draws.
    pub number: Option<u128>,
    /// A connection that is silent for this long is considered broken.
    pub quiet: Duration,
    /// The time to wait for a new connection after the end of one.
    pub patience: Duration,
    /// The time to wait for a new connection after one that is silent or damaged.
    pub silence: Duration,
}

impl StreamSpec {
    fn wire(&self, accepts: bool) -> WireSpec {
        WireSpec {
            number: self.number,
            accepts,
            sent: 0,
            received: 0,
            life: 0,
            // What comes back are numbers.
            max_len: if accepts { 4 + contents::MAX_HEADER + self.credit } else { 8 * MAX_PARCELS },
            queue: MAX_PARCELS,
            confirms: false,
            quiet: self.quiet,
            patience: self.silence,
            patience_ended: self.patience,
            patience_first: self.patience,
        }
    }
}
