//! Both ends in one process, and a real second process that sends, obeys and dies.

use super::{SlabEdge, SlabError, SlabListener, SlotTensor};
use crate::message::{ActorId, StepId, UnitId, Version};
use crate::transport::{Buffer, Dtype, Edge, Header, HostTensor, Mail, Mailbox, Parcel, ParcelKind, Refusal};
use proptest::prelude::*;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

mod connecting;

const PATIENCE: Duration = Duration::from_secs(20);
const PRODUCER: ActorId = ActorId::encoder(1);
const CONSUMER: ActorId = ActorId::foundation(0);

struct Pair {
    edge: SlabEdge,
    producer: Mailbox,
    consumer: Mailbox,
    _folder: tempfile::TempDir,
}

fn pair(credit: usize) -> Pair {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("edge");
    let (producer, consumer) = (Mailbox::new(0, 4), Mailbox::new(0, 4));
    let listener = SlabListener::bind(&path, CONSUMER).unwrap();
    let edge = SlabEdge::connect(&path, PRODUCER, CONSUMER, credit, &producer.sender()).unwrap();
    listener.accept(&[PRODUCER], &consumer.sender(), PATIENCE).unwrap();
    Pair { edge, producer, consumer, _folder: folder }
}

fn header(index: u32) -> Header {
    Header { kind: ParcelKind::Features(UnitId { step: StepId(9), index }), version: Version(4) }
}

/// Bytes that tell which parcel and tensor they belong to.
fn contents(index: u32, tensor: usize, len: usize) -> Vec<u8> {
    (0..len).map(|place| (place as u32 ^ index.wrapping_mul(31) ^ tensor as u32) as u8).collect()
}

fn parcel(index: u32, sizes: &[usize]) -> Parcel {
    let tensor = |(number, &len): (usize, &usize)| -> Box<dyn Buffer> {
        Box::new(HostTensor::new(Dtype::Bf16, &[len, 2], &contents(index, number, len * 4)))
    };
    Parcel::new(header(index), sizes.iter().enumerate().map(tensor).collect())
}

fn arrived(mailbox: &Mailbox) -> Parcel {
    match mailbox.recv_timeout(PATIENCE) {
        Some(Mail::Parcel { from, parcel }) => {
            assert_eq!(from, PRODUCER);
            parcel
        }
        other => panic!("{other:?}"),
    }
}

fn assert_is(parcel: &Parcel, index: u32, sizes: &[usize]) {
    assert_eq!(parcel.header, header(index));
    assert_eq!(parcel.tensors.len(), sizes.len());
    for (number, (tensor, &len)) in parcel.tensors.iter().zip(sizes).enumerate() {
        assert_eq!(tensor.meta().shape, [len, 2]);
        assert_eq!(tensor.bytes().unwrap(), contents(index, number, len * 4));
        let mut copy = vec![0; len * 4];
        tensor.copy_to(&mut copy);
        assert_eq!(copy, contents(index, number, len * 4));
    }
}

#[test]
fn a_parcel_of_many_levels_is_read_in_place() {
    let mut pair = pair(1 << 20);
    let sizes = [1000, 0, 1, 7, 1000, 1000, 3, 64];
    pair.edge.try_send(parcel(3, &sizes)).unwrap();
    let got = arrived(&pair.consumer);
    assert_is(&got, 3, &sizes);
    assert!(got.tensors.iter().all(|tensor| (tensor.bytes().unwrap().as_ptr() as usize).is_multiple_of(64)));
    pair.edge.try_send(Parcel::new(header(4), vec![])).unwrap();
    assert_is(&arrived(&pair.consumer), 4, &[]);
    let tensor = got.tensors.into_iter().next().unwrap().into_any();
    assert!(tensor.is::<SlotTensor>());
}

#[test]
fn a_slot_goes_back_with_the_last_of_tensors_and_credit() {
    let mut pair = pair(800);
    pair.edge.try_send(parcel(0, &[50, 50])).unwrap();
    let mut got = arrived(&pair.consumer);
    let refused = pair.edge.try_send(parcel(1, &[150])).unwrap_err();
    assert_eq!(refused.why, Refusal::NoCredit);
    let kept = got.tensors.pop().unwrap();
    drop(got);
    assert_eq!(pair.edge.in_flight(), 400);
    assert!(pair.producer.try_recv().is_none());
    assert_eq!(kept.bytes().unwrap(), contents(0, 1, 200));
    std::thread::spawn(move || drop(kept)).join().unwrap();
    assert!(matches!(pair.producer.recv_timeout(PATIENCE), Some(Mail::Credit)));
    pair.edge.try_send(refused.parcel).unwrap();
    assert_is(&arrived(&pair.consumer), 1, &[150]);
    assert_eq!(pair.edge.in_flight(), 0);
}

#[test]
fn parcels_that_can_never_go_are_named() {
    let mut pair = pair(800);
    let refused = pair.edge.try_send(parcel(0, &[201])).unwrap_err();
    assert_eq!(refused.why, Refusal::TooLarge { bytes: 804, credit: 800 });
    let refused = pair.edge.try_send(parcel(0, &[1; 9])).unwrap_err();
    assert_eq!(refused.why, Refusal::Unfit { num_tensors: 9 });
    let deep = HostTensor::new(Dtype::F32, &[1, 1, 1, 1, 1], &[0; 4]);
    let refused = pair.edge.try_send(Parcel::new(header(0), vec![Box::new(deep)])).unwrap_err();
    assert_eq!(refused.why, Refusal::Unfit { num_tensors: 1 });
    assert_eq!(pair.edge.in_flight(), 0);
}

#[test]
fn the_number_of_parcels_is_bounded_too() {
    let mut pair = pair(800);
    for index in 0..super::control::SLOTS as u32 {
        pair.edge.try_send(Parcel::new(header(index), vec![])).unwrap();
    }
    let refused = pair.edge.try_send(Parcel::new(header(0), vec![])).unwrap_err();
    assert_eq!(refused.why, Refusal::NoCredit);
    drop(arrived(&pair.consumer));
    assert!(matches!(pair.producer.recv_timeout(PATIENCE), Some(Mail::Credit)));
    pair.edge.try_send(refused.parcel).unwrap();
}

#[test]
fn an_edge_that_is_dropped_in_order_delivers_and_is_no_loss() {
    let Pair { mut edge, producer, consumer, _folder } = pair(1 << 20);
    edge.try_send(parcel(0, &[10])).unwrap();
    drop(edge);
    assert_is(&arrived(&consumer), 0, &[10]);
    assert!(consumer.recv_timeout(Duration::from_millis(250)).is_none());
    assert!(producer.try_recv().is_none());
}

#[test]
fn who_left_before_it_was_accepted_is_no_obstacle_and_has_its_parcels_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("edge");
    let (producer, consumer) = (Mailbox::new(0, 4), Mailbox::new(0, 4));
    let listener = SlabListener::bind(&path, CONSUMER).unwrap();
    let mut edge = SlabEdge::connect(&path, PRODUCER, CONSUMER, 1 << 20, &producer.sender()).unwrap();
    edge.try_send(parcel(0, &[10])).unwrap();
    drop(edge);
    listener.accept(&[PRODUCER], &consumer.sender(), PATIENCE).unwrap();
    assert_is(&arrived(&consumer), 0, &[10]);
    assert!(consumer.recv_timeout(Duration::from_millis(250)).is_none());
}

#[test]
fn a_consumer_that_ended_in_order_closes_the_edge() {
    let Pair { mut edge, producer, consumer, _folder } = pair(1 << 20);
    edge.try_send(parcel(0, &[10])).unwrap();
    let kept = arrived(&consumer);
    edge.try_send(parcel(1, &[10])).unwrap();
    drop(consumer);
    assert_eq!(edge.try_send(parcel(2, &[10])).unwrap_err().why, Refusal::Closed);
    assert!(producer.recv_timeout(Duration::from_millis(250)).is_none());
    drop(edge);
    assert_is(&kept, 0, &[10]);
}

#[test]
fn an_engine_that_panics_is_a_loss_to_both_sides() {
    let Pair { edge, producer: _producer, consumer, _folder } = pair(1 << 20);
    let _ = std::thread::spawn(move || {
        let _edge = edge;
        panic!("as an engine would");
    })
    .join();
    assert!(matches!(consumer.recv_timeout(PATIENCE), Some(Mail::Gone { peer: PRODUCER, .. })));

    let Pair { mut edge, producer, consumer, _folder } = pair(1 << 20);
    let _ = std::thread::spawn(move || {
        let _consumer = consumer;
        panic!("as an engine would");
    })
    .join();
    assert!(matches!(producer.recv_timeout(PATIENCE), Some(Mail::Gone { peer: CONSUMER, .. })));
    assert_eq!(edge.try_send(parcel(2, &[10])).unwrap_err().why, Refusal::Closed);
}

/// An error names what is wrong with the slab's shared memory, and the peer is gone.
#[test]
fn nonsense_in_shared_memory_is_a_named_loss() {
    for (nonsense, named) in [(0, "parcel kind 9"), (1, "which is in use"), (2, "parcels at once")] {
        let mut pair = pair(1 << 20);
        pair.edge.try_send(parcel(0, &[10])).unwrap();
        let kept = arrived(&pair.consumer);
        match nonsense {
            0 => pair.edge.corrupt(|control| {
                for word in &control.headers[1] {
                    word.store(9 | 9 << 32, std::sync::atomic::Ordering::SeqCst);
                }
                control.sent[0].store(2, std::sync::atomic::Ordering::SeqCst);
            }),
            1 => pair.edge.corrupt(|control| {
                for (from, to) in control.headers[0].iter().zip(&control.headers[1]) {
                    to.store(from.load(std::sync::atomic::Ordering::SeqCst), std::sync::atomic::Ordering::SeqCst);
                }
                control.sent[0].store(2, std::sync::atomic::Ordering::SeqCst);
            }),
            _ => pair.edge.corrupt(|control| control.sent[0].store(1 << 31, std::sync::atomic::Ordering::SeqCst)),
        }
        match pair.consumer.recv_timeout(PATIENCE) {
            Some(Mail::Gone { peer: PRODUCER, reason }) => assert!(reason.contains(named), "{reason}"),
            other => panic!("{other:?}"),
        }
        assert_is(&kept, 0, &[10]);
        assert!(matches!(pair.producer.recv_timeout(PATIENCE), Some(Mail::Gone { peer: CONSUMER, .. })));
    }
}

#[test]
fn a_slot_that_was_never_lent_cannot_come_back() {
    let mut pair = pair(1 << 20);
    pair.edge.corrupt(|control| {
        control.freed_slots[0].store(7, std::sync::atomic::Ordering::SeqCst);
        control.freed[0].store(1, std::sync::atomic::Ordering::SeqCst);
    });
    assert_eq!(pair.edge.try_send(parcel(0, &[1 << 16])).err().map(|refused| refused.why), None);
    match pair.producer.recv_timeout(PATIENCE) {
        Some(Mail::Gone { peer: CONSUMER, reason }) => assert!(reason.contains("slot 7"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// With any sizes and any order of drops, what arrives is what was sent, in order; credit is exact; nothing within the credit is
    /// refused.
    #[test]
    fn any_order_of_drops(steps in prop::collection::vec(
        (prop::collection::vec(0usize..3000, 0..=8), prop::collection::vec(any::<prop::sample::Index>(), 0..3)), 1..60,
    )) {
        let credit = 40_000;
        let mut pair = pair(credit);
        let mut held: Vec<(u32, Vec<usize>, Parcel)> = Vec::new();
        for (index, (sizes, drops)) in steps.into_iter().enumerate() {
            for which in drops {
                if !held.is_empty() {
                    held.swap_remove(which.index(held.len()));
                }
            }
            let bytes = |sizes: &[usize]| sizes.iter().sum::<usize>() * 4;
            let total: usize = held.iter().map(|(_, sizes, _)| bytes(sizes)).sum();
            prop_assert_eq!(pair.edge.in_flight(), total);
            match pair.edge.try_send(parcel(index as u32, &sizes)) {
                Ok(()) => {
                    prop_assert!(total + bytes(&sizes) <= credit);
                    held.push((index as u32, sizes, arrived(&pair.consumer)));
                }
                Err(refused) if bytes(&sizes) > credit => {
                    prop_assert_eq!(refused.why, Refusal::TooLarge { bytes: bytes(&sizes), credit });
                }
                Err(refused) => {
                    prop_assert_eq!(refused.why, Refusal::NoCredit);
                    prop_assert!(total + bytes(&sizes) > credit);
                }
            }
            for (index, sizes, parcel) in &held {
                assert_is(parcel, *index, sizes);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever either side writes into shared memory, nothing panics, nothing outside the slab is read or written, and credit is kept.
    #[test]
    fn any_shared_memory_at_all(writes in prop::collection::vec(
        (0..8, any::<prop::sample::Index>(), any::<prop::sample::Index>(), prop_oneof![0u64..12, any::<u64>()]), 1..60,
    )) {
        use std::sync::atomic::Ordering::SeqCst;
        let credit = 4000;
        let mut pair = pair(credit);
        let mut held = Vec::new();
        for (what, entry, word, value) in writes {
            pair.edge.corrupt(|control| match what {
                0 => control.sent[0].store(value as u32, SeqCst),
                1 => control.freed[0].store(value as u32, SeqCst),
                2 => control.freed_slots[entry.index(12)].store(value as u32, SeqCst),
                3 => control.starved[0].store(value as u32, SeqCst),
                _ => control.headers[entry.index(12)][word.index(super::control::WORDS)].store(value, SeqCst),
            });
            let _ = pair.edge.try_send(parcel(0, &[entry.index(300), word.index(300)]));
            while let Some(mail) = pair.consumer.try_recv() {
                if let Mail::Parcel { parcel, .. } = mail {
                    parcel.tensors.iter().for_each(|tensor| assert_eq!(tensor.bytes().unwrap().len(), tensor.meta().num_bytes()));
                    held.push(parcel);
                }
            }
            prop_assert!(held.iter().map(Parcel::num_bytes).sum::<usize>() <= credit);
            while pair.producer.try_recv().is_some() {}
            if word.index(3) == 0 {
                held.clear();
            }
        }
    }
}

#[test]
fn threads_at_both_ends() {
    let Pair { mut edge, producer, consumer, _folder } = pair(200_000);
    let sizes = |index: u32| [index as usize * 37 % 5000, index as usize * 11 % 700, 5];
    let consumer = std::thread::spawn(move || {
        let mut held = std::collections::VecDeque::new();
        for index in 0..5000 {
            let parcel = arrived(&consumer);
            assert_is(&parcel, index, &sizes(index));
            held.push_back(parcel);
            if held.len() > 4 {
                drop(held.swap_remove_back(index as usize % 5));
            }
        }
    });
    for index in 0..5000 {
        let mut parcel = parcel(index, &sizes(index));
        while let Err(refused) = edge.try_send(parcel) {
            assert_eq!(refused.why, Refusal::NoCredit);
            assert!(matches!(producer.recv_timeout(PATIENCE), Some(Mail::Credit)));
            parcel = refused.parcel;
        }
    }
    consumer.join().unwrap();
}

const CHILD: &str = "LOONGFORGE_TEST_SLAB";

/// Starts another process that runs `child`.
fn spawn(path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "transport::slab::tests::child", "--ignored", "--nocapture"])
        .env(CHILD, path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Sends parcels 0, 1, 2 … as fast as credit comes, until it is killed or its consumer goes.
#[test]
#[ignore = "the other process of the tests below"]
fn child() {
    let path = std::env::var_os(CHILD).expect("run by other tests");
    let mailbox = Mailbox::new(0, 4);
    let mut edge = SlabEdge::connect(Path::new(&path), PRODUCER, CONSUMER, 1 << 20, &mailbox.sender()).unwrap();
    for index in 0.. {
        let mut parcel = parcel(index, &[index as usize % 999, 10_000]);
        while let Err(refused) = edge.try_send(parcel) {
            match refused.why {
                Refusal::NoCredit => parcel = refused.parcel,
                why => return assert_eq!(why, Refusal::Closed),
            }
            match mailbox.recv_timeout(PATIENCE) {
                Some(Mail::Credit) => {}
                Some(Mail::Gone { .. }) => return,
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_killed_process_is_a_loss_after_its_last_parcel() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("edge");
    let mailbox = Mailbox::new(0, 4);
    let listener = SlabListener::bind(&path, CONSUMER).unwrap();
    let mut child = spawn(&path);
    listener.accept(&[PRODUCER], &mailbox.sender(), PATIENCE).unwrap();
    let mut kept = Vec::new();
    for index in 0..500 {
        let parcel = arrived(&mailbox);
        assert_is(&parcel, index, &[index as usize % 999, 10_000]);
        if index % 100 == 0 {
            kept.push((index, parcel));
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let mut index = 500;
    loop {
        match mailbox.recv_timeout(PATIENCE) {
            Some(Mail::Parcel { parcel, .. }) => assert_is(&parcel, index, &[index as usize % 999, 10_000]),
            Some(Mail::Gone { peer: PRODUCER, reason }) => break assert!(reason.contains("process ended"), "{reason}"),
            other => panic!("{other:?}"),
        }
        index += 1;
    }
    for (index, parcel) in &kept {
        assert_is(parcel, *index, &[*index as usize % 999, 10_000]);
    }
}

#[test]
fn a_producer_outlives_its_consumer_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("edge");
    let mailbox = Mailbox::new(0, 4);
    let listener = SlabListener::bind(&path, CONSUMER).unwrap();
    let mut child = spawn(&path);
    listener.accept(&[PRODUCER], &mailbox.sender(), PATIENCE).unwrap();
    drop(arrived(&mailbox));
    drop(mailbox);
    assert!(child.wait().unwrap().success());
}
