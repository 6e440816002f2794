//! A wire: messages in order, each once, over connections that may break.
//!
//! Every message has a number and is kept by its sender until the other end has acknowledged it. Every packet has a CRC32C
//! over header and contents, keyed by a number that the accepting end draws for the wire: a flipped bit, a packet that is
//! missing and one of another wire break the connection. Packets that come twice are dropped. Whoever connected connects
//! again; both ends say what they have received, and go on from there. Messages that are said to be loose have no number
//! and may be lost.
//!
//! Pulses tell that an end lives; a connection on which nothing is heard is given up, and with it the wire, if nobody
//! comes back in time. A farewell is a message: an end that closes in order has everything heard before.
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
