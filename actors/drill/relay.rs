//! One connection through the proxy: relays messages in both directions, with the faults of the script.

use super::active::Active;
use super::injector::FaultInjector;
use super::script::Fault;
use loongforge_core::transport::envelope_len;
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The bytes that are read at once.
const PIECE: usize = 64 << 10;
/// The interval of checks whether a partition has ended.
const LOOK: Duration = Duration::from_millis(10);
/// The time that a message waits for one to come before it.
const LATE: Duration = Duration::from_millis(100);
/// Messages that may be on their way: those that are delayed.
const ON_THE_WAY: usize = 4096;

/// The way in which a connection ends.
#[derive(Debug)]
enum End {
    InOrder,
    Reset,
}

/// Carries a connection whose first message was read already. `there` and `back`: what becomes of the messages of who
/// has connected, and of the answers.
pub async fn relay(
    here: TcpStream,
    far: TcpStream,
    first: Vec<u8>,
    there: FaultInjector,
    back: FaultInjector,
    active: &Active,
) {
    let (here_read, here_write) = here.into_split();
    let (far_read, far_write) = far.into_split();
    let ends = (there.from, there.to);
    let (a, b) = (flume::bounded(ON_THE_WAY), flume::bounded(ON_THE_WAY));
    let (mut to_far, mut to_here) = (Some(far_write), Some(here_write));
    let end = tokio::select! {
        end = take(&here_read, first, there, active, a.0) => end,
        end = take(&far_read, Vec::new(), back, active, b.0) => end,
        end = give(&mut to_far, a.1) => end,
        end = give(&mut to_here, b.1) => end,
        end = wait_for_end(ends.0, ends.1, active) => end,
    };
    for (read, write) in [(here_read, to_here), (far_read, to_far)] {
        if matches!(end, End::Reset) {
            let _ = AsRef::<TcpStream>::as_ref(&read).set_zero_linger();
            // It would say an orderly end first.
            if let Some(write) = write {
                write.forget()
            }
        }
    }
}

/// A message on its way.
struct Letter {
    due: Instant,
    bytes: Vec<u8>,
    /// Bytes a second.
    rate: Option<u64>,
    /// The connection ends after it.
    is_last: bool,
}

/// Reads messages and decides what becomes of each.
async fn take(
    reader: &OwnedReadHalf,
    first: Vec<u8>,
    mut injector: FaultInjector,
    active: &Active,
    letters: flume::Sender<Letter>,
) -> End {
    let mut buffer = first;
    let mut late: Option<Vec<u8>> = None;
    loop {
        while let Some(mut message) = cut(&mut buffer) {
            while active.is_partitioned(injector.from, injector.to) {
                sleep(LOOK).await;
            }
            let injection = injector.next(active, &mut message);
            let due = Instant::now() + injection.delay;
            let is_last = injection.cut.is_some();
            message.truncate(injection.cut.unwrap_or(message.len()));
            let mut bytes = if injection.is_lost { Vec::new() } else { message };
            if injection.comes_twice {
                bytes.extend_from_within(..);
            }
            if injection.comes_late && late.is_none() {
                late = Some(bytes);
                continue;
            }
            bytes.extend(late.take().unwrap_or_default());
            if letters.send_async(Letter { due, bytes, rate: injection.rate, is_last }).await.is_err() {
                return End::InOrder;
            }
        }
        let more = read(reader, &mut buffer);
        let got = match late.is_some() {
            true => timeout(LATE, more).await,
            false => Ok(more.await),
        };
        match got {
            Ok(Ok(len)) if len > 0 => {}
            Ok(_) => return End::InOrder,
            // Nothing follows: it was late enough.
            Err(_) => {
                let bytes = late.take().unwrap_or_default();
                if letters.send_async(Letter { due: Instant::now(), bytes, rate: None, is_last: false }).await.is_err()
                {
                    return End::InOrder;
                }
            }
        }
    }
}

async fn read(reader: &OwnedReadHalf, buffer: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        reader.readable().await?;
        let mut piece = [0; PIECE / 16];
        match reader.try_read(&mut piece) {
            Ok(len) => {
                buffer.extend_from_slice(&piece[..len]);
                return Ok(len);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the next whole message of what was read; of what is none of loongforge's, all.
fn cut(buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    match envelope_len(buffer) {
        _ if buffer.is_empty() => None,
        Ok(Some(len)) if len <= buffer.len() => Some(buffer.drain(..len).collect()),
        Ok(_) => None,
        Err(_) => Some(std::mem::take(buffer)),
    }
}

async fn give(writer: &mut Option<OwnedWriteHalf>, letters: flume::Receiver<Letter>) -> End {
    let Some(writer) = writer else { return End::InOrder };
    while let Ok(Letter { due, bytes, rate, is_last }) = letters.recv_async().await {
        sleep_until(due).await;
        let pieces = bytes.chunks(if rate.is_some() { 1 << 10 } else { PIECE });
        for piece in pieces {
            if writer.write_all(piece).await.is_err() {
                return End::InOrder;
            }
            if let Some(rate) = rate {
                sleep(Duration::from_secs_f64(piece.len() as f64 / rate as f64)).await;
            }
        }
        if is_last {
            break;
        }
    }
    End::InOrder
}

/// Ends connections when a fault that does so begins.
async fn wait_for_end(
    a: loongforge_core::message::ActorId,
    b: loongforge_core::message::ActorId,
    active: &Active,
) -> End {
    let mut steps = active.steps();
    let found = || {
        let mut faults = active.between(a, b).chain(active.between(b, a));
        faults.find(|(_, verb)| matches!(verb, Fault::Drop | Fault::Reset))
    };
    // Those that went on when it began had their connections then.
    let begun_with: BTreeSet<usize> = found().into_iter().map(|(index, _)| index).collect();
    loop {
        if steps.changed().await.is_err() {
            return std::future::pending().await;
        }
        if let Some((index, verb)) = found().filter(|(index, _)| !begun_with.contains(index)) {
            active.happened(index);
            return if *verb == Fault::Reset { End::Reset } else { End::InOrder };
        }
    }
}
