//! Edges: move tensors from one engine to another, without passing through an actor.
//!
//! An edge carries [`Parcel`]s in one direction, limited by a credit in bytes. The receiver returns a parcel's credit by dropping
//! it. Without credit nothing is sent: one config value per edge limits the memory in flight.
//!
//! Invariants: the bytes of parcels sent and not yet dropped never exceed the credit; parcels of one edge arrive in
//! the order in which they were sent, each once; when a peer is gone the receiver is told by [`Mail::Gone`].

mod credit;
mod credit_guard;
mod edge;
mod envelope;
pub(crate) mod frame;
mod limits;
mod link;
mod local;
mod mailbox;
mod parcel;
mod patience;
mod slab;
mod stream;
mod watch;
mod wire;

pub use credit::Credit;
pub use credit_guard::CreditGuard;
pub use edge::{Edge, Refusal, Refused};
pub use envelope::{NoEnvelope, envelope_len};
pub use frame::{FrameError, MAX_FRAME, PROTOCOL_VERSION, checksum, frame, unframe};
pub use limits::{MAX_DIMS, MAX_PARCELS, MAX_TENSORS};
pub use link::{LinkError, LinkReceiver, LinkSender, link, raw};
pub use local::LocalEdge;
pub use mailbox::{Mail, MailSender, Mailbox};
pub use parcel::{Buffer, Dtype, Header, HostTensor, Parcel, ParcelKind, TensorMeta};
pub use patience::wait_awake;
pub use slab::{BorrowedMemory, LentMemory, LentSizes, SlabEdge, SlabError, SlabListener, SlotTensor};
pub use stream::{StreamEdge, StreamError, StreamSpec, receive};
pub use wire::{
    Raw, Reconnect, Recovery, Returned, WireError, WireReceiver, WireSender, WireSpec, refuse, wire, wire_again,
};
