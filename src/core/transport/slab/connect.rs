//! Connects two processes to one slab: a Unix socket, one hello with file descriptors, and then a lifeline.
//!
//! The producer connects and sends [`Hello`] with its slab and its bell; the consumer accepts and answers with its bell. `connect`
//! does not wait, so actors may connect in any order before they accept.

use super::bell::Bell;
use super::consumer::Receiver;
use super::control::SlabLayout;
use super::lifeline::{Lifeline, receive};
use super::map::Memory;
use super::producer::SlabEdge;
use crate::message::ActorId;
use crate::transport::MailSender;
use crate::transport::frame::{FrameError, Unframer, frame};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::{Deserialize, Serialize};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// An edge over shared memory could not be created.
#[derive(Debug, thiserror::Error)]
pub enum SlabError {
    #[error("socket {path}: {error}{}", hint(.error))]
    Socket { path: PathBuf, error: io::Error },
    #[error("{peer}: {error}")]
    Hello { peer: String, error: FrameError },
    #[error("{peer}: {what}")]
    Refused { peer: String, what: String },
    #[error("shared memory for an edge of {credit} bytes: {error}")]
    Memory { credit: usize, error: io::Error },
    #[error("no connection from {missing} after {seconds} s")]
    Late { missing: String, seconds: u64 },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; another run uses it, or a killed one left it behind: remove the file",
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => "; its actor has ended or was never started",
        _ => "",
    }
}

/// The first message of a producer.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) from: ActorId,
    pub(super) to: ActorId,
    pub(super) credit: u64,
}

/// The time that a producer that has connected may take to say hello, however soon the wait for a connection ends: on a busy machine it
/// may not run at once.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// The socket that an engine's producers connect to.
pub struct SlabListener {
    me: ActorId,
    path: PathBuf,
    socket: UnixListener,
}

impl SlabListener {
    /// Listens at `path`, for this user only.
    ///
    /// # Errors
    /// Fails if the socket cannot be created.
    pub fn bind(path: &Path, me: ActorId) -> Result<Self, SlabError> {
        let error = |error| SlabError::Socket { path: path.to_owned(), error };
        let socket = UnixListener::bind(path).map_err(error)?;
        let listener = Self { me, path: path.to_owned(), socket };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(error)?;
        listener.socket.set_nonblocking(true).map_err(error)?;
        Ok(listener)
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until every actor of `producers` has connected; their parcels go to the mailbox of `mail`.
    ///
    /// # Errors
    /// Fails if one of them is late, another process connected, or shared memory failed.
    pub fn accept(&self, producers: &[ActorId], mail: &MailSender, patience: Duration) -> Result<(), SlabError> {
        let deadline = Instant::now() + patience;
        let mut missing = producers.to_vec();
        while !missing.is_empty() {
            let late = || {
                let missing = missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                SlabError::Late { missing, seconds: patience.as_secs() }
            };
            let expected = |from| missing.contains(&from);
            let from = self.accept_one(expected, mail, deadline)?.ok_or_else(late)?;
            missing.retain(|&actor| actor != from);
        }
        Ok(())
    }

    /// Waits for one of the `expected` actors to connect; returns `None` if none has before `deadline`.
    ///
    /// # Errors
    /// Fails if another process connected, or shared memory failed.
    pub fn accept_one(
        &self,
        expected: impl Fn(ActorId) -> bool,
        mail: &MailSender,
        deadline: Instant,
    ) -> Result<Option<ActorId>, SlabError> {
        let error = |error| SlabError::Socket { path: self.path.clone(), error };
        loop {
            if !wait_readable(&self.socket, deadline).map_err(error)? {
                return Ok(None);
            }
            match self.socket.accept() {
                Ok((stream, _)) => return self.welcome(stream, expected, mail).map(Some),
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
                Err(why) => return Err(error(why)),
            }
        }
    }

    fn welcome(
        &self,
        stream: UnixStream,
        expected: impl Fn(ActorId) -> bool,
        mail: &MailSender,
    ) -> Result<ActorId, SlabError> {
        let socket_error = |error| SlabError::Socket { path: self.path.clone(), error };
        let (hello, fds) = hear(&stream, Instant::now() + HELLO_TIMEOUT).map_err(|error| match error {
            Deaf::Io(error) => socket_error(error),
            Deaf::Frame(error) => SlabError::Hello { peer: self.path.display().to_string(), error },
        })?;
        let refused = |what: String| SlabError::Refused { peer: hello.from.to_string(), what };
        if hello.to != self.me || !expected(hello.from) {
            return Err(refused(format!("connected for an edge to {}, which {} does not expect", hello.to, self.me)));
        }
        let Ok([slab, bell]) = <[OwnedFd; 2]>::try_from(fds) else {
            return Err(refused("sent its hello without shared memory".to_owned()));
        };
        let credit = usize::try_from(hello.credit).ok().filter(|&credit| credit > 0);
        let layout = credit.and_then(|credit| Some((credit, SlabLayout::new(credit)?)));
        let (credit, layout) =
            layout.ok_or_else(|| refused(format!("asked for an invalid credit of {} bytes", hello.credit)))?;
        let memory_error = |error| SlabError::Memory { credit, error };
        let memory = Memory::adopt(slab, layout.len()).map_err(memory_error)?;
        let bell = Bell::adopt(bell).map_err(memory_error)?;
        let mine = mail.bell().fd().ok_or_else(|| memory_error(private_bell()))?;
        // One that has left already needs no bell; what it has sent is there, and its end is learned from the life line.
        let _ = say(&stream, &[0], &[mine]);
        let lifeline = Lifeline::new(stream).map_err(socket_error)?;
        let receiver = Receiver::new(hello.from, &memory, layout, credit, bell, lifeline).map_err(memory_error)?;
        mail.attach(Box::new(receiver));
        Ok(hello.from)
    }
}

impl Drop for SlabListener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl SlabEdge {
    /// Creates an edge of `credit` bytes from `from`, whose mailbox is `mail`, to `to`, which listens at `path`.
    ///
    /// Does not wait for `to` to accept; parcels sent before that are there when it does.
    ///
    /// # Errors
    /// Fails if nobody listens, or shared memory failed.
    pub fn connect(
        path: &Path,
        from: ActorId,
        to: ActorId,
        credit: usize,
        mail: &MailSender,
    ) -> Result<SlabEdge, SlabError> {
        let socket_error = |error| SlabError::Socket { path: path.to_owned(), error };
        let memory_error = |error| SlabError::Memory { credit, error };
        let too_large = || memory_error(io::Error::other("a credit must be from 1 byte to 256 GiB"));
        let layout = SlabLayout::new(credit).filter(|_| credit > 0).ok_or_else(too_large)?;
        let memory = Memory::create("loongforge-slab", layout.len()).map_err(memory_error)?;
        let bell = mail.bell().fd().ok_or_else(|| memory_error(private_bell()))?;
        let stream = UnixStream::connect(path).map_err(socket_error)?;
        let hello = frame(&Hello { from, to, credit: credit as u64 })
            .map_err(|error| SlabError::Hello { peer: to.to_string(), error })?;
        say(&stream, &hello, &[memory.fd(), bell]).map_err(socket_error)?;
        let lifeline = Lifeline::new(stream).map_err(socket_error)?;
        let (edge, lookout) = SlabEdge::new(memory, layout, credit, to, lifeline).map_err(memory_error)?;
        mail.attach(lookout);
        Ok(edge)
    }
}

fn private_bell() -> io::Error {
    io::Error::other("the system gave none for this engine's bell")
}

enum Deaf {
    Io(io::Error),
    Frame(FrameError),
}

/// Hears a producer's hello.
fn hear(stream: &UnixStream, deadline: Instant) -> Result<(Hello, Vec<OwnedFd>), Deaf> {
    let (mut unframer, mut fds) = (Unframer::default(), Vec::new());
    loop {
        if let Some(hello) = unframer.next().map_err(Deaf::Frame)? {
            return Ok((hello, fds));
        }
        if !wait_readable(stream, deadline).map_err(Deaf::Io)? {
            return Err(Deaf::Io(io::ErrorKind::TimedOut.into()));
        }
        let mut bytes = [0; 256];
        let got = receive(stream, &mut bytes, &mut fds).map_err(Deaf::Io)?;
        if got == 0 {
            return Err(Deaf::Frame(FrameError::Torn { got: unframer.buffer.len() }));
        }
        unframer.buffer.extend_from_slice(&bytes[..got]);
    }
}

/// Sends `bytes`, which are short, and file descriptors.
fn say(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)), "room for two descriptors");
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Returns false where nothing came before the deadline.
fn wait_readable(socket: &impl std::os::fd::AsFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = left.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
