//! Errors of a wire.

use crate::message::CodecError;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("its process ended or broke the connection")]
    Ended,
    #[error("connection: {0}")]
    Io(String),
    #[error("no heartbeat for {0:?}")]
    Silent(Duration),
    #[error("it sent something other than a packet")]
    NotAPacket,
    #[error("it uses protocol version {theirs}, this loongforge {ours}")]
    OtherVersion { theirs: u16, ours: u16 },
    #[error("a packet arrived corrupt")]
    Corrupt,
    #[error("packet {number} arrived out of order (expected {expected})")]
    Gap { number: u64, expected: u64 },
    #[error("a packet of {len} bytes exceeds the limit of {max}")]
    TooLong { len: u64, max: usize },
    #[error("it acknowledged packet {number}, but only {sent} were sent")]
    Acknowledged { number: u64, sent: u64 },
    #[error("it lost packets after {number}, which it had acknowledged")]
    Forgotten { number: u64 },
    #[error("its incarnation {life} was replaced by {newest}")]
    Stale { life: u64, newest: u64 },
    #[error("it does not know this connection")]
    Refused,
    #[error("{0}")]
    Message(String),
}

impl WireError {
    /// Returns whether a new connection is pointless: the peer is not what it claims, or of another version.
    pub(super) fn is_final(&self) -> bool {
        !matches!(
            self,
            Self::Ended | Self::Io(_) | Self::Silent(_) | Self::Corrupt | Self::Gap { .. } | Self::Stale { .. }
        )
    }
}

impl From<CodecError> for WireError {
    fn from(error: CodecError) -> Self {
        Self::Message(error.to_string())
    }
}
