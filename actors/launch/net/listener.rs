//! A listening socket that admits a bounded number of unidentified connections at a time, for a bounded time.

use super::admit::{Stranger, admit};
use super::error::Refusal;
use super::{NetError, Security, Stream};
use loongforge_core::config::Address;
use loongforge_core::files::expect_room_for_socket;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// Maximum number of unidentified connections; others wait in the kernel.
const MAX_STRANGERS: usize = 64;
/// Maximum number of admitted connections that wait to be handled.
const QUEUE: usize = 64;
/// Minimum time between two log lines.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// A listening socket that yields admitted connections. Closes when it is dropped.
pub struct Listener {
    address: Address,
    admitted: flume::Receiver<Stream>,
    task: JoinHandle<()>,
    _file: Option<SocketFile>,
}

/// Removes the socket's file.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Binds the socket. Must be called inside a runtime. A socket file left by a killed process is replaced.
    ///
    /// # Errors
    /// Returns LF0501 if others could connect without authentication, or an error if the address is in use or unavailable.
    pub async fn bind(at: &Address, security: &Security) -> Result<Self, NetError> {
        security.expect_secure(at)?;
        let failed = |source| NetError::Listen { address: at.clone(), source };
        let (socket, address, file) = match at {
            Address::Unix(path) => {
                let (socket, file) = bind_unix(path).map_err(failed)?;
                (Socket::Unix(socket), at.clone(), Some(file))
            }
            Address::Tcp { host, port } => {
                let socket = TcpListener::bind((&**host, *port)).await.map_err(failed)?;
                let bound = socket.local_addr().map_err(failed)?;
                if let Some(warning) = loopback_warning(at, bound.ip()) {
                    tracing::warn!("{warning}");
                }
                (Socket::Tcp(socket), Address::Tcp { host: host.clone(), port: bound.port() }, None)
            }
        };
        let (door, admitted) = flume::bounded(QUEUE);
        let task = tokio::spawn(watch(socket, address.clone(), security.clone(), door));
        Ok(Self { address, admitted, task, _file: file })
    }

    /// Returns where it listens: of port 0, the one that was given.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the next admitted connection.
    ///
    /// # Errors
    /// Fails if the socket is broken.
    pub async fn accept(&self) -> io::Result<Stream> {
        self.admitted.recv_async().await.map_err(|_| io::Error::other("nobody listens any more"))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watch(socket: Socket, address: Address, security: Security, door: flume::Sender<Stream>) {
    let places = Arc::new(Semaphore::new(MAX_STRANGERS));
    let mut log = Log { last: None, num_unsaid: 0 };
    let (refused, refusals) = flume::bounded::<Refusal>(MAX_STRANGERS);
    loop {
        let place = tokio::select! {
            place = places.clone().acquire_owned() => place,
            Ok(refusal) = refusals.recv_async() => {
                log.refused(&address, &refusal);
                continue;
            }
        };
        let Ok(place) = place else { return };
        let stranger = tokio::select! {
            stranger = socket.accept() => stranger,
            Ok(refusal) = refusals.recv_async() => {
                log.refused(&address, &refusal);
                continue;
            }
        };
        let Ok(stranger) = stranger else {
            // Out of file descriptors, most likely: that passes.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (address, security, door, refused) = (address.clone(), security.clone(), door.clone(), refused.clone());
        tokio::spawn(async move {
            let admitted = timeout(security.patience, admit(stranger, &address, &security)).await;
            // It is no stranger any more, or gone.
            drop(place);
            match admitted.unwrap_or(Err(Refusal::TooSlow { seconds: security.patience.as_secs() })) {
                Ok(stream) => drop(door.send_async(stream).await),
                Err(refusal) => drop(refused.try_send(refusal)),
            }
        });
    }
}

impl Socket {
    async fn accept(&self) -> io::Result<Stranger> {
        match self {
            Self::Unix(socket) => Ok(Stranger::Unix(socket.accept().await?.0)),
            Self::Tcp(socket) => Ok(Stranger::Tcp(socket.accept().await?.0)),
        }
    }
}

/// Logs why connections were refused, at a limited rate.
struct Log {
    last: Option<Instant>,
    num_unsaid: u64,
}

impl Log {
    fn refused(&mut self, address: &Address, refusal: &Refusal) {
        if *refusal == Refusal::Left {
            // Probes of Kubernetes come every two seconds.
            tracing::debug!("a connection to {address} has ended: {refusal}");
            return;
        }
        if self.last.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            self.num_unsaid += 1;
            return;
        }
        let more = match std::mem::take(&mut self.num_unsaid) {
            0 => String::new(),
            count => format!("; {count} more before"),
        };
        tracing::warn!("a connection to {address} is refused: {refusal}{more}");
        self.last = Some(Instant::now());
    }
}

/// Returns a warning where the name of this machine, by which others are to reach it, is that of loopback here.
fn loopback_warning(at: &Address, bound: IpAddr) -> Option<String> {
    (bound.is_loopback() && !at.is_local()).then(|| {
        format!(
            "{at} is {bound} on this machine (see /etc/hosts), which other machines cannot reach: if some take part, \
             give the address of this machine in their network"
        )
    })
}

/// Binds a socket that is open to this user only. A socket that a killed scheduler left behind is replaced; a file, folder or device is
/// not touched.
fn bind_unix(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    expect_room_for_socket(path)?;
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => drop(std::fs::remove_file(path)),
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    let file = SocketFile(path.to_owned());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok((listener, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_loopback_here_is_told_and_addresses_that_others_reach_or_need_not_are_not() {
        let told = |at: &str, bound: &str| loopback_warning(&at.parse::<Address>().unwrap(), bound.parse().unwrap());
        let warning = told("head:6001", "127.0.1.1").unwrap();
        assert!(warning.contains("head:6001 is 127.0.1.1 on this machine"), "{warning}");
        for (at, bound) in [("head:6001", "10.0.0.7"), ("localhost:6001", "127.0.0.1"), ("[::1]:6001", "::1")] {
            assert_eq!(told(at, bound), None, "{at}");
        }
    }
}
