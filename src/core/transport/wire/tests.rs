//! Wires over connections that break, and peers that come back, leave and die.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::runtime::Runtime;

const PATIENT: Duration = Duration::from_secs(20);

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn spec(accepts: bool) -> WireSpec {
    WireSpec {
        number: accepts.then_some(5),
        accepts,
        sent: 0,
        received: 0,
        life: 1,
        max_len: 1000,
        queue: 8,
        confirms: false,
        quiet: PATIENT,
        patience: PATIENT,
        patience_ended: PATIENT,
        patience_first: PATIENT,
    }
}

/// Returns a function that connects to an end that accepts, each time with a new connection.
fn meeting() -> (Reconnect, flume::Receiver<Returned>, flume::Receiver<u64>) {
    let (come_back, returned) = flume::bounded(4);
    let (attempted, attempts) = flume::bounded(64);
    let connect: Reconnect = Box::new(move |_, attempt, received| {
        let (here, there) = tokio::io::duplex(1 << 10);
        let _ = attempted.send(attempt);
        come_back.send(Returned { raw: Raw::new(there), received }).unwrap();
        Box::pin(async move { Ok(Raw::new(here)) })
    });
    (connect, returned, attempts)
}

#[test]
fn messages_go_both_ways_and_a_farewell_ends_it() {
    runtime().block_on(async {
        let (connect, returned, _) = meeting();
        let (a, mut from_b, carrier) = wire(None, Recovery::Connect(connect), spec(false));
        let carrying = tokio::spawn(carrier);
        let (b, mut from_a, carrier) = wire(None, Recovery::Accept(returned), spec(true));
        tokio::spawn(carrier);
        for value in 0..100_u8 {
            assert!(a.send(vec![value]).await && b.send(vec![value + 100]).await);
            assert_eq!(from_a.recv().await, Ok(Some(vec![value])));
            assert_eq!(from_b.recv().await, Ok(Some(vec![value + 100])));
        }
        a.send(vec![1]).await;
        a.close().await;
        assert_eq!(from_a.recv().await, Ok(Some(vec![1])));
        assert_eq!(from_a.recv().await, Ok(None));
        drop(b);
        assert_eq!(from_b.recv().await, Ok(None));
        carrying.await.unwrap();
    });
}

#[test]
fn loose_words_overtake_nothing_and_cost_nothing() {
    runtime().block_on(async {
        let (connect, returned, _) = meeting();
        let (a, _from_b, carrier) = wire(None, Recovery::Connect(connect), spec(false));
        tokio::spawn(carrier);
        let (_b, mut from_a, carrier) = wire(None, Recovery::Accept(returned), spec(true));
        tokio::spawn(carrier);
        a.send_loose(vec![1]);
        assert!(a.send(vec![2]).await);
        assert_eq!(from_a.recv().await, Ok(Some(vec![1])));
        assert_eq!((from_a.recv().await, from_a.taken()), (Ok(Some(vec![2])), 1));
    });
}

#[test]
fn who_comes_back_to_another_wire_is_refused() {
    runtime().block_on(async {
        let mut number = 0;
        let connect: Reconnect = Box::new(move |_, _, _| {
            number += 1;
            let (here, there) = tokio::io::duplex(1 << 10);
            Box::pin(async move {
                let mut raw = Raw::new(there);
                super::carry::greet(&mut raw, number, 0, 1).await.unwrap();
                raw.writer.shutdown().await.unwrap();
                Ok(Raw::new(here))
            })
        });
        let (a, mut from_b, carrier) = wire(None, Recovery::Connect(connect), spec(false));
        tokio::spawn(carrier);
        a.send(vec![1]).await;
        assert_eq!(from_b.recv().await, Err(WireError::Refused));
    });
}

#[test]
fn a_message_is_not_waited_for_whose_wire_ends_before_it_is_taken() {
    runtime().block_on(async {
        let (refuse, refused) = flume::bounded(1);
        let connect: Reconnect = Box::new(move |_, _, _| {
            let refused = refused.clone();
            Box::pin(async move {
                refused.recv_async().await.unwrap();
                Err(std::io::ErrorKind::InvalidData.into())
            })
        });
        let (a, _from_b, carrier) = wire(None, Recovery::Connect(connect), spec(false));
        tokio::spawn(carrier);
        let refusal = async {
            tokio::task::yield_now().await;
            refuse.send(()).unwrap();
        };
        let sent = async { tokio::join!(a.send_out(vec![1]), refusal) };
        assert!(tokio::time::timeout(PATIENT / 2, sent).await.is_ok(), "it waits for a wire that has ended");
    });
}

#[test]
fn who_does_not_come_back_is_lost() {
    runtime().block_on(async {
        let (here, there) = tokio::io::duplex(100);
        drop(there);
        let (_, returned) = flume::bounded(1);
        let impatient = WireSpec { patience_ended: Duration::from_millis(20), ..spec(true) };
        let (_a, mut from_b, carrier) = wire(Some(Raw::new(here)), Recovery::Accept(returned), impatient);
        tokio::spawn(carrier);
        assert_eq!(from_b.recv().await, Err(WireError::Ended));
    });
}

#[test]
fn who_has_come_back_to_another_process_is_given_no_more_time_than_others() {
    runtime().block_on(async {
        let (come_back, returned) = flume::bounded(1);
        // Who comes back is waited for by the hour; once it has, its end is its end.
        let hour = Duration::from_secs(3600);
        let spec = WireSpec { patience_first: hour, patience_ended: Duration::from_millis(20), ..spec(true) };
        let (_b, mut from_a, carrier) = wire(None, Recovery::Accept(returned), spec);
        tokio::spawn(carrier);
        let (here, there) = tokio::io::duplex(1 << 10);
        come_back.send(Returned { raw: Raw::new(there), received: 0 }).unwrap();
        let connect: Reconnect = Box::new(|_, _, _| Box::pin(async { Err(std::io::ErrorKind::NotFound.into()) }));
        let theirs = WireSpec { number: Some(5), accepts: false, ..spec };
        let (a, _, carrier) = wire(Some(Raw::new(here)), Recovery::Connect(connect), theirs);
        let carrying = tokio::spawn(carrier);
        assert!(a.send(vec![1]).await);
        assert_eq!(from_a.recv().await, Ok(Some(vec![1])));
        carrying.abort();
        assert_eq!(from_a.recv().await, Err(WireError::Ended));
    });
}

#[test]
fn a_door_that_closes_at_once_is_not_stormed() {
    runtime().block_on(async {
        let attempts = Arc::new(AtomicU64::new(0));
        let attempted = attempts.clone();
        let connect: Reconnect = Box::new(move |_, attempt, _| {
            attempted.store(attempt, Ordering::Relaxed);
            Box::pin(async { Ok(Raw::new(tokio::io::duplex(8).0)) })
        });
        let impatient = WireSpec { patience_first: Duration::from_millis(300), ..spec(false) };
        let (_a, mut from_b, carrier) = wire(None, Recovery::Connect(connect), impatient);
        tokio::spawn(carrier);
        assert_eq!(from_b.recv().await, Err(WireError::Ended));
        let attempts = attempts.load(Ordering::Relaxed);
        assert!((1..10).contains(&attempts), "{attempts} connections in 300 ms");
    });
}

#[test]
fn a_door_that_closes_at_once_takes_no_time_from_who_was_silent() {
    runtime().block_on(async {
        let (come_back, returned) = flume::bounded(4);
        let connect: Reconnect = Box::new(move |_, attempt, received| {
            let (here, there) = tokio::io::duplex(1 << 10);
            let (come_back, mut there) = (come_back.clone(), Raw::new(there));
            Box::pin(async move {
                match attempt {
                    // It is greeted, and hears nothing more.
                    1 => {
                        super::carry::greet(&mut there, 5, 0, 1).await.unwrap();
                        std::mem::forget(there);
                    }
                    2..9 => drop(there),
                    _ => come_back.send(Returned { raw: there, received }).unwrap(),
                }
                Ok(Raw::new(here))
            })
        });
        let (quiet, patience_ended) = (Duration::from_millis(200), Duration::from_millis(100));
        let quick = WireSpec { quiet, patience_ended, ..spec(false) };
        let (a, _from_b, carrier) = wire(None, Recovery::Connect(connect), quick);
        tokio::spawn(carrier);
        let (_b, mut from_a, carrier) = wire(None, Recovery::Accept(returned), spec(true));
        tokio::spawn(carrier);
        assert!(a.send(vec![3]).await);
        let heard = tokio::time::timeout(PATIENT / 2, from_a.recv()).await;
        assert_eq!(heard.ok(), Some(Ok(Some(vec![3]))), "it is given up although it was only silent");
    });
}

#[test]
fn silence_breaks_a_connection_and_the_next_one_goes_on() {
    runtime().block_on(async {
        let (come_back, returned) = flume::bounded(4);
        let mut first = true;
        let connect: Reconnect = Box::new(move |_, _, received| {
            let (here, there) = tokio::io::duplex(1 << 10);
            if std::mem::take(&mut first) {
                // Nobody is at its other end.
                std::mem::forget(there);
            } else {
                come_back.send(Returned { raw: Raw::new(there), received }).unwrap();
            }
            Box::pin(async move { Ok(Raw::new(here)) })
        });
        let quick = WireSpec { quiet: Duration::from_millis(200), ..spec(false) };
        let (a, _from_b, carrier) = wire(None, Recovery::Connect(connect), quick);
        tokio::spawn(carrier);
        let (_b, mut from_a, carrier) = wire(None, Recovery::Accept(returned), spec(true));
        tokio::spawn(carrier);
        assert!(a.send(vec![3]).await);
        assert_eq!(from_a.recv().await, Ok(Some(vec![3])));
    });
}

#[test]
fn a_message_that_waits_for_room_as_its_connection_ends_comes_once() {
    runtime().block_on(async {
        // Which of the two is noticed first, the room or the next connection, is drawn each time.
        for _ in 0..32 {
            let (come_back, returned) = flume::bounded(4);
            let to_come = come_back.clone();
            let connect: Reconnect = Box::new(move |_, _, received| {
                let (here, there) = tokio::io::duplex(1 << 10);
                to_come.send(Returned { raw: Raw::new(there), received }).unwrap();
                Box::pin(async move { Ok(Raw::new(here)) })
            });
            let (a, _from_b, carrier) = wire(None, Recovery::Connect(connect), spec(false));
            tokio::spawn(carrier);
            let (_b, mut from_a, carrier) = wire(None, Recovery::Accept(returned), WireSpec { queue: 1, ..spec(true) });
            tokio::spawn(carrier);
            for value in [1_u8, 2] {
                assert!(a.send(vec![value]).await);
            }
            // The first one is in the queue then, and the second one waits for room in it.
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(from_a.recv().await, Ok(Some(vec![1])));
            let (here, _) = tokio::io::duplex(1 << 10);
            come_back.send(Returned { raw: Raw::new(here), received: 0 }).unwrap();
            assert_eq!(from_a.recv().await, Ok(Some(vec![2])));
            assert!(a.send(vec![3]).await);
            assert_eq!((from_a.recv().await, from_a.taken()), (Ok(Some(vec![3])), 3));
        }
    });
}

/// An end that is begun anew by who knows what was received and sent, as after its process was killed.
#[test]
fn another_life_of_an_end_goes_on_where_the_first_one_was() {
    runtime().block_on(async {
        let (connect, returned, attempts) = meeting();
        let (a, mut from_b, carrier) = wire(None, Recovery::Connect(connect), spec(false));
        tokio::spawn(carrier);
        let confirming = WireSpec { confirms: true, ..spec(true) };
        let (b, mut from_a, carrier) = wire(None, Recovery::Accept(returned.clone()), confirming);
        let first_life = tokio::spawn(carrier);
        for value in 0..5 {
            assert!(a.send(vec![value]).await);
        }
        for value in 0..4 {
            assert_eq!(from_a.recv().await, Ok(Some(vec![value])));
        }
        // Three were taken care of; a fourth was taken, and is forgotten.
        from_a.confirm()(3);
        assert!(b.send(vec![50]).await);
        assert_eq!(from_b.recv().await, Ok(Some(vec![50])));
        first_life.abort();
        let _ = first_life.await;
        // It knows what its first life has said, and that it is not heard.
        let second = WireSpec { sent: 0, received: 3, life: 2, ..confirming };
        let backlog = vec![vec![50].into(), vec![49].into()];
        let (b, mut from_a, carrier) = wire_again(None, Recovery::Accept(returned), second, backlog);
        tokio::spawn(carrier);
        assert_eq!(from_a.recv().await, Ok(Some(vec![3])));
        assert_eq!(from_a.recv().await, Ok(Some(vec![4])));
        assert!(b.send(vec![51]).await);
        assert_eq!(from_b.recv().await, Ok(Some(vec![49])));
        assert_eq!(from_b.recv().await, Ok(Some(vec![51])));
        assert!(attempts.iter().take(2).eq([1, 2]));
    });
}

/// A first life that is not dead, and is met again after the second.
#[test]
fn an_earlier_life_is_not_listened_to() {
    runtime().block_on(async {
        let (come_back, returned) = flume::bounded(4);
        let mut lives = [(2, 1), (1, 2), (2, 3)].into_iter();
        let connect: Reconnect = Box::new(move |_, _, received| {
            let (life, attempt) = lives.next().expect("three are enough");
            let (here, there) = tokio::io::duplex(1 << 10);
            let come_back = come_back.clone();
            Box::pin(async move {
                let mut raw = Raw::new(there);
                if attempt == 3 {
                    come_back.send(Returned { raw, received }).unwrap();
                } else {
                    super::carry::greet(&mut raw, 5, 0, life).await.unwrap();
                    raw.writer.shutdown().await.unwrap();
                }
                Ok(Raw::new(here))
            })
        });
        let (a, _from_b, carrier) = wire(None, Recovery::Connect(connect), spec(false));
        tokio::spawn(carrier);
        let (_b, mut from_a, carrier) = wire(None, Recovery::Accept(returned), WireSpec { life: 2, ..spec(true) });
        tokio::spawn(carrier);
        assert!(a.send(vec![9]).await);
        assert_eq!(from_a.recv().await, Ok(Some(vec![9])));
    });
}
