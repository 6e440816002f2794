//! Sockets between the processes of a run: who may come in, and how one gets in.
//!
//! A Unix socket is open to this user alone, which is asked of the kernel. TCP on loopback is plain. TCP anywhere else is
//! TLS 1.3 with a certificate on both sides, or refused before anything is sent (LF0501); `--insecure-allow-plaintext`
//! says that the network is isolated. A certificate names a run and a role ([`Identity`]): what a process says it is in
//! its first message must be that.
//!
//! Limits before a connection has said who it is: 64 at a time, 5 seconds, 64 KiB. Others wait in the kernel. A
//! connection that is refused costs one line of log a second, however many there are.
//!
//! A stream comes out that the protocol of `join` is spoken on; nothing of it is known here but the first
//! message's role.

mod admit;
mod certs;
mod connect;
mod error;
mod identity;
mod listener;
mod party;
mod security;
mod stream;

pub use certs::{issue, new_authority};
pub use connect::connect;
pub use error::NetError;
pub use identity::Identity;
pub use listener::Listener;
pub use party::Party;
pub use security::Security;
pub use stream::{Stream, first_message};

#[cfg(test)]
mod tests;
