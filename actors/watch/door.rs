//! The listening socket of the page, and the check of its token.

use loongforge_core::config::Address;
use loongforge_core::files::expect_room_for_socket;
use sha2::{Digest, Sha256};
use std::io;
use std::os::unix::fs::PermissionsExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

/// A connection of either kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A listening socket.
pub(super) enum Door {
    Tcp(TcpListener),
    Unix(UnixListener, Address),
}

impl Door {
    /// Listens where only this machine can connect.
    ///
    /// # Errors
    /// The address is in use, cannot be bound, or could be reached from other machines.
    pub async fn open(at: &Address) -> io::Result<Self> {
        match at {
            Address::Tcp { host, port } if at.is_local() => Ok(Self::Tcp(TcpListener::bind((&**host, *port)).await?)),
            Address::Tcp { .. } => Err(io::Error::other("the page is served to this machine only")),
            Address::Unix(path) => {
                expect_room_for_socket(path)?;
                if std::os::unix::net::UnixStream::connect(path).is_err() {
                    // Left behind by a run that was killed.
                    let _ = std::fs::remove_file(path);
                }
                let listener = UnixListener::bind(path)?;
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
                Ok(Self::Unix(listener, at.clone()))
            }
        }
    }

    /// Returns where it is: the port is known once it listens.
    ///
    /// # Errors
    /// The socket has no address any more.
    pub fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => {
                let address = listener.local_addr()?;
                Ok(Address::Tcp { host: address.ip().to_string(), port: address.port() })
            }
            Self::Unix(_, address) => Ok(address.clone()),
        }
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// Fails if the socket is closed.
    pub async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Tcp(listener) => Ok(Box::new(listener.accept().await?.0)),
            Self::Unix(listener, _) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if let Self::Unix(_, Address::Unix(path)) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns whether two tokens or keys are equal, in a time that tells nothing of where they differ.
pub fn is_same(one: &str, other: &str) -> bool {
    Sha256::digest(one) == Sha256::digest(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_at_the_address_stays_and_a_socket_that_nobody_has_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let [file, socket] = ["file", "socket"].map(|name| dir.path().join(name));
        std::fs::write(&file, "mine").unwrap();
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let error = Door::open(&Address::Unix(file.clone())).await.err().unwrap();
            assert!(error.to_string().contains("it is not a socket"), "{error}");
            Door::open(&Address::Unix(socket)).await.unwrap();
        });
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    }
}
