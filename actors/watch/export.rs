//! Sends metrics and traces to an OpenTelemetry collector, on its own thread. Nothing waits for it: each export sends the current
//! state, and exports missed by a collector that does not answer are lost.

use super::memory::resident_bytes;
use super::server::lock;
use flume::{Receiver, RecvTimeoutError, Sender};
use loongforge_core::clock::since_epoch;
use loongforge_core::config::{Address, Otlp};
use loongforge_core::observe::{Board, Told};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// The time that a collector may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum length of a response that is read.
const MAX_ANSWER: u64 = 64 << 10;

/// The exporter; when dropped, it sends once more and ends.
pub(super) struct Export {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Export {
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start(otlp: &Otlp, board: Arc<Mutex<Board>>) -> io::Result<Self> {
        // Nothing is ever sent: that it is gone says it.
        let (stop, stopped) = flume::bounded(1);
        let (otlp, zero) = (otlp.clone(), now());
        let run = move || Exporter { otlp, board, zero, told: Told::default(), has_failed: false }.run(&stopped);
        let thread = std::thread::Builder::new().name("otlp".into()).spawn(run)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Exporter {
    otlp: Otlp,
    board: Arc<Mutex<Board>>,
    /// The beginning of the board's clock, in nanoseconds since 1970.
    zero: u64,
    told: Told,
    has_failed: bool,
}

impl Exporter {
    fn run(mut self, stopped: &Receiver<()>) {
        loop {
            let waited = stopped.recv_timeout(self.otlp.every.duration());
            let sent = self.export();
            match (sent, self.has_failed) {
                (Err(error), false) => {
                    tracing::warn!(
                        "`watch.otlp`: {} does not take metrics: {error}; tried again, the run continues",
                        self.otlp.endpoint
                    );
                    self.has_failed = true;
                }
                (Ok(()), true) => {
                    tracing::info!("`watch.otlp`: {} takes metrics again", self.otlp.endpoint);
                    self.has_failed = false;
                }
                _ => {}
            }
            if waited != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    fn export(&mut self) -> io::Result<()> {
        let resident = resident_bytes();
        // The board is free again before anything is sent.
        let metrics = lock(&self.board).otlp_metrics(resident, self.zero, now());
        let traces = self.otlp.traces.then(|| lock(&self.board).otlp_traces(&mut self.told, self.zero)).flatten();
        post(&self.otlp.endpoint, "/v1/metrics", &metrics.to_string())?;
        traces.map_or(Ok(()), |traces| post(&self.otlp.endpoint, "/v1/traces", &traces.to_string()))
    }
}

fn post(to: &Address, path: &str, body: &str) -> io::Result<()> {
    let Address::Tcp { host, port } = to else {
        return Err(io::Error::other("metrics are sent over TCP only: the address must be HOST:PORT"));
    };
    let mut stream = connect((&**host, *port).to_socket_addrs()?)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let len = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {to}\r\nContent-Type: application/json\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    let status = text.split(' ').nth(1).unwrap_or_default();
    match status.starts_with('2') {
        true => Ok(()),
        false => Err(io::Error::other(format!("it answers {}", text.lines().next().unwrap_or("nothing")))),
    }
}

/// Connects to the first address of a host at which somebody listens: `localhost` has one of IPv6 and one of IPv4.
fn connect(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the host is not known");
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn now() -> u64 {
    since_epoch().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_collector_is_found_at_any_address_of_its_host() {
        let listen = || TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (gone, collector) = (listen(), listen());
        let [nobody, somebody] = [&gone, &collector].map(|listener| listener.local_addr().unwrap());
        drop(gone);
        let stream = connect([nobody, somebody].into_iter()).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), somebody);
        assert!(connect([nobody].into_iter()).is_err());
        assert!(connect(std::iter::empty()).unwrap_err().to_string().contains("not known"));
    }
}
