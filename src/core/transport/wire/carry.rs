//! One connection of a wire, from greeting to end.

use super::WireError;
use super::packet::{HEADER, Header, Packet, PacketKind};
use super::sequence::{Verdict, judge};
use super::shared::Shared;
use super::spec::{In, Out, Raw, WireSpec};
use crate::transport::patience::wait_awake;
use bytes::{BufMut, Bytes, BytesMut};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::{Instant, interval};

/// The interval of checks whether there is something to acknowledge.
const PULSE: Duration = Duration::from_millis(100);
/// Contents that are copied behind their header, rather than written by themselves.
const SMALL: usize = 64 << 10;
/// Read at once, so that what is on its way counts as a sign of life.
const PIECE: usize = 64 << 10;
const GREETING: usize = 32;

/// The settings that the connections of one end of a wire have in common.
#[derive(Clone, Copy)]
pub struct End<'a> {
    pub spec: &'a WireSpec,
    pub shared: &'a Shared,
    /// The parcels that are to be sent.
    pub queue: &'a flume::Receiver<Out>,
}

/// Sends a greeting to the connecting end: the wire's number, what was received, and the life.
///
/// # Errors
/// The connection is broken.
pub async fn greet(raw: &mut Raw, key: u128, received: u64, life: u64) -> Result<(), WireError> {
    let mut contents = BytesMut::with_capacity(GREETING);
    contents.put_u128_le(key);
    contents.put_u64_le(received);
    contents.put_u64_le(life);
    let packet = Packet::new(PacketKind::Greeting, 0, contents.freeze());
    write(&mut raw.writer, &packet, 0, 0).await
}

/// Reads the other end's greeting: the wire's number, what was received there, and its life.
///
/// # Errors
/// The connection is broken, or the first packet is no greeting.
pub async fn greeted(raw: &mut Raw) -> Result<(u128, u64, u64), WireError> {
    let mut bytes = [0; HEADER];
    raw.reader.read_exact(&mut bytes).await.map_err(broken)?;
    let header = Header::read(&bytes, 0)?;
    if header.kind != PacketKind::Greeting || header.len as usize != GREETING {
        return Err(WireError::NotAPacket);
    }
    let mut contents = [0; GREETING];
    raw.reader.read_exact(&mut contents).await.map_err(broken)?;
    header.expect(&contents)?;
    let key = u128::from_le_bytes(contents[..16].try_into().expect("it is that long"));
    let number = |at: usize| u64::from_le_bytes(contents[at..at + 8].try_into().expect("it is that long"));
    Ok((key, number(16), number(24)))
}

/// Carries both directions until the wire is over, which is no error, or the connection is broken. `arrived` is taken
/// away at the other end's farewell.
pub async fn carry(
    raw: Raw,
    key: u128,
    end: End<'_>,
    arrived: &mut Option<flume::Sender<In>>,
) -> Result<(), WireError> {
    let Raw { reader, writer } = raw;
    tokio::select! {
        error = read_all(reader, key, end, arrived) => Err(error),
        result = write_all(writer, key, end) => result,
    }
}

async fn read_all(
    mut reader: impl AsyncRead + Unpin,
    key: u128,
    end: End<'_>,
    arrived: &mut Option<flume::Sender<In>>,
) -> WireError {
    loop {
        if let Err(error) = read_one(&mut reader, key, end, arrived).await {
            return error;
        }
    }
}

async fn read_one(
    reader: &mut (impl AsyncRead + Unpin),
    key: u128,
    end: End<'_>,
    arrived: &mut Option<flume::Sender<In>>,
) -> Result<(), WireError> {
    let End { spec, shared, .. } = end;
    let mut bytes = [0; HEADER];
    patiently(spec.quiet, reader.read_exact(&mut bytes)).await?;
    let header = Header::read(&bytes, key)?;
    // Before any memory is taken for it.
    if header.len > spec.max_len as u64 {
        return Err(WireError::TooLong { len: header.len, max: spec.max_len });
    }
    let mut contents = vec![0; header.len as usize];
    for piece in contents.chunks_mut(PIECE) {
        patiently(spec.quiet, reader.read_exact(piece)).await?;
    }
    header.expect(&contents)?;
    shared.acknowledged(header.acknowledged)?;
    match header.kind {
        PacketKind::Pulse => {
            let received = shared.state().received;
            if header.number > received {
                return Err(WireError::Gap { number: header.number, expected: received + 1 });
            }
        }
        PacketKind::Loose => {
            // One that finds no room is lost.
            arrived.as_ref().map(|arrived| arrived.try_send((None, contents)));
        }
        PacketKind::Message | PacketKind::Farewell => {
            let received = shared.state().received;
            if judge(received, header.number)? == Verdict::Old {
                return Ok(());
            }
            if header.kind == PacketKind::Message {
                match arrived {
                    // Counted once it is there: a connection that breaks here brings it again.
                    Some(arrived) if arrived.send_async((Some(header.number), contents)).await.is_ok() => {
                        shared.state().received = header.number;
                    }
                    // Nobody wants it.
                    _ => {
                        shared.state().received = header.number;
                        shared.confirm(header.number, 0);
                    }
                }
            } else {
                {
                    let mut state = shared.state();
                    (state.received, state.has_left) = (header.number, true);
                }
                // The receiver may still be busy with what came before; it needs that from nobody any more.
                shared.confirm(header.number, 0);
                *arrived = None;
                shared.wake.notify_one();
            }
        }
        PacketKind::Greeting => return Err(WireError::NotAPacket),
    }
    Ok(())
}

async fn write_all(mut writer: impl AsyncWrite + Unpin, key: u128, end: End<'_>) -> Result<(), WireError> {
    let End { spec, shared, queue } = end;
    let mut pulse = interval(PULSE.min(spec.quiet / 4));
    let mut last = Instant::now();
    // Dropped with the connection: then it is as good as written, for it comes with the next one.
    let mut told = None::<oneshot::Sender<()>>;
    loop {
        let next = shared.state().next();
        if let Some((packet, acknowledged)) = next {
            write(&mut writer, &packet, acknowledged, key).await?;
            last = Instant::now();
            continue;
        }
        // Whoever asked may be gone.
        told.take().map(|told| told.send(()));
        let (is_over, is_closed, has_room) = {
            let state = shared.state();
            (state.is_over(), state.is_closed, state.outbox.len() < spec.queue)
        };
        if is_over {
            let _ = writer.shutdown().await;
            return Ok(());
        }
        let loose = tokio::select! {
            out = queue.recv_async(), if !is_closed && has_room => match out {
                Ok(Out::Message(message)) => {
                    shared.state().outbox.push(PacketKind::Message, message);
                    None
                }
                Ok(Out::Told(message, out)) => {
                    shared.state().outbox.push(PacketKind::Message, message);
                    told = Some(out);
                    None
                }
                Ok(Out::Loose(message)) => Some((Packet::new(PacketKind::Loose, 0, message), shared.state().acknowledge())),
                Err(_) => {
                    let mut state = shared.state();
                    state.is_closed = true;
                    state.outbox.push(PacketKind::Farewell, Bytes::new());
                    None
                }
            },
            () = shared.wake.notified() => None,
            _ = pulse.tick() => shared.state().pulse(last.elapsed() >= spec.quiet / 4),
        };
        if let Some((packet, acknowledged)) = loose {
            write(&mut writer, &packet, acknowledged, key).await?;
            last = Instant::now();
        }
    }
}

async fn write(
    writer: &mut (impl AsyncWrite + Unpin),
    packet: &Packet,
    acknowledged: u64,
    key: u128,
) -> Result<(), WireError> {
    let header = packet.header(acknowledged, key);
    if packet.contents.len() <= SMALL {
        writer.write_all(&[&header[..], &packet.contents].concat()).await.map_err(broken)?;
    } else {
        writer.write_all(&header).await.map_err(broken)?;
        writer.write_all(&packet.contents).await.map_err(broken)?;
    }
    writer.flush().await.map_err(broken)
}

async fn patiently<T>(quiet: Duration, read: impl Future<Output = io::Result<T>>) -> Result<T, WireError> {
    wait_awake(quiet, read).await.ok_or(WireError::Silent(quiet))?.map_err(broken)
}

fn broken(error: io::Error) -> WireError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => WireError::Ended,
        _ => WireError::Io(error.to_string()),
    }
}
