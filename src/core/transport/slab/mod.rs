//! The edge between two processes on one host: tensors in shared memory, without a byte through a socket.
//!
//! The producer creates a slab (a sealed `memfd`) and passes it once over a Unix socket; both ends map it. It holds a ring of
//! fixed-size headers, a ring of returned slots, and an arena of slots. The producer copies tensors directly into a slot; the
//! consumer reads them there ([`SlotTensor`]), and the slot is returned when the parcel's tensors and its credit are dropped, in
//! any order, on any thread. Each engine sleeps on one futex word, its [`Bell`]; peers ring it directly, so there is no thread and
//! no system call per message other than the wake-up. The socket stays open as the lifeline: if it closes without a farewell, the
//! peer is lost.
//!
//! Memory: a slot is a range of *virtual* memory as long as the edge's whole credit, so there is no fragmentation and a parcel
//! within the credit always fits. Recently used slots are reused first, and pages beyond twice the credit are returned to the
//! system ([`slots`]).
//!
//! Trust: the headers in shared memory are atomics, copied out and checked field by field before use; a peer that writes invalid
//! data is named and dropped. Tensor bytes are only bytes: a peer that changes them after sending changes numbers, not memory
//! safety. Order of start: every actor binds, then connects to its consumers (without waiting), then accepts its producers.

#![allow(unsafe_code)]

mod bell;
mod connect;
mod consumer;
mod control;
mod lent;
mod lifeline;
mod map;
mod producer;
mod slots;
#[cfg(test)]
mod tests;

pub(super) use bell::Bell;
pub use connect::{SlabError, SlabListener};
pub use consumer::SlotTensor;
pub use lent::{BorrowedMemory, LentMemory, LentSizes};
pub use producer::SlabEdge;
