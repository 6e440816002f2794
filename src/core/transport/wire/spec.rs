//! Settings of an end of a wire: its connections and limits, and the messages between its handles and its tasks.

use bytes::Bytes;
use std::io;
use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

/// A connection of which the other end knows that it is for this wire.
pub struct Raw {
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    pub writer: Box<dyn AsyncWrite + Send + Unpin>,
}

impl Raw {
    /// Takes a connection of any kind.
    pub fn new(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self { reader: Box::new(reader), writer: Box::new(writer) }
    }
}

/// A connection of a peer that has come back, and what it has received.
pub struct Returned {
    pub raw: Raw,
    pub received: u64,
}

/// Connects: told the wire's number, which attempt it is, and what this end has received. An error of the kind
/// `InvalidData` says that the wire is over.
pub type Reconnect = Box<dyn FnMut(u128, u64, u64) -> Pin<Box<dyn Future<Output = io::Result<Raw>> + Send>> + Send>;

/// The action after a broken connection.
pub enum Recovery {
    /// The end.
    None,
    /// This end connects again.
    Connect(Reconnect),
    /// The other end does; here it comes in.
    Accept(flume::Receiver<Returned>),
}

/// One end of a wire.
#[derive(Clone, Copy, Debug)]
pub struct WireSpec {
    /// Drawn by the accepting end; the other end may not know it yet.
    pub number: Option<u128>,
    /// True if this end accepts connections.
    pub accepts: bool,
    /// Messages of who had this end before.
    pub sent: u64,
    pub received: u64,
    /// The number of lives of the accepting end: one of an earlier life is not listened to.
    pub life: u64,
    /// Maximum length of a message.
    pub max_len: usize,
    /// Maximum number of waiting messages at each end.
    pub queue: usize,
    /// Messages are acknowledged when [`WireReceiver::confirm`] says so, and else when they are taken.
    pub confirms: bool,
    /// A connection that is silent for this long is considered broken.
    pub quiet: Duration,
    /// The time to wait for a new connection.
    pub patience: Duration,
    /// The same where the peer's side has ended the former one: most likely it has died.
    pub patience_ended: Duration,
    /// The same where there has been none at this end: the peer must notice first that it has another process to connect to.
    pub patience_first: Duration,
}

/// Something to be sent.
pub(super) enum Out {
    Message(Bytes),
    /// A message whose sender is told when it is written.
    Told(Bytes, oneshot::Sender<()>),
    Loose(Bytes),
}

/// A message that has come, with its number, or a loose one.
pub(super) type In = (Option<u64>, Vec<u8>);
