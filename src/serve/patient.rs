//! A connection that ends where its client does not take what it is sent.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// The time in which a client must take something of what it is sent.
const PATIENCE: Duration = Duration::from_secs(30);

/// A stream on which writing fails once the other side has taken nothing for [`PATIENCE`]: hyper waits for ever, and the connection
/// keeps its place.
pub struct Patient<S> {
    stream: S,
    /// Runs while the other side takes nothing.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    /// Wraps a stream.
    pub fn new(stream: S) -> Self {
        Self { stream, stuck: None }
    }

    /// Passes on how a write went, unless it has waited for too long.
    fn limit(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        let is_over = stuck.as_mut().poll(context);
        is_over.map(|()| Err(io::Error::new(ErrorKind::TimedOut, "the client does not read its answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.limit(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.limit(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::StreamBody;
    use hyper::body::{Bytes, Frame, Incoming};
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper::{Request, Response};
    use hyper_util::rt::{TokioIo, TokioTimer};
    use std::convert::Infallible;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::{Instant, timeout};

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_given_up_and_who_is_slow_is_not() {
        let (mut client, server) = duplex(16);
        let mut server = Patient::new(server);
        let writing = tokio::spawn(async move { server.write_all(&[0; 64]).await });
        for _ in 0..2 {
            sleep(PATIENCE * 2 / 3).await;
            client.read_exact(&mut [0; 16]).await.unwrap();
        }
        let begun = Instant::now();
        let error = writing.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(begun.elapsed() >= PATIENCE && begun.elapsed() < PATIENCE * 2, "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_whose_client_does_not_read_its_stream() {
        let (mut client, server) = duplex(1 << 10);
        let service = service_fn(|_: Request<Incoming>| async {
            let piece = || Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[b'x'; 512])));
            Ok::<_, Infallible>(Response::new(StreamBody::new(futures_util::stream::repeat_with(piece))))
        });
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut http = http1::Builder::new();
        let serving = http.timer(TokioTimer::new()).serve_connection(TokioIo::new(Patient::new(server)), service);
        let ended = timeout(PATIENCE * 2, serving).await.expect("the connection ends");
        assert!(ended.is_err());
    }
}
