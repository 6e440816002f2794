//! The socket of an edge after the handshake: it shows that the peer is alive, and delivers its bell.

use super::bell::Bell;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// The socket of an edge after the handshake.
pub(super) struct Lifeline(UnixStream);

impl Lifeline {
    /// Takes the socket of an edge and makes it non-blocking.
    ///
    /// # Errors
    /// Fails if it cannot be made non-blocking.
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self(stream))
    }

    /// Returns what arrived since the last call. A consumer sends one thing, its bell; a producer nothing.
    pub(super) fn look(&self) -> Life {
        let mut fds = Vec::new();
        match receive(&self.0, &mut [0], &mut fds) {
            Ok(0) => Life::Ended,
            Ok(_) => fds.pop().and_then(|fd| Bell::adopt(fd).ok()).map_or(Life::Ended, Life::Bell),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Life::Quiet,
            Err(_) => Life::Ended,
        }
    }

    /// Tells the peer that this end is gone.
    pub(super) fn cut(&self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

pub(super) enum Life {
    Quiet,
    Bell(Bell),
    /// The peer's process ended, it closed its end, or it broke the protocol.
    Ended,
}

/// Receives bytes and the file descriptors that come with them; returns the number of bytes.
pub(super) fn receive(stream: &UnixStream, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(stream, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(got.bytes)
}
