//! The place where an actor's edges come in, and this host's address as others reach it.

use super::Meeting;
use super::join::JoinError;
use super::net::Listener;
use loongforge_core::config::Address;
use loongforge_core::message::ActorId;
use loongforge_core::transport::SlabListener;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// The pause before the scheduler's name is looked up again, and the interval of log lines about it.
const RETRY: Duration = Duration::from_millis(200);
const REMIND: Duration = Duration::from_secs(5);

/// The listener for edges before the actor is known.
pub(super) enum Inlet {
    Slab(PathBuf),
    Stream(Listener),
}

/// The listener for edges.
pub(super) enum Door {
    Slab(SlabListener),
    Stream(Listener),
}

/// This machine's address as it is reached from there: nothing is sent for it. A name may have addresses of IPv6 alone.
fn mine(host: &str, port: u16) -> io::Result<IpAddr> {
    let mut addresses: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    let mut last = io::Error::other(format!("the host `{host}` has no address"));
    for address in addresses {
        let unspecified = if address.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
        let found = UdpSocket::bind(unspecified).and_then(|socket| {
            socket.connect(address)?;
            Ok(socket.local_addr()?.ip())
        });
        match found {
            Ok(mine) => return Ok(mine),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Returns what `find` finds of this machine's address towards `host`, and tries again until `patience` has passed: as a scheduler that
/// does not listen yet, one whose name is not known yet is waited for. The first failure is told at once, later ones from time to time.
///
/// # Errors
/// Fails with the last failure.
async fn found_in_time(
    host: &str,
    patience: Duration,
    find: impl Fn() -> io::Result<IpAddr>,
    mut tell: impl FnMut(String),
) -> io::Result<IpAddr> {
    let begin = Instant::now();
    let mut told: Option<Instant> = None;
    loop {
        let error = match find() {
            Err(error) if begin.elapsed() < patience => error,
            found => return found,
        };
        if told.is_none_or(|told| told.elapsed() >= REMIND) {
            tell(format!("waiting up to {} s for the scheduler's host `{host}`: {error}", patience.as_secs()));
            told = Some(Instant::now());
        }
        sleep(RETRY).await;
    }
}

/// Returns how actors are told of a store that listens at a port of the scheduler's host.
pub(super) fn at_port(port: u16) -> PathBuf {
    Path::new("tcp").join(port.to_string())
}

/// Returns the path of such a store as this host's process groups take it: with the hosts of both; `None` for a folder.
pub(super) fn rendezvous_at(path: &Path, scheduler: &Address) -> Option<io::Result<PathBuf>> {
    let store = path.strip_prefix("tcp").ok()?;
    let Address::Tcp { host, port } = scheduler else { return None };
    Some(mine(host, *port).map(|mine| Path::new("tcp").join(host).join(store).join(mine.to_string())))
}

impl Inlet {
    /// Must be called inside a runtime. `folder`: of this process alone.
    ///
    /// # Errors
    /// This host has no address of the scheduler's family, or cannot listen.
    pub async fn new(meeting: &Meeting, folder: &Path) -> Result<Self, JoinError> {
        let Address::Tcp { host, port } = &meeting.address else { return Ok(Self::Slab(folder.join("edges"))) };
        if meeting.shared_memory && meeting.address.is_local() {
            return Ok(Self::Slab(folder.join("edges")));
        }
        let (find, tell) = (|| mine(host, *port), |line: String| tracing::warn!("{line}"));
        let own = found_in_time(host, meeting.timeout, find, tell).await.map_err(|error| {
            let (address, seconds) = (meeting.address.to_string(), meeting.timeout.as_secs());
            JoinError::NoScheduler { address, seconds, cause: format!(" ({error})") }
        })?;
        let at = Address::Tcp { host: own.to_string(), port: 0 };
        Ok(Self::Stream(Listener::bind(&at, &meeting.security).await?))
    }

    /// Opens the door of `me`, and returns the address for the others.
    ///
    /// # Errors
    /// Fails if it cannot listen there.
    pub fn open(self, me: ActorId) -> Result<(Door, PathBuf), JoinError> {
        match self {
            Self::Slab(path) => {
                let address = path.display().to_string();
                let bound = SlabListener::bind(&path, me).map_err(|error| io::Error::other(error.to_string()));
                let bound = bound.map_err(|source| JoinError::Listen { address, source })?;
                Ok((Door::Slab(bound), path))
            }
            Self::Stream(listener) => {
                let address = listener.address().to_string();
                Ok((Door::Stream(listener), address.into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Looks up a name that is known from the third time on; returns what was found and told.
    fn look_up(patience: Duration) -> (io::Result<IpAddr>, Vec<String>) {
        let (count, mut told) = (Cell::new(0), Vec::new());
        let find = || {
            count.set(count.get() + 1);
            if count.get() < 3 { Err(io::Error::other("no such name")) } else { Ok(IpAddr::from([10, 0, 0, 1])) }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let found = runtime.block_on(found_in_time("head", patience, find, |line| told.push(line)));
        (found, told)
    }

    #[test]
    fn a_host_whose_name_is_not_known_is_told_at_once_and_waited_for() {
        let (found, told) = look_up(Duration::from_secs(60));
        assert_eq!(found.unwrap(), IpAddr::from([10, 0, 0, 1]));
        assert_eq!(told, ["waiting up to 60 s for the scheduler's host `head`: no such name"]);
        let (found, told) = look_up(Duration::ZERO);
        assert_eq!((found.unwrap_err().to_string(), told.len()), ("no such name".to_owned(), 0));
    }

    #[test]
    fn an_address_is_of_the_family_that_the_host_has() {
        assert_eq!(mine("127.0.0.1", 1).unwrap(), IpAddr::from([127, 0, 0, 1]));
        // Its name has an address of IPv4 on every machine, and often one of IPv6 as well.
        assert!(mine("localhost", 1).unwrap().is_loopback());
        let six = |host: &str| (host, 1_u16).to_socket_addrs().is_ok_and(|mut found| found.all(|one| one.is_ipv6()));
        // A name of IPv6 alone, where the machine has it.
        if six("ip6-localhost") && UdpSocket::bind("[::1]:0").is_ok() {
            assert_eq!(mine("ip6-localhost", 1).unwrap(), "::1".parse::<IpAddr>().unwrap());
        }
    }
}
