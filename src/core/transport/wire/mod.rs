//! A wire: delivers messages in order, each exactly once, over connections that may break.
//!
//! Every message has a number, and its sender keeps it until the other end acknowledges it. Every packet has a CRC32C over header
//! and contents, keyed by a number that the accepting end draws for the wire: a flipped bit, a missing packet or a packet of
//! another wire breaks the connection. Duplicate packets are dropped. The connecting end reconnects; both ends report what they
//! have received, and continue from there. Loose messages have no number and may be lost.
//!
//! Pulses show that an end is alive; a silent connection is given up, and the wire too if the peer does not return in time. A
//! farewell is a message: when an end closes normally, everything before it has been received.
//!
//! ```text
//! packet    LFWR  version u16  kind u8  length u64  number u64  acknowledged u64  crc32c of contents u32
//!           crc32c of all before and the wire's number u32  contents
//! greeting  the accepting end's first packet on every connection, keyed by 0: the wire's number u128, received u64,
//!           life u64
//! ```
//!
//! This layer does not know who the ends are and how they find each other: connections come from outside ([`Recovery`]).

mod carry;
mod ends;
mod error;
mod packet;
mod run;
mod sequence;
mod shared;
mod spec;
#[cfg(test)]
mod tests;

pub use ends::{WireReceiver, WireSender, wire, wire_again};
pub use error::WireError;
pub(super) use packet::{HEADER as PACKET_HEADER, LEN as PACKET_LEN, MAGIC as PACKET_MAGIC};
pub use run::refuse;
pub use spec::{Raw, Reconnect, Recovery, Returned, WireSpec};
