//! The proxy: each connecting process names its target, and the messages between the two get the faults of a script.

use super::active::Active;
use super::injector::{FaultInjector, mix};
use super::relay::relay;
use super::script::{FaultRule, Script};
use crate::launch::join::Up;
use loongforge_core::message::{ActorId, Role};
use loongforge_core::transport::{envelope_len, unframe};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

/// The environment's variable with the proxy's address.
pub const PROXY: &str = "LOONGFORGE_PROXY";
/// The time that a process that has connected may take to name the actor that it means.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest words of that, and longest first message.
const MAX_WORDS: usize = 300;
const MAX_HELLO: usize = 64 << 10;
/// The time that a process that joins waits for an actor that is not there yet.
const JOINING: Duration = Duration::from_secs(10);
/// The interval of checks whether a partition has ended.
const LOOK: Duration = Duration::from_millis(10);
/// An actor of which nothing but its role is known.
const UNKNOWN: u32 = u32::MAX;

/// A proxy that listens on loopback; gone when it is dropped.
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
    /// Taken when it is dropped.
    runtime: Option<Runtime>,
}

/// A fault, and how often it has happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Injected {
    pub fault: FaultRule,
    pub count: u64,
}

struct State {
    active: Active,
    seed: u64,
    /// The actor at each address where edges come in.
    doors: Mutex<BTreeMap<String, ActorId>>,
    num_connections: std::sync::atomic::AtomicU64,
}

impl Proxy {
    /// Starts the proxy on its own thread.
    ///
    /// # Errors
    /// No port or thread can be had.
    pub fn start(script: &Script, seed: u64) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
        let address = listener.local_addr()?;
        let active = Active::new(script);
        let state = Arc::new(State { active, seed, doors: Mutex::default(), num_connections: 0.into() });
        let shared = state.clone();
        runtime.spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                tokio::select! {
                    stream = listener.accept() => {
                        let Ok((stream, _)) = stream else { continue };
                        let state = shared.clone();
                        // Whose connection cannot be made learns that from its end.
                        connections.spawn(async move { drop(state.carry(stream).await) });
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self { address, state, runtime: Some(runtime) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Records that this many steps of the run are done.
    pub fn advance(&self, steps: u64) {
        self.state.active.advance(steps);
    }

    /// Returns the number of times that each fault has happened so far.
    pub fn injected(&self) -> Vec<Injected> {
        self.state.active.counts().map(|(fault, count)| Injected { fault: fault.clone(), count }).collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It waits for nothing.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background()
        }
    }
}

/// Returns the line that a connection sends to a proxy first.
pub fn words(role: Option<Role>, address: &str) -> String {
    format!("{} {address}\n", role.map_or("-", Role::name))
}

impl State {
    async fn carry(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        let (role, address) = timeout(PATIENCE, hear_words(&mut stream)).await.map_err(late)??;
        let (said, hello) = timeout(PATIENCE, hear_hello(&mut stream)).await.map_err(late)??;
        let nobody = ActorId::new(Role::Scheduler, UNKNOWN);
        let known = |role: Option<Role>| role.map_or(nobody, |role| ActorId::new(role, UNKNOWN));
        let door = { self.doors.lock().unwrap_or_else(PoisonError::into_inner).get(&address).copied() };
        let server = match role {
            Some(Role::Scheduler) => ActorId::SCHEDULER,
            role => door.unwrap_or(known(role)),
        };
        let (from, to) = match hello {
            Some(Up::Hello { role, pool, index, .. }) => {
                (ActorId { role, pool, index: index.unwrap_or(UNKNOWN) }, server)
            }
            Some(Up::Return { from, .. }) => (from, server),
            Some(Up::Edge { from, to, .. }) => {
                self.doors.lock().unwrap_or_else(PoisonError::into_inner).insert(address.clone(), to);
                (from, to)
            }
            _ => (nobody, server),
        };
        while self.active.is_partitioned(from, to) || self.active.is_partitioned(to, from) {
            sleep(LOOK).await;
        }
        // Who joins may come before the scheduler, and would take this proxy for it.
        let joins = matches!(hello, None | Some(Up::Hello { .. }));
        let deadline = tokio::time::Instant::now() + if joins { JOINING } else { Duration::ZERO };
        let far = loop {
            match TcpStream::connect(&address).await {
                Err(_) if tokio::time::Instant::now() < deadline => sleep(LOOK).await,
                far => break far?,
            }
        };
        far.set_nodelay(true)?;
        let number = self.num_connections.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        // Connections come in any order: what becomes of a message does not depend on it, but on how many its wire had.
        let seed = mix(self.seed, if hello_is_first(&said) { 0 } else { number });
        let (there, back) = (FaultInjector::new(from, to, seed), FaultInjector::new(to, from, seed));
        relay(stream, far, said, there, back, &self.active).await;
        Ok(())
    }
}

/// Reads `ROLE HOST:PORT` and the end of the line.
async fn hear_words(stream: &mut TcpStream) -> io::Result<(Option<Role>, String)> {
    let mut words = Vec::new();
    loop {
        match stream.read_u8().await? {
            b'\n' => break,
            _ if words.len() >= MAX_WORDS => return Err(io::ErrorKind::InvalidData.into()),
            byte => words.push(byte),
        }
    }
    let words = String::from_utf8(words).map_err(|_| io::ErrorKind::InvalidData)?;
    let (role, address) = words.split_once(' ').ok_or(io::ErrorKind::InvalidData)?;
    Ok((role.parse().ok(), address.to_owned()))
}

/// Returns the first message, as it came and as it is understood; of words that are encrypted only what came.
async fn hear_hello(stream: &mut TcpStream) -> io::Result<(Vec<u8>, Option<Up>)> {
    let mut said = Vec::new();
    loop {
        match envelope_len(&said) {
            Err(_) => return Ok((said, None)),
            Ok(Some(len)) if len > MAX_HELLO => return Ok((said, None)),
            Ok(Some(len)) if len <= said.len() => {
                let hello = unframe::<Up>(said[..len].to_vec()).ok();
                return Ok((said, hello));
            }
            Ok(_) => {}
        }
        if stream.read_buf(&mut said).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn hello_is_first(said: &[u8]) -> bool {
    !matches!(unframe::<Up>(said.to_vec()), Ok(Up::Return { .. }))
}
