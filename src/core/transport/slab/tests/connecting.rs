//! Tests which processes may connect, and when a producer has to say hello.

use super::*;
use crate::transport::frame::frame;
use crate::transport::slab::connect::Hello;
use std::time::Instant;

#[test]
fn strangers_and_late_actors_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("edge");
    let mailbox = Mailbox::new(0, 4);
    let listener = SlabListener::bind(&path, CONSUMER).unwrap();
    let accept = || listener.accept(&[PRODUCER], &mailbox.sender(), Duration::from_millis(50)).unwrap_err();
    assert_eq!(accept().to_string(), "no connection from encoder/1 after 0 s");
    let _edge = SlabEdge::connect(&path, ActorId::data(3), CONSUMER, 64, &mailbox.sender()).unwrap();
    assert!(matches!(accept(), SlabError::Refused { peer, .. } if peer == "data/3"));
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\n").unwrap();
    assert!(accept().to_string().contains("not a loongforge actor"));
    let Err(again) = SlabListener::bind(&path, CONSUMER) else { panic!("bound twice") };
    assert!(again.to_string().contains("another run uses it"), "{again}");
    drop(listener);
    let Err(nobody) = SlabEdge::connect(&path, PRODUCER, CONSUMER, 64, &mailbox.sender()) else { panic!() };
    assert!(nobody.to_string().contains("its actor has ended"), "{nobody}");
    let Err(none) = SlabEdge::connect(&path, PRODUCER, CONSUMER, 0, &mailbox.sender()) else { panic!() };
    assert!(none.to_string().contains("a credit must be from 1 byte"), "{none}");
}

/// The wait for a connection ends before the producer, which has connected, says hello.
#[test]
fn a_producer_that_has_connected_may_say_hello_late() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("edge");
    let mailbox = Mailbox::new(0, 4);
    let listener = SlabListener::bind(&path, CONSUMER).unwrap();
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let producer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        let hello = frame(&Hello { from: PRODUCER, to: CONSUMER, credit: 64 }).unwrap();
        std::io::Write::write_all(&mut stream, &hello).unwrap();
    });
    let error = listener.accept_one(|from| from == PRODUCER, &mailbox.sender(), Instant::now()).unwrap_err();
    assert!(error.to_string().contains("sent its hello without shared memory"), "{error}");
    producer.join().unwrap();
}
