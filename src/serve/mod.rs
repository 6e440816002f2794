//! A server of policies: one port, WebSocket for a protocol's clients and HTTP for who asks after its health.
//!
//! Contract: no message ends the server. Each is bounded before memory is taken for it (`core/robot/wire`), and an error ends one
//! connection at most. The policy acts in a thread of its own, for one client after another, and each connection has one message
//! in flight: what a client sends meanwhile waits in its socket.

mod actor;
mod connection;
mod http;
pub mod openai;
mod patient;
mod server;
mod stop;
#[cfg(test)]
mod tests;

pub use actor::Actor;
pub use server::{Door, ReservedDoor, ServeError, Server};
pub use stop::asked_to_stop;
