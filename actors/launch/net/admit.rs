//! Admits incoming connections: who the peer is, and whether its first message agrees.

use super::error::Refusal;
use super::stream::{Duplex, HEADER, LEN, MAGIC, MAX_HELLO};
use super::{Identity, Party, Security, Stream};
use crate::launch::join::{Down, Up};
use loongforge_core::config::Address;
use loongforge_core::message::decode;
use loongforge_core::transport::link;
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// The time that a process that is turned away may take to read the answer.
const FAREWELL: Duration = Duration::from_secs(1);
/// First byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;

/// An accepted connection of which nothing is known.
pub(super) enum Stranger {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// Admits a connection; its first message is still to be read.
pub(super) async fn admit(stranger: Stranger, address: &Address, security: &Security) -> Result<Stream, Refusal> {
    match stranger {
        Stranger::Unix(stream) => {
            let uid = stream.peer_cred().map_err(|error| Refusal::Handshake(error.to_string()))?.uid();
            let mine = rustix::process::geteuid().as_raw();
            if uid != mine && uid != 0 {
                return Err(Refusal::OtherUser { uid });
            }
            hear(stream, None, None).await
        }
        Stranger::Tcp(stream) => {
            let failed = |error: io::Error| Refusal::Handshake(error.to_string());
            stream.set_nodelay(true).map_err(failed)?;
            let host = stream.peer_addr().map_err(failed)?.ip();
            let mut first = [0; 4];
            let len = match stream.peek(&mut first).await {
                Ok(0) => return Err(Refusal::Left),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(Refusal::Left),
                peeked => peeked.map_err(failed)?,
            };
            match security.encrypts(address) {
                Some(_) if MAGIC.starts_with(&first[..len]) => Err(turn_away(stream, Refusal::Plain).await),
                Some(tls) => {
                    let accepted = TlsAcceptor::from(tls.server.clone()).accept(stream).await;
                    let stream = accepted.map_err(|error| Refusal::Handshake(format!("TLS: {error}")))?;
                    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                    let identity = Identity::of(certificate.ok_or(Refusal::NoIdentity)?)?;
                    match identity.expect_run(&security.run) {
                        Ok(()) => hear(stream, Some(host), Some(identity.party)).await,
                        Err(refusal) => Err(turn_away(stream, refusal).await),
                    }
                }
                None if first[0] == TLS_HANDSHAKE => Err(Refusal::Encrypted),
                None => hear(stream, Some(host), None).await,
            }
        }
    }
}

/// Reads the first message, and puts it back. With a certificate, the message must agree with it.
async fn hear(
    mut stream: impl Duplex + 'static,
    host: Option<IpAddr>,
    certified: Option<Party>,
) -> Result<Stream, Refusal> {
    let mut bytes = vec![0; HEADER];
    let mut have = 0;
    // What is no frame of ours is named by who reads it next: there is no need to wait for all of a header.
    while have < HEADER && bytes[..have.min(4)] == MAGIC[..have.min(4)] {
        match stream.read(&mut bytes[have..]).await {
            Ok(0) | Err(_) => return Err(Refusal::NoHello),
            Ok(len) => have += len,
        }
    }
    bytes.truncate(have);
    let len = bytes.get(LEN..LEN + 4).map(|len| u32::from_le_bytes(len.try_into().expect("they are four")) as usize);
    let is_frame = bytes.starts_with(MAGIC);
    if let Some(len) = len.filter(|_| is_frame && have == HEADER) {
        if len > MAX_HELLO {
            return Err(Refusal::TooLong { len, max: MAX_HELLO });
        }
        bytes.resize(HEADER + len, 0);
        stream.read_exact(&mut bytes[HEADER..]).await.map_err(|_| Refusal::NoHello)?;
    }
    if let Some(certified) = certified {
        // Another version's message is another version's to read: that is named by who reads it next.
        let said = bytes.get(HEADER..).and_then(|message| decode::<Up>(message).ok()).and_then(|up| party(&up));
        match said {
            Some(said) if said == certified => {}
            Some(said) => return Err(turn_away(stream, Refusal::OtherRole { certified, said }).await),
            None => return Err(turn_away(stream, Refusal::NoHello).await),
        }
    }
    let mut stream = Stream::new(stream, host);
    stream.unread(bytes);
    Ok(stream)
}

/// Returns the party that sends this as its first message.
fn party(up: &Up) -> Option<Party> {
    match up {
        Up::Hello { role, .. } => Some(Party::Actor(*role)),
        Up::Edge { from, .. } | Up::Return { from, .. } => Some(Party::Actor(from.role)),
        Up::Scale { .. } => Some(Party::Operator),
        _ => None,
    }
}

/// Sends the reason for a refusal, as far as it is read.
async fn turn_away(stream: impl Duplex + 'static, refusal: Refusal) -> Refusal {
    let (mut sender, mut receiver) = link::<Down, Up>(stream);
    let _ = sender.send(&Down::Refused { reason: refusal.to_string() }).await;
    let _ = sender.close().await;
    // A connection that closes on unread words would take the answer with it.
    let _ = timeout(FAREWELL, receiver.recv()).await;
    refusal
}
