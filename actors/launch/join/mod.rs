//! How processes become a run: each says hello to the scheduler, gets its place, listens for its edges, and begins
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
//! Encoders may come to a run that goes on: the same words, and the others are told to connect to them. Every actor's
//! process gives a sign of life from time to time; one that gives none for the length of its lease is taken for dead.
//!
//! Stop and drain are the engines'. Peer gone: the end of a connection is the end of the actor, named at the scheduler;
//! an actor without scheduler ends. Generic over the stream, so that the protocol is tested on a simulated network.

mod desk;
mod gather;
mod member;
mod protocol;
mod remote;

pub use desk::{Desk, Wish};
pub use gather::{Member, Roster, gather};
pub use member::{Joined, join};
pub use protocol::{Down, JoinError, Up, Welcome};
pub use remote::remote_link;
