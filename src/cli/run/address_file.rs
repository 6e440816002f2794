//! The address at which a run's scheduler listens, and the file by which others find it.

use crate::cli::scale::{ADDRESS, SOCKET};
use loongforge_core::config::Address;
use std::path::{Path, PathBuf};

/// Returns a port of this machine's, for who shall not share memory: the same for who follows.
///
/// # Errors
/// Fails if the file with the address cannot be read or written, or no port is free.
pub fn port_of_run(folder: &Path, is_takeover: bool) -> anyhow::Result<Address> {
    let kept = folder.join("address");
    if is_takeover {
        return std::fs::read_to_string(&kept)?.parse().map_err(|error: String| anyhow::anyhow!(error));
    }
    let address = Address::Tcp { host: "127.0.0.1".into(), port: free_port()? };
    std::fs::write(&kept, address.to_string())?;
    Ok(address)
}

/// Returns a port of loopback that nobody listens at.
fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// A file in the run's folder that says where its scheduler listens, for processes that look for the run: a link to its socket, or a file
/// with its address. It is removed with the run.
pub struct AddressFile(PathBuf);

impl AddressFile {
    /// A folder without links is no reason not to run.
    pub fn put_up(dir: &Path, address: &Address) -> Self {
        let [socket, written] = [SOCKET, ADDRESS].map(|name| dir.join(name));
        // Either may be of a run in this folder that was killed.
        for former in [&socket, &written] {
            let _ = std::fs::remove_file(former);
        }
        let address_file = match address {
            Address::Unix(_) => socket,
            Address::Tcp { .. } => written,
        };
        let _ = match address {
            Address::Unix(path) => std::os::unix::fs::symlink(path, &address_file),
            Address::Tcp { .. } => std::fs::write(&address_file, address.to_string()),
        };
        Self(address_file)
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_has_put_up_does_not_hide_the_address_of_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let addresses: [Address; 2] =
            [Address::Unix(dir.path().join("socket")), Address::Tcp { host: "127.0.0.1".into(), port: 6001 }];
        for (killed, next) in [(0, 1), (1, 0)] {
            std::mem::forget(AddressFile::put_up(dir.path(), &addresses[killed]));
            let address_file = AddressFile::put_up(dir.path(), &addresses[next]);
            let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert_eq!(names, std::slice::from_ref(&address_file.0));
        }
    }
}
