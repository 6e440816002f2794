//! Control messages over one socket: a sending and a receiving half, over any stream (Unix, TCP, turmoil).
//!
//! It does not reconnect, time out or queue: the actor that owns the link does.

use super::Raw;
use super::frame::{FrameError, Unframer, frame};
use serde::{Serialize, de::DeserializeOwned};
use std::io;
use std::marker::PhantomData;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Number of bytes read at once.
const READ: usize = 16 << 10;

/// A link failed and cannot be used further.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("connection: {0}")]
    Io(#[from] io::Error),
}

/// Splits `stream` into a half that sends `Out` and a half that receives `In`.
///
/// The stream closes when both halves are dropped.
pub fn link<Out, In>(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> (LinkSender<Out>, LinkReceiver<In>) {
    let (reader, writer) = tokio::io::split(stream);
    let sender = LinkSender { writer: Box::new(writer), messages: PhantomData };
    let receiver = LinkReceiver { reader: Box::new(reader), unframer: Unframer::default(), messages: PhantomData };
    (sender, receiver)
}

/// Returns the connection of a link, for a wire. Bytes that were read but not yet received are read again.
pub fn raw<Out, In>(sender: LinkSender<Out>, receiver: LinkReceiver<In>) -> Raw {
    let before = io::Cursor::new(receiver.unframer.buffer);
    Raw { reader: Box::new(before.chain(receiver.reader)), writer: sender.writer }
}

/// The sending half.
pub struct LinkSender<Out> {
    writer: Box<dyn AsyncWrite + Send + Unpin>,
    messages: PhantomData<fn(Out)>,
}

impl<Out: Serialize> LinkSender<Out> {
    /// Passes the message to the kernel. The call is not cancellation-safe: a dropped call may leave half a frame on the stream.
    ///
    /// # Errors
    /// Fails if the message is too long, or the peer is gone.
    pub async fn send(&mut self, message: &Out) -> Result<(), LinkError> {
        self.writer.write_all(&frame(message)?).await?;
        Ok(self.writer.flush().await?)
    }

    /// Tells the peer that no more messages follow.
    ///
    /// # Errors
    /// Fails if the peer is gone.
    pub async fn close(mut self) -> Result<(), LinkError> {
        Ok(self.writer.shutdown().await?)
    }
}

/// The receiving half.
pub struct LinkReceiver<In> {
    reader: Box<dyn AsyncRead + Send + Unpin>,
    unframer: Unframer,
    messages: PhantomData<fn() -> In>,
}

impl<In: DeserializeOwned> LinkReceiver<In> {
    /// Returns the next message; `None` if the peer closed between two messages. The call is cancellation-safe.
    ///
    /// # Errors
    /// Fails if the bytes are not a message, the stream ended inside one, or the connection broke.
    pub async fn recv(&mut self) -> Result<Option<In>, LinkError> {
        loop {
            if let Some(message) = self.unframer.next()? {
                return Ok(Some(message));
            }
            self.unframer.buffer.reserve(READ);
            if self.reader.read_buf(&mut self.unframer.buffer).await? == 0 {
                self.unframer.end()?;
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Command, Event, StepId};
    use tokio::net::UnixStream;

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    #[test]
    fn both_ways_over_a_unix_socket_and_an_orderly_end() {
        run(async {
            let (here, there) = UnixStream::pair().unwrap();
            let (mut commands, mut events) = link::<Command, Event>(here);
            let (mut up, mut down) = link::<Event, Command>(there);
            commands.send(&Command::Abort { step: StepId(3) }).await.unwrap();
            assert_eq!(down.recv().await.unwrap(), Some(Command::Abort { step: StepId(3) }));
            up.send(&Event::Ready).await.unwrap();
            up.close().await.unwrap();
            assert_eq!(events.recv().await.unwrap(), Some(Event::Ready));
            assert_eq!(events.recv().await.unwrap(), None);
        });
    }

    #[test]
    fn a_peer_that_dies_inside_a_message_is_torn() {
        run(async {
            let (here, mut there) = UnixStream::pair().unwrap();
            let (_sender, mut receiver) = link::<Command, Event>(here);
            there.write_all(&frame(&Event::Ready).unwrap()[..9]).await.unwrap();
            drop(there);
            let error = receiver.recv().await.unwrap_err();
            assert!(matches!(error, LinkError::Frame(FrameError::Torn { got: 9 })), "{error}");
        });
    }

    #[test]
    fn a_canceled_recv_loses_nothing() {
        run(async {
            let (here, mut there) = UnixStream::pair().unwrap();
            let (_sender, mut receiver) = link::<Command, Event>(here);
            let bytes = frame(&Event::Applied { step: StepId(1 << 40) }).unwrap();
            for piece in bytes.chunks(3) {
                tokio::select! {
                    biased;
                    got = receiver.recv() => panic!("too early: {got:?}"),
                    () = tokio::task::yield_now() => {}
                }
                there.write_all(piece).await.unwrap();
            }
            assert_eq!(receiver.recv().await.unwrap(), Some(Event::Applied { step: StepId(1 << 40) }));
        });
    }

    #[test]
    fn over_a_simulated_network() {
        let mut sim = turmoil::Builder::new().build();
        sim.host("scheduler", || async {
            let listener = turmoil::net::TcpListener::bind("0.0.0.0:700").await?;
            let (stream, _) = listener.accept().await?;
            let (mut sender, mut receiver) = link::<Command, Event>(stream);
            assert_eq!(receiver.recv().await?, Some(Event::Ready));
            sender.send(&Command::Stop).await?;
            Ok(())
        });
        sim.client("encoder", async {
            let stream = turmoil::net::TcpStream::connect("scheduler:700").await?;
            let (mut sender, mut receiver) = link::<Event, Command>(stream);
            sender.send(&Event::Ready).await?;
            assert_eq!(receiver.recv().await?, Some(Command::Stop));
            Ok(())
        });
        sim.run().unwrap();
    }
}
