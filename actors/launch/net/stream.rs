//! A connection of any kind, with bytes that were already read from it.

use super::error::Refusal;
use loongforge_core::transport::unframe;
use serde::de::DeserializeOwned;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// Longest first message.
pub(super) const MAX_HELLO: usize = 64 << 10;
/// The length of a frame's header: magic, version, length and checksum; the length lies at `LEN`.
pub(super) const HEADER: usize = 14;
pub(super) const LEN: usize = 6;
/// The first bytes of a frame.
pub(super) const MAGIC: &[u8] = b"LFRG";

/// Anything that can be read and written.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection whose peer was let in.
pub struct Stream {
    inner: Box<dyn Duplex>,
    /// Read already, and not yet asked for.
    before: Vec<u8>,
    /// The host of the peer; `None` on a Unix socket.
    host: Option<std::net::IpAddr>,
}

impl Stream {
    /// Takes a connection; `host`: the peer's address, where it has one.
    pub(super) fn new(inner: impl Duplex + 'static, host: Option<std::net::IpAddr>) -> Self {
        Self { inner: Box::new(inner), before: Vec::new(), host }
    }

    /// Gives `bytes` back, to be read again.
    pub(super) fn unread(&mut self, bytes: Vec<u8>) {
        self.before.splice(0..0, bytes);
    }

    /// Returns the peer's address; `None` on a Unix socket.
    pub fn host(&self) -> Option<std::net::IpAddr> {
        self.host
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.before.is_empty() {
            return Pin::new(&mut *self.inner).poll_read(context, out);
        }
        let len = self.before.len().min(out.remaining());
        out.put_slice(&self.before[..len]);
        self.before.drain(..len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.inner).poll_shutdown(context)
    }
}

/// Reads one message, and no byte beyond it.
///
/// # Errors
/// It is none, which the first wrong byte says, or longer than a stranger's may be.
pub async fn first_message<T: DeserializeOwned>(stream: &mut Stream) -> io::Result<T> {
    let mut bytes = vec![0; HEADER];
    let mut have = 0;
    while have < HEADER {
        have += match stream.read(&mut bytes[have..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => len,
        };
        let known = have.min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            // Whoever says nothing more is not waited for.
            bytes.truncate(have);
            return unframe(bytes).map_err(io::Error::other);
        }
    }
    let len = u32::from_le_bytes(bytes[LEN..LEN + 4].try_into().expect("they are four")) as usize;
    if len > MAX_HELLO {
        return Err(io::Error::other(Refusal::TooLong { len, max: MAX_HELLO }));
    }
    bytes.resize(HEADER + len, 0);
    stream.read_exact(&mut bytes[HEADER..]).await?;
    unframe(bytes).map_err(io::Error::other)
}
