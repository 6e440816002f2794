//! Edges over streams that hold, break and lie.

use super::*;
use crate::message::{ActorId, StepId, UnitId, Version, encode};
use crate::transport::{
    Dtype, Edge, Header, HostTensor, Mail, Mailbox, Parcel, ParcelKind, Raw, Recovery, Refusal, TensorMeta,
};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

fn parcel_of(values: &[f32]) -> Parcel {
    let header = Header { kind: ParcelKind::Items(UnitId { step: StepId(3), index: 1 }), version: Version(2) };
    Parcel::new(header, vec![Box::new(HostTensor::from_f32(values, &[values.len()]))])
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn spec(credit: usize) -> StreamSpec {
    let (quiet, patience) = (Duration::from_secs(20), Duration::from_millis(200));
    StreamSpec { credit, number: Some(77), quiet, patience, silence: patience }
}

struct Pair {
    edge: StreamEdge,
    producer: Mailbox,
    consumer: Mailbox,
    /// The consumer's engine is there as long as it is held.
    stays: flume::Sender<()>,
    receiving: JoinHandle<()>,
}

/// Makes an edge of so many bytes.
fn pair(runtime: &Runtime, credit: usize) -> Pair {
    let (here, there) = tokio::io::duplex(1 << 12);
    let (producer, consumer) = (Mailbox::new(1, 4), Mailbox::new(1, 4));
    let _inside = runtime.enter();
    let unknown = StreamSpec { number: None, ..spec(credit) };
    let (edge, carrier) =
        StreamEdge::new(Some(Raw::new(here)), Recovery::None, unknown, ActorId::encoder(0), producer.sender());
    tokio::spawn(carrier);
    let (stays, stay) = flume::bounded(0);
    let (_, returned) = flume::bounded(1);
    let receiving = receive(Raw::new(there), returned, spec(credit), ActorId::data(0), consumer.sender(), stay);
    let receiving = tokio::spawn(receiving);
    Pair { edge, producer, consumer, stays, receiving }
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
    let Pair { mut edge, producer, consumer, stays: _stays, .. } = pair(&runtime, 100_000);
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
    let why = edge.try_send(parcel_of(&[0.0; 25_001])).unwrap_err().why;
    assert_eq!(why, Refusal::TooLarge { bytes: 100_004, credit: 100_000 });
}

#[test]
fn an_orderly_end_is_no_loss_and_what_was_sent_arrives() {
    let runtime = runtime();
    let Pair { mut edge, consumer, stays: _stays, receiving, .. } = pair(&runtime, 1000);
    edge.try_send(parcel_of(&[1.0])).unwrap();
    drop(edge);
    drop(take(&consumer));
    runtime.block_on(receiving).unwrap();
    assert!(consumer.try_recv().is_none());
}

#[test]
fn a_peer_that_leaves_is_not_mourned_and_one_that_dies_is() {
    let runtime = runtime();
    let Pair { mut edge, producer, stays, receiving, .. } = pair(&runtime, 100);
    drop(stays);
    runtime.block_on(receiving).unwrap();
    // What is sent now goes nowhere, sooner or later.
    while edge.try_send(parcel_of(&[])).is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!matches!(producer.try_recv(), Some(Mail::Gone { .. })));

    let Pair { mut edge, producer, receiving, stays: _stays, .. } = pair(&runtime, 100);
    receiving.abort();
    let told = producer.recv_timeout(Duration::from_secs(20));
    assert!(matches!(&told, Some(Mail::Gone { peer, .. }) if *peer == ActorId::encoder(0)), "{told:?}");
    while edge.try_send(parcel_of(&[])).is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }

    let Pair { edge, consumer, receiving, stays: _stays, .. } = pair(&runtime, 100);
    runtime.shutdown_background();
    drop((edge, receiving));
    drop(consumer);
}

#[test]
fn a_producer_that_dies_is_told() {
    let runtime = runtime();
    let (here, there) = tokio::io::duplex(1 << 12);
    let consumer = Mailbox::new(1, 4);
    let ((_stays, stay), (_, returned)) = (flume::bounded(0), flume::bounded(1));
    drop(here);
    runtime.block_on(receive(Raw::new(there), returned, spec(100), ActorId::data(0), consumer.sender(), stay));
    assert!(matches!(consumer.try_recv(), Some(Mail::Gone { .. })));
}

/// Every connection breaks after so many bytes, in the middle of whatever is on its way.
#[test]
fn parcels_come_whole_over_connections_that_break() {
    let runtime = runtime();
    let (producer, consumer) = (Mailbox::new(1, 4), Mailbox::new(1, 4));
    let (come_back, returned) = flume::bounded(1);
    let (first, begun) = oneshot::channel();
    let mut first = Some(first);
    let mut num_connections = 0_u64;
    let connect: crate::transport::Reconnect = Box::new(move |_, _, received| {
        let (here, there) = tokio::io::duplex(1 << 10);
        let (near, far) = tokio::io::duplex(1 << 10);
        num_connections += 1;
        let limit = 150 + 97 * num_connections;
        // Between the two ends: so many bytes, and then no more.
        tokio::spawn(async move {
            use tokio::io::AsyncReadExt;
            let (mut a_read, mut a_write) = tokio::io::split(there);
            let (b_read, mut b_write) = tokio::io::split(near);
            let mut cut = b_read.take(limit);
            tokio::select! {
                _ = tokio::io::copy(&mut a_read, &mut b_write) => {}
                _ = tokio::io::copy(&mut cut, &mut a_write) => {}
            }
        });
        let raw = Raw::new(far);
        match first.take() {
            Some(first) => drop(first.send(raw)),
            None => drop(come_back.send(crate::transport::Returned { raw, received })),
        }
        Box::pin(async move { Ok(Raw::new(here)) })
    });
    let _inside = runtime.enter();
    let long = Duration::from_secs(20);
    let patient = StreamSpec { patience: long, silence: long, ..spec(10_000) };
    let unknown = StreamSpec { number: None, ..patient };
    let (mut edge, carrier) =
        StreamEdge::new(None, Recovery::Connect(connect), unknown, ActorId::encoder(0), producer.sender());
    tokio::spawn(carrier);
    let (_stays, stay) = flume::bounded(0);
    let consuming = consumer.sender();
    tokio::spawn(async move {
        let raw = begun.await.unwrap();
        receive(raw, returned, patient, ActorId::data(0), consuming, stay).await;
    });
    for value in 0..40 {
        edge.try_send(parcel_of(&[value as f32; 30])).unwrap();
        let parcel = take(&consumer);
        assert_eq!(parcel.tensors[0].bytes().unwrap(), (value as f32).to_ne_bytes().repeat(30));
    }
}

#[test]
fn every_lie_is_named() {
    let bytes = contents::write(&parcel_of(&[1.0, 2.0])).unwrap();
    assert_eq!(contents::read(&bytes).unwrap().num_bytes(), 8);
    assert!(matches!(contents::read(&bytes[..bytes.len() - 1]), Err(StreamError::Unfit { tensors: 8, body: 7 })));
    assert!(matches!(contents::read(&bytes[..3]), Err(StreamError::NotAParcel)));
    assert!(matches!(contents::read(&[255; 20]), Err(StreamError::NotAParcel)));
    // A shape whose size wraps around.
    let meta = TensorMeta { dtype: Dtype::F32, shape: vec![usize::MAX, 5] };
    let header = encode(&(parcel_of(&[]).header, vec![meta])).unwrap();
    let mut lie = (header.len() as u32).to_le_bytes().to_vec();
    lie.extend_from_slice(&header);
    lie.extend_from_slice(&[0; 8]);
    assert!(matches!(contents::read(&lie), Err(StreamError::Unfit { .. })));
}

#[test]
fn credit_for_nothing_breaks_the_edge() {
    let runtime = runtime();
    let (here, there) = tokio::io::duplex(1 << 12);
    let producer = Mailbox::new(1, 4);
    let _inside = runtime.enter();
    let unknown = StreamSpec { number: None, ..spec(100) };
    let (edge, carrier) =
        StreamEdge::new(Some(Raw::new(here)), Recovery::None, unknown, ActorId::encoder(0), producer.sender());
    tokio::spawn(carrier);
    let (liar, _receiver, carrier) =
        crate::transport::wire(Some(Raw::new(there)), Recovery::None, spec(100).wire(true));
    tokio::spawn(carrier);
    assert!(runtime.block_on(liar.send(7_u64.to_le_bytes().to_vec())));
    match producer.recv_timeout(Duration::from_secs(20)) {
        Some(Mail::Gone { peer, reason }) => {
            assert_eq!((peer, reason.contains("parcel 7")), (ActorId::encoder(0), true))
        }
        other => panic!("{other:?}"),
    }
    drop(edge);
}
