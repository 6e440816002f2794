//! B7: what an edge costs, same process and same host. `cargo bench -p loongforge-core --bench edge`
//!
//! Round trip: a parcel of 64 bytes there, one back; engines wait as they do in a run. Stream: parcels of
//! one size as fast as credit comes back; the producer fills them from its memory, the consumer gets them in place
//! and drops them. memcpy: the same bytes between two warm buffers of one process; "in turns": to two buffers in turns, as
//! a stream does, whose consumer still has the parcel before. Rounds of all of them are interleaved, so that a slow spell of
//! the machine hits each; medians over rounds. The other side of the host edge is a second process.

use loongforge_core::message::{ActorId, StepId, UnitId, Version};
use loongforge_core::numbers::median;
use loongforge_core::transport::{
    Buffer, Dtype, Edge, Header, HostTensor, LocalEdge, Mail, Mailbox, Parcel, ParcelKind, Refusal, SlabEdge,
    SlabListener, TensorMeta,
};
use std::any::Any;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const HERE: ActorId = ActorId::encoder(0);
const THERE: ActorId = ActorId::foundation(0);
const PATIENCE: Duration = Duration::from_secs(30);
const CREDIT: usize = 256 << 20;
const ROUNDS: usize = 9;
const PINGS: usize = 2000;
const SIZES: [usize; 6] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
const CHILD: &str = "LOONGFORGE_BENCH_EDGE";

/// Returns whether the smallest size is enough, to see that it runs: `LOONGFORGE_QUICK=1`.
fn quick() -> bool {
    std::env::var_os("LOONGFORGE_QUICK").is_some()
}

fn main() {
    if let Some(folder) = std::env::var_os(CHILD) {
        let mailbox = Mailbox::new(1, 4);
        let (out, _listener) = meet(Path::new(&folder), THERE, HERE, &mailbox);
        return echo(&mailbox, out);
    }
    let mut local = same_process();
    let mut host = same_host();
    println!("{:24} {:>14} {:>14}", "round trip, blocking", "median µs", "best µs");
    let (mut locals, mut hosts) = (Vec::new(), Vec::new());
    for _ in 0..if quick() { 1 } else { ROUNDS } {
        locals.push(round_trip(&mut local));
        hosts.push(round_trip(&mut host));
    }
    for (name, times) in [("same process", &mut locals), ("same host", &mut hosts)] {
        println!("{name:24} {:14.1} {:14.1}", median(times) * 1e6, times[0] * 1e6);
    }
    println!(
        "\n{:24} {:>14} {:>14} {:>14} {:>16} {:>14} {:>16}",
        "stream", "process GB/s", "host GB/s", "memcpy GB/s", "host / memcpy", "in turns GB/s", "host / in turns"
    );
    for &size in if quick() { &SIZES[..1] } else { &SIZES[..] } {
        let count = ((512 << 20) / size).min(2000);
        let tensor = Source(Arc::new(vec![1; size]));
        let (mut locals, mut hosts, mut copies, mut turns) = (vec![], vec![], vec![], vec![]);
        stream(&mut host, &tensor, count);
        for _ in 0..if quick() { 1 } else { ROUNDS } {
            locals.push(stream(&mut local, &tensor, count));
            hosts.push(stream(&mut host, &tensor, count));
            copies.push(memcpy(&tensor, count, 1));
            turns.push(memcpy(&tensor, count, 2));
        }
        let rate = |times: &mut Vec<f64>| (size * count) as f64 / median(times) / 1e9;
        let (local, host, copy, turn) = (rate(&mut locals), rate(&mut hosts), rate(&mut copies), rate(&mut turns));
        println!(
            "{:>20} KiB {local:14.1} {host:14.2} {copy:14.2} {:16.2} {turn:14.2} {:16.2}",
            size >> 10,
            host / copy,
            host / turn
        );
    }
}

/// This side of a pair of edges, and who is on the other.
struct Side {
    mailbox: Mailbox,
    out: Box<dyn Edge>,
    other: Other,
}

enum Other {
    Thread(Option<JoinHandle<()>>),
    Process(Child),
}

impl Drop for Side {
    fn drop(&mut self) {
        self.out.try_send(parcel(STOP, vec![])).expect("credit for a small parcel");
        match &mut self.other {
            Other::Thread(thread) => thread.take().expect("joined once").join().expect("the echo ends in order"),
            Other::Process(child) => assert!(child.wait().expect("the child can be waited for").success()),
        }
    }
}

fn same_process() -> Side {
    let (here, there) = (Mailbox::new(1, 4), Mailbox::new(1, 4));
    let out = Box::new(LocalEdge::new(HERE, here.sender(), there.sender(), CREDIT));
    let back = Box::new(LocalEdge::new(THERE, there.sender(), here.sender(), CREDIT));
    let thread = std::thread::Builder::new().name("echo".into()).spawn(move || echo(&there, back)).expect("a thread");
    Side { mailbox: here, out, other: Other::Thread(Some(thread)) }
}

fn same_host() -> Side {
    let folder = tempfile::tempdir().expect("a folder");
    let program = std::env::current_exe().expect("this program");
    let child = Command::new(program).env(CHILD, folder.path()).spawn().expect("a second process");
    let mailbox = Mailbox::new(1, 4);
    let (out, _listener) = meet(folder.path(), HERE, THERE, &mailbox);
    Side { mailbox, out, other: Other::Process(child) }
}

fn meet(folder: &Path, me: ActorId, peer: ActorId, mailbox: &Mailbox) -> (Box<dyn Edge>, SlabListener) {
    let path = |actor: ActorId| folder.join(actor.role.name());
    let listener = SlabListener::bind(&path(me), me).expect("a socket");
    let deadline = Instant::now() + PATIENCE;
    let edge = loop {
        match SlabEdge::connect(&path(peer), me, peer, CREDIT, &mailbox.sender()) {
            Ok(edge) => break edge,
            Err(error) if Instant::now() > deadline => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    listener.accept(&[peer], &mailbox.sender(), PATIENCE).expect("the peer connects");
    (Box::new(edge), listener)
}

/// The request to the other side, by the index of the parcel's unit.
const PING: u32 = 0;
const KEEP: u32 = 1;
const STOP: u32 = 2;

fn parcel(what: u32, tensors: Vec<Box<dyn Buffer>>) -> Parcel {
    let kind = ParcelKind::Features(UnitId { step: StepId(0), index: what });
    Parcel::new(Header { kind, version: Version(0) }, tensors)
}

fn what(parcel: &Parcel) -> u32 {
    match parcel.header.kind {
        ParcelKind::Features(unit) => unit.index,
        kind => panic!("{kind:?}"),
    }
}

fn receive(mailbox: &Mailbox) -> Parcel {
    loop {
        match mailbox.recv_timeout(PATIENCE) {
            Some(Mail::Parcel { parcel, .. }) => return parcel,
            Some(Mail::Credit) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn echo(mailbox: &Mailbox, mut out: Box<dyn Edge>) {
    loop {
        match what(&receive(mailbox)) {
            PING => out.try_send(small()).expect("credit for a small parcel"),
            KEEP => {}
            _ => return,
        }
    }
}

fn small() -> Parcel {
    parcel(PING, vec![Box::new(HostTensor::from_f32(&[0.0; 16], &[16]))])
}

/// Seconds of one round trip.
fn round_trip(side: &mut Side) -> f64 {
    let start = Instant::now();
    for _ in 0..PINGS {
        side.out.try_send(small()).expect("credit for a small parcel");
        receive(&side.mailbox);
    }
    start.elapsed().as_secs_f64() / PINGS as f64
}

/// Seconds until `count` parcels of `tensor` and a ping after them have come through.
fn stream(side: &mut Side, tensor: &Source, count: usize) -> f64 {
    let start = Instant::now();
    let parcels = (0..count).map(|_| parcel(KEEP, vec![Box::new(tensor.clone())]));
    for mut parcel in parcels.chain([small()]) {
        while let Err(refused) = side.out.try_send(parcel) {
            assert_eq!(refused.why, Refusal::NoCredit);
            assert!(matches!(side.mailbox.recv_timeout(PATIENCE), Some(Mail::Credit)));
            parcel = refused.parcel;
        }
    }
    receive(&side.mailbox);
    start.elapsed().as_secs_f64()
}

/// Seconds to copy it `count` times to so many warm buffers in turns.
fn memcpy(tensor: &Source, count: usize, num_buffers: usize) -> f64 {
    let mut out = vec![vec![1; tensor.0.len()]; num_buffers];
    out.iter_mut().for_each(|out| tensor.copy_to(out));
    let start = Instant::now();
    for at in 0..count {
        tensor.copy_to(std::hint::black_box(&mut out[at % num_buffers]));
    }
    start.elapsed().as_secs_f64()
}

/// A tensor that can be sent many times.
#[derive(Clone)]
struct Source(Arc<Vec<u8>>);

impl Buffer for Source {
    fn meta(&self) -> TensorMeta {
        TensorMeta { dtype: Dtype::F32, shape: vec![self.0.len() / 4] }
    }

    fn copy_to(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.0);
    }

    fn bytes(&self) -> Option<&[u8]> {
        Some(&self.0)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}
