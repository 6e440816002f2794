//! The store through which process groups on several hosts find each other: c10d's, in the scheduler's process. It knows
//! no login: whoever reaches it can write into it.

use super::error::{NativeError, last_error};
use super::ffi;
use std::ffi::{CString, c_void};
use std::io;
use std::net::TcpListener;
use std::os::fd::IntoRawFd;
use std::time::Duration;

/// The time that a request may take.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A store that listens until it is dropped.
pub struct StoreServer {
    port: u16,
    store: *mut c_void,
}

// SAFETY: c10d's store locks what it shares; a `StoreServer` is only held and dropped.
unsafe impl Send for StoreServer {}

impl StoreServer {
    /// Listens at a port of `host`, which is this machine's address, and nowhere else; 0: any port.
    ///
    /// # Errors
    /// The address is not this machine's, or the port is taken.
    pub fn start(host: &str, port: u16) -> Result<Self, NativeError> {
        let failed = |message: String| NativeError::Store { host: host.to_owned(), message };
        let cause = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrNotAvailable => format!(
                "{error}: no network interface of this machine has this address; the scheduler listens (`--join`) at one of \
                 its own machine, or at 0.0.0.0"
            ),
            _ => error.to_string(),
        };
        let listener = TcpListener::bind((host, port)).map_err(|error| failed(cause(error)))?;
        let port = listener.local_addr().map_err(|error| failed(error.to_string()))?.port();
        let c_host = CString::new(host).map_err(|_| NativeError::Nul { what: "a host name" })?;
        let timeout = TIMEOUT.as_millis() as i64;
        // SAFETY: the string outlives the call; the socket is the store's from now on.
        let store = unsafe { ffi::lf_store_serve(c_host.as_ptr(), port.into(), listener.into_raw_fd(), timeout) };
        if store.is_null() { Err(failed(last_error())) } else { Ok(Self { port, store }) }
    }

    /// Returns the TCP port that the store listens at.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        // SAFETY: it was made by `lf_store_serve` and is freed once.
        unsafe { ffi::lf_store_free(self.store) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_another_machine_is_said_to_be_one() {
        let error = StoreServer::start("203.0.113.9", 0).map(drop).unwrap_err().to_string();
        assert!(error.contains("203.0.113.9") && error.contains("no network interface of this machine"), "{error}");
    }
}
