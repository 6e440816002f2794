//! The join protocol, by which processes form a run: each says hello to the scheduler, gets its place, listens for its edges, and starts
//! when all do. Afterwards the same connection carries commands and events.
//!
//! ```text
//! actor                                scheduler
//! Hello { config, role }           →             or Refused { reason } and the end of the connection
//!                                  ←   Assigned(actor)
//! Listening { edges }              →
//!                                  ←   Welcome(…)   once every actor of the run is listening
//! Event …                          ↔   Command …
//! ```
//!
//! Encoders may join a running job with the same messages; the others are told to connect to them. Every actor's process sends a
//! heartbeat from time to time; one without a heartbeat for the length of its lease is considered dead.
//!
//! Once an actor is welcome, its connection is a wire: over TCP it may break, and the actor returns with `Return` and continues
//! where it was.
//!
//! Stop and drain are up to the engines. Peer gone: a wire that is not restored in time ends the actor, which the scheduler names;
//! an actor without a scheduler ends. Generic over the stream, so that the protocol is tested on a simulated network.

mod gather;
mod line;
mod member;
mod protocol;
mod reconnect;
mod remote;
mod server;

pub use gather::{Member, Roster, gather};
pub use line::{Line, hear, line, say, say_loose, say_out};
pub(super) use member::hindrance;
pub use member::{Joined, join};
pub(super) use protocol::ENDED;
pub use protocol::{Down, JoinError, Up, Welcome};
pub use reconnect::ReconnectRegistry;
pub use remote::{Before, Terms, link_again, remote_link};
pub use server::{JoinRequest, JoinServer};
