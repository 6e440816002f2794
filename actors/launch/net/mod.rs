//! Sockets between the processes of a run: authentication and admission.
//!
//! A Unix socket is open to this user only, which the kernel checks. TCP on loopback is plain. TCP anywhere else is TLS 1.3 with
//! certificates on both sides, or refused before anything is sent (LF0501); `--insecure-allow-plaintext` states that the network is
//! isolated. A certificate names a run and a role ([`Identity`]), which must match the process's first message.
//!
//! Limits before a connection has identified itself: 64 at a time, 5 seconds, 64 KiB. Others wait in the kernel. Refused
//! connections log at most one line per second.
//!
//! The result is a stream for the protocol of `join`; this module knows only the role in the first message.

mod admit;
mod certs;
mod connect;
mod error;
mod identity;
mod listener;
mod party;
mod security;
mod stream;

pub use certs::{issue, new_authority, renew};
pub use connect::connect;
pub use error::NetError;
pub use identity::Identity;
pub use listener::Listener;
pub use party::Party;
pub use security::Security;
pub use stream::{Stream, first_message};

#[cfg(test)]
mod tests;
