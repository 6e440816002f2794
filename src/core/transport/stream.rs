//! The edge between two hosts: parcels as frames on a byte stream, with the credit of any edge.
//!
//! The producer copies a parcel's tensors once, into a frame; a task writes it. The consumer checks every field and a
//! CRC32C of header and body before anything is believed, lays the tensors into ordinary memory and acknowledges a
//! parcel by its number when its credit is dropped, in any order. Until then the producer counts it as in flight, so the
//! memory of both ends is bounded by the one credit. Encryption and login are the stream's.
//!
//! ```text
//! parcel   LFPC  version u16  header u32  body u64  number u64  crc32c of all that follows and of the four before u32
//!          header: postcard of (Header, [TensorMeta]);  body: the tensors, end to end
//! acknowledgement   number u64
//! ```
//!
//! A stream that ends between two parcels after a farewell (number `u64::MAX`, nothing else) is an orderly end; any other
//! end is a lost peer. The task that hears it says so to the mailbox.

use super::credit::{Credit, CreditGuard, MAX_PARCELS};
use super::frame::PROTOCOL_VERSION;
use super::{Edge, Header, HostTensor, Mail, MailSender, Parcel, Refusal, Refused, TensorMeta};
use crate::message::{ActorId, decode, encode};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};

const MAGIC: [u8; 4] = *b"LFPC";
/// Magic, version, length of the header, length of the body, number, checksum.
const PRELUDE: usize = 4 + 2 + 4 + 8 + 8 + 4;
/// Longest header: tens of tensors.
const MAX_HEADER: usize = 16 << 10;
const FAREWELL: u64 = u64::MAX;

/// What goes wrong on a stream of parcels.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("connection: {0}")]
    Io(#[from] io::Error),
    #[error("it sent something else than a parcel")]
    NotAParcel,
    #[error("it speaks protocol version {theirs}, this loongforge {ours}")]
    OtherVersion { theirs: u16, ours: u16 },
    #[error("a parcel arrived corrupt")]
    Corrupt,
    #[error("a parcel's header of {header} and body of {body} bytes exceed the credit of {credit}")]
    TooLong { header: usize, body: u64, credit: usize },
    #[error("a parcel's tensors of {tensors} bytes do not fit its body of {body}")]
    Unfit { tensors: u128, body: u64 },
    #[error("parcel {number} where {expected} was next")]
    OutOfOrder { number: u64, expected: u64 },
    #[error("it acknowledged parcel {number}, which is not in flight")]
    Acknowledged { number: u64 },
    #[error("its process ended or broke the connection")]
    Ended,
}

/// Sending end of an edge to an engine on another host.
pub struct StreamEdge {
    credit: Credit,
    frames: flume::Sender<Vec<u8>>,
    in_flight: Arc<Mutex<BTreeMap<u64, CreditGuard>>>,
    next: u64,
}

impl StreamEdge {
    /// An edge of `credit` bytes to `to` over `stream`; the mailbox of `mail` is told of returned credit and of `to`'s
    /// end. Must be called inside a runtime. With it comes what writes its parcels, to be run until it ends, which is once
    /// the edge is dropped and everything is written.
    pub fn new(
        stream: impl AsyncRead + AsyncWrite + Send + 'static,
        to: ActorId,
        credit: usize,
        mail: MailSender,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (frames, to_write) = flume::bounded(MAX_PARCELS);
        let in_flight = Arc::default();
        let (reader, writer) = tokio::io::split(stream);
        tokio::spawn(acknowledged(reader, to, Arc::clone(&in_flight), frames.downgrade(), mail.clone()));
        let edge = Self { credit: Credit::new(credit, mail.clone()), frames, in_flight, next: 0 };
        (edge, write(writer, to_write))
    }
}

impl Edge for StreamEdge {
    fn try_send(&mut self, parcel: Parcel) -> Result<(), Refused> {
        let bytes = parcel.num_bytes();
        let refused = |parcel, why| Err(Refused { parcel, why });
        if self.frames.is_disconnected() {
            return refused(parcel, Refusal::Closed);
        }
        if bytes > self.credit.capacity() {
            let why = Refusal::TooLarge { bytes, credit: self.credit.capacity() };
            return refused(parcel, why);
        }
        let Ok(frame) = frame(&parcel, self.next) else {
            let num_tensors = parcel.tensors.len();
            return refused(parcel, Refusal::Unfit { num_tensors });
        };
        let Some(guard) = self.credit.take(bytes) else { return refused(parcel, Refusal::NoCredit) };
        lock(&self.in_flight).insert(self.next, guard);
        // As long as the parcels that may be in flight: it is never full.
        if self.frames.try_send(frame).is_err() {
            lock(&self.in_flight).remove(&self.next);
            return refused(parcel, Refusal::Closed);
        }
        self.next += 1;
        Ok(())
    }

    fn load(&mut self) -> (usize, usize) {
        (self.credit.in_flight(), self.credit.capacity())
    }
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The whole frame of a parcel.
fn frame(parcel: &Parcel, number: u64) -> Result<Vec<u8>, ()> {
    let metas: Vec<TensorMeta> = parcel.tensors.iter().map(|tensor| tensor.meta()).collect();
    let header = encode(&(parcel.header, &metas)).map_err(drop)?;
    if header.len() > MAX_HEADER {
        return Err(());
    }
    let body: usize = metas.iter().map(TensorMeta::num_bytes).sum();
    let mut bytes = vec![0; PRELUDE + header.len() + body];
    bytes[PRELUDE..PRELUDE + header.len()].copy_from_slice(&header);
    let mut at = PRELUDE + header.len();
    for (tensor, meta) in parcel.tensors.iter().zip(&metas) {
        tensor.copy_to(&mut bytes[at..at + meta.num_bytes()]);
        at += meta.num_bytes();
    }
    prelude(&mut bytes, header.len() as u32, body as u64, number);
    Ok(bytes)
}

fn prelude(bytes: &mut [u8], header: u32, body: u64, number: u64) {
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    bytes[6..10].copy_from_slice(&header.to_le_bytes());
    bytes[10..18].copy_from_slice(&body.to_le_bytes());
    bytes[18..26].copy_from_slice(&number.to_le_bytes());
    let crc = checksum(bytes);
    bytes[26..30].copy_from_slice(&crc.to_le_bytes());
}

/// Of everything but the checksum itself.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..26]), &bytes[PRELUDE..])
}

/// Writes frames until the edge is dropped, then the farewell.
async fn write(mut writer: WriteHalf<impl AsyncWrite>, frames: flume::Receiver<Vec<u8>>) {
    while let Ok(frame) = frames.recv_async().await {
        // A broken connection is learnt from the other half.
        if writer.write_all(&frame).await.is_err() || writer.flush().await.is_err() {
            return;
        }
    }
    let mut farewell = vec![0; PRELUDE];
    prelude(&mut farewell, 0, 0, FAREWELL);
    let _ = writer.write_all(&farewell).await;
    let _ = writer.shutdown().await;
}

/// Takes credit back until the stream ends.
async fn acknowledged(
    mut reader: ReadHalf<impl AsyncRead>,
    to: ActorId,
    in_flight: Arc<Mutex<BTreeMap<u64, CreditGuard>>>,
    edge: flume::WeakSender<Vec<u8>>,
    mail: MailSender,
) {
    let error = loop {
        match reader.read_u64_le().await {
            // It has left in order: what is sent to it now is refused, and that is all.
            Ok(FAREWELL) => {
                lock(&in_flight).clear();
                return;
            }
            Ok(number) => {
                let guard = lock(&in_flight).remove(&number);
                if guard.is_none() {
                    break StreamError::Acknowledged { number };
                }
            }
            Err(_) => break StreamError::Ended,
        }
    };
    // Whose edge is dropped does not miss the peer; what was in flight is nobody's any more.
    lock(&in_flight).clear();
    if edge.upgrade().is_some() {
        drop(mail.send(Mail::Gone { peer: to, reason: error.to_string() }));
    }
}

/// Receives the parcels of `from` until its end, of which the mailbox is told unless it was in order; or until nobody
/// holds the other end of `here`, which is this engine's own orderly end.
pub async fn receive(
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    from: ActorId,
    credit: usize,
    mail: MailSender,
    here: flume::Receiver<()>,
) {
    let (mut reader, writer) = tokio::io::split(stream);
    let (acknowledge, numbers) = flume::bounded::<u64>(MAX_PARCELS);
    let acknowledging = tokio::spawn(acknowledge_all(writer, numbers));
    let lent = Arc::new(Credit::new(credit, mail.clone()));
    let mut expected = 0;
    let error = loop {
        let parcel = tokio::select! {
            parcel = next(&mut reader, credit, expected) => parcel,
            _ = here.recv_async() => {
                let _ = acknowledge.send_async(FAREWELL).await;
                drop(acknowledge);
                let _ = acknowledging.await;
                return;
            }
        };
        match parcel {
            Ok(None) => return,
            Ok(Some(mut parcel)) => {
                // What is not yet dropped here is the producer's to count, and ours to check.
                let Some(guard) = lent.take(parcel.num_bytes()) else {
                    break StreamError::TooLong { header: 0, body: parcel.num_bytes() as u64, credit };
                };
                parcel.credit = Some(CreditGuard::new(Receipt {
                    number: expected,
                    acknowledge: acknowledge.clone(),
                    guard: Some(guard),
                }));
                expected += 1;
                // An engine that is gone drops it, which is noticed above.
                drop(mail.send(Mail::Parcel { from, parcel }));
            }
            Err(error) => break error,
        }
    };
    drop(mail.send(Mail::Gone { peer: from, reason: error.to_string() }));
}

/// Acknowledges a parcel when it is dropped.
struct Receipt {
    number: u64,
    acknowledge: flume::Sender<u64>,
    guard: Option<CreditGuard>,
}

impl Drop for Receipt {
    fn drop(&mut self) {
        // Here first: what the producer sends for it must find room.
        self.guard = None;
        // As long as the parcels that may be in flight: never full. A producer that is gone needs no credit.
        let _ = self.acknowledge.try_send(self.number);
    }
}

async fn acknowledge_all(mut writer: WriteHalf<impl AsyncWrite>, numbers: flume::Receiver<u64>) {
    while let Ok(number) = numbers.recv_async().await {
        let mut bytes = number.to_le_bytes().to_vec();
        let mut last = number;
        numbers.try_iter().for_each(|number| {
            bytes.extend(number.to_le_bytes());
            last = number;
        });
        if writer.write_all(&bytes).await.is_err() || writer.flush().await.is_err() {
            return;
        }
        if last == FAREWELL {
            let _ = writer.shutdown().await;
            return;
        }
    }
}

/// The next parcel; `None` after a farewell.
async fn next(
    reader: &mut (impl AsyncRead + Unpin),
    credit: usize,
    expected: u64,
) -> Result<Option<Parcel>, StreamError> {
    let mut bytes = vec![0; PRELUDE];
    match reader.read_exact(&mut bytes).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(StreamError::Ended),
        Err(error) => return Err(error.into()),
    }
    if bytes[..4] != MAGIC {
        return Err(StreamError::NotAParcel);
    }
    let theirs = u16::from_le_bytes(field(&bytes, 4));
    if theirs != PROTOCOL_VERSION {
        return Err(StreamError::OtherVersion { theirs, ours: PROTOCOL_VERSION });
    }
    let header = u32::from_le_bytes(field(&bytes, 6)) as usize;
    let body = u64::from_le_bytes(field(&bytes, 10));
    let number = u64::from_le_bytes(field(&bytes, 18));
    let crc = u32::from_le_bytes(field(&bytes, 26));
    // Before any memory is taken for it.
    if header > MAX_HEADER || body > credit as u64 {
        return Err(StreamError::TooLong { header, body, credit });
    }
    bytes.resize(PRELUDE + header + body as usize, 0);
    reader.read_exact(&mut bytes[PRELUDE..]).await.map_err(|_| StreamError::Ended)?;
    if checksum(&bytes) != crc {
        return Err(StreamError::Corrupt);
    }
    if number == FAREWELL {
        return Ok(None);
    }
    if number != expected {
        return Err(StreamError::OutOfOrder { number, expected });
    }
    parcel(&bytes[PRELUDE..], header, body).map(Some)
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("it is that long")
}

fn parcel(bytes: &[u8], header: usize, body: u64) -> Result<Parcel, StreamError> {
    let (header, mut rest) = bytes.split_at(header);
    let (header, metas): (Header, Vec<TensorMeta>) = decode(header).map_err(|_| StreamError::NotAParcel)?;
    // In u128: dimensions of a lying peer must not wrap around.
    let size = |meta: &TensorMeta| {
        let size = |sum: u128, &dim: &usize| sum.saturating_mul(dim as u128);
        meta.shape.iter().fold(meta.dtype.size() as u128, size)
    };
    let tensors = metas.iter().map(size).fold(0, u128::saturating_add);
    if tensors != u128::from(body) {
        return Err(StreamError::Unfit { tensors, body });
    }
    let tensors = metas.into_iter().map(|meta| {
        let (mine, after) = rest.split_at(meta.num_bytes());
        rest = after;
        Box::new(HostTensor::new(meta.dtype, &meta.shape, mine.to_vec())) as Box<dyn super::Buffer>
    });
    Ok(Parcel::new(header, tensors.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{StepId, UnitId, Version};
    use crate::transport::{Mailbox, ParcelKind};
    use proptest::prelude::*;
    use std::time::Duration;

    fn parcel_of(values: &[f32]) -> Parcel {
        let header = Header { kind: ParcelKind::Pixels(UnitId { step: StepId(3), index: 1 }), version: Version(2) };
        Parcel::new(header, vec![Box::new(HostTensor::from_f32(values, &[values.len()]))])
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    /// An edge of so many bytes, and both mailboxes.
    fn pair(runtime: &tokio::runtime::Runtime, credit: usize) -> (StreamEdge, Mailbox, Mailbox) {
        let (here, there) = tokio::io::duplex(1 << 12);
        let (producer, consumer) = (Mailbox::new(1, 4), Mailbox::new(1, 4));
        let _inside = runtime.enter();
        let (edge, carrier) = StreamEdge::new(here, ActorId::encoder(0), credit, producer.sender());
        tokio::spawn(carrier);
        let (stays, here) = flume::bounded(0);
        tokio::spawn(receive(there, ActorId::data(0), credit, consumer.sender(), here));
        std::mem::forget(stays);
        (edge, producer, consumer)
    }

    fn take(mailbox: &Mailbox) -> Parcel {
        match mailbox.recv_timeout(Duration::from_secs(20)) {
            Some(Mail::Parcel { parcel, .. }) => parcel,
            other => panic!("no parcel but {other:?}"),
        }
    }

    #[test]
    fn parcels_come_whole_and_their_credit_goes_back() {
        let runtime = runtime();
        let (mut edge, producer, consumer) = pair(&runtime, 100_000);
        let values: Vec<f32> = (0..20_000).map(|i| i as f32).collect();
        edge.try_send(parcel_of(&values)).unwrap();
        assert_eq!(edge.try_send(parcel_of(&values)).unwrap_err().why, Refusal::NoCredit);
        assert_eq!(edge.load(), (80_000, 100_000));
        let parcel = take(&consumer);
        assert_eq!(parcel.header, parcel_of(&[]).header);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        assert_eq!(parcel.tensors[0].bytes().unwrap(), bytes);
        drop(parcel);
        assert!(matches!(producer.recv_timeout(Duration::from_secs(20)), Some(Mail::Credit)));
        edge.try_send(parcel_of(&values)).unwrap();
        assert_eq!(
            edge.try_send(parcel_of(&[0.0; 25_001])).unwrap_err().why,
            Refusal::TooLarge { bytes: 100_004, credit: 100_000 }
        );
    }

    #[test]
    fn an_orderly_end_is_no_loss_and_what_was_sent_arrives() {
        let runtime = runtime();
        let (mut edge, _producer, consumer) = pair(&runtime, 1000);
        edge.try_send(parcel_of(&[1.0])).unwrap();
        drop(edge);
        drop(take(&consumer));
        assert!(consumer.recv_timeout(Duration::from_millis(50)).is_none());
    }

    #[test]
    fn a_peer_that_dies_is_told_and_one_that_leaves_is_not() {
        let runtime = runtime();
        for in_order in [false, true] {
            let (here, there) = tokio::io::duplex(1 << 12);
            let producer = Mailbox::new(1, 4);
            let _inside = runtime.enter();
            let (mut edge, carrier) = StreamEdge::new(here, ActorId::encoder(0), 100, producer.sender());
            tokio::spawn(carrier);
            if in_order {
                let (stays, here) = flume::bounded(0);
                drop(stays);
                runtime.block_on(receive(there, ActorId::data(0), 100, Mailbox::new(1, 1).sender(), here));
            } else {
                drop(there);
            }
            let told = producer.recv_timeout(Duration::from_millis(if in_order { 50 } else { 20_000 }));
            assert_eq!(told.is_none(), in_order, "{told:?}");
            // What is sent now goes nowhere, sooner or later.
            while edge.try_send(parcel_of(&[])).is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let (here, there) = tokio::io::duplex(1 << 12);
        let consumer = Mailbox::new(1, 4);
        let (_stays, stay) = flume::bounded(0);
        drop(here);
        runtime.block_on(receive(there, ActorId::data(0), 100, consumer.sender(), stay));
        assert!(matches!(consumer.try_recv(), Some(Mail::Gone { .. })));
    }

    /// Hears bytes as a receiver does.
    fn hear(bytes: &[u8], credit: usize, expected: u64) -> Result<Option<Parcel>, StreamError> {
        runtime().block_on(next(&mut &*bytes, credit, expected))
    }

    #[test]
    fn every_lie_is_named() {
        let frame = frame(&parcel_of(&[1.0, 2.0]), 5).unwrap();
        assert!(hear(&frame, 8, 5).unwrap().is_some());
        assert!(matches!(hear(&frame, 8, 4), Err(StreamError::OutOfOrder { number: 5, expected: 4 })));
        assert!(matches!(hear(&frame, 7, 5), Err(StreamError::TooLong { .. })));
        assert!(matches!(hear(&frame[..frame.len() - 1], 8, 5), Err(StreamError::Ended)));
        assert!(matches!(hear(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n......", 8, 5), Err(StreamError::NotAParcel)));
        let mut long = frame.clone();
        prelude(&mut long, u32::MAX, 8, 5);
        assert!(matches!(hear(&long, 8, 5), Err(StreamError::TooLong { .. })));
        // A shape whose size wraps around, with a checksum that is right.
        let meta = TensorMeta { dtype: crate::transport::Dtype::F32, shape: vec![usize::MAX, 5] };
        let header = encode(&(parcel_of(&[]).header, vec![meta])).unwrap();
        let mut lie = vec![0; PRELUDE];
        lie.extend_from_slice(&header);
        lie.extend_from_slice(&[0; 8]);
        prelude(&mut lie, header.len() as u32, 8, 5);
        assert!(matches!(hear(&lie, 8, 5), Err(StreamError::Unfit { .. })));
    }

    #[test]
    fn an_acknowledgement_of_nothing_breaks_the_edge() {
        let runtime = runtime();
        let (here, mut there) = tokio::io::duplex(1 << 12);
        let producer = Mailbox::new(1, 4);
        let (edge, _carrier) = {
            let _inside = runtime.enter();
            StreamEdge::new(here, ActorId::encoder(0), 100, producer.sender())
        };
        runtime.block_on(there.write_all(&7u64.to_le_bytes())).unwrap();
        match producer.recv_timeout(Duration::from_secs(20)) {
            Some(Mail::Gone { peer, reason }) => {
                assert_eq!((peer, reason.contains("parcel 7")), (ActorId::encoder(0), true))
            }
            other => panic!("{other:?}"),
        }
        drop(edge);
    }

    proptest! {
        #[test]
        fn one_flipped_bit_is_seen(values in prop::collection::vec(any::<f32>(), 0..20), place: prop::sample::Index, bit in 0u8..8) {
            let mut frame = frame(&parcel_of(&values), 0).unwrap();
            let at = place.index(frame.len());
            frame[at] ^= 1 << bit;
            prop_assert!(hear(&frame, 1000, 0).is_err());
        }
    }
}
