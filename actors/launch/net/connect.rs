//! Outgoing connections.

use super::error::Refusal;
use super::{Identity, Party, Security, Stream};
use crate::drill;
use loongforge_core::config::Address;
use loongforge_core::message::Role;
use rustls::pki_types::ServerName;
use std::io;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Connects to the listener at `address`: with TLS, to a process of this run that is certified to be `wanted`, if that matters.
///
/// # Errors
/// Fails if nobody listens yet; or, with the kind `InvalidData`, if the peer is not the expected one, and a retry is pointless.
pub async fn connect(address: &Address, security: &Security, wanted: Option<Role>) -> io::Result<Stream> {
    security.expect_secure(address).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {:?}", security.patience));
    timeout(security.patience, open(address, security, wanted)).await.map_err(|_| late())?
}

async fn open(address: &Address, security: &Security, wanted: Option<Role>) -> io::Result<Stream> {
    let (host, port) = match address {
        Address::Unix(path) => return Ok(Stream::new(UnixStream::connect(path).await?, None)),
        Address::Tcp { host, port } => (host, *port),
    };
    let tcp = match security.proxy {
        None => TcpStream::connect((&**host, port)).await?,
        Some(proxy) => {
            let mut tcp = TcpStream::connect(proxy).await?;
            tcp.write_all(drill::words(wanted, &address.to_string()).as_bytes()).await?;
            tcp
        }
    };
    // Messages are small and waited for.
    tcp.set_nodelay(true)?;
    let peer = Some(tcp.peer_addr()?.ip());
    let Some(tls) = security.encrypts(address) else { return Ok(Stream::new(tcp, peer)) };
    // The certificate says a run and a role, not a host: the name is only for the message.
    let name = ServerName::try_from("loongforge").expect("it is a name");
    let stream = TlsConnector::from(tls.client.clone()).connect(name, tcp).await.map_err(explain)?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let identity = certificate.ok_or(Refusal::NoIdentity).and_then(Identity::of).map_err(wrong)?;
    match wanted {
        Some(role) if identity.party != Party::Actor(role) => {
            Err(wrong(Refusal::OtherRole { certified: identity.party, said: Party::Actor(role) }))
        }
        _ => Ok(Stream::new(stream, peer)),
    }
}

fn wrong(refusal: Refusal) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, refusal)
}

/// Returns the error with the most likely cause of a failed handshake.
fn explain(error: io::Error) -> io::Error {
    let is_tls = error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
    let cut_off = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset].contains(&error.kind());
    if cut_off {
        return wrong(Refusal::Encrypted);
    }
    if is_tls { io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {error}")) } else { error }
}
