//! Messages between an actor's process and the scheduler while it joins.

use crate::launch::net::NetError;
use crate::launch::{Assignment, EdgeSpec};
use loongforge_core::message::{ActorId, Command, Event, PoolName, Role};
use loongforge_core::transport::{FrameError, LinkError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// A message from an actor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Up {
    Hello {
        /// Hash of the run's config, which must be the same for all processes.
        config: String,
        role: Role,
        /// The pool of that role; of an encoder which one it is to join.
        pool: PoolName,
        /// The index that it was started for, if it knows one.
        index: Option<u32>,
    },
    /// Address of its incoming edges: a Unix socket's path, or HOST:PORT.
    Listening {
        edges: PathBuf,
    },
    Event(Event),
    /// Heartbeat.
    Alive,
    /// From a user: scale this pool, or the run's only one, to this many encoders.
    Scale {
        pool: Option<PoolName>,
        encoders: u32,
        /// Also more than the scheduler's machine has cores for.
        is_forced: bool,
    },
    /// A message to another actor, on a separate connection: parcels of this edge follow.
    Edge {
        from: ActorId,
        to: ActorId,
        credit: u64,
        /// The number of connections that were tried for it.
        attempt: u64,
    },
    /// The previous connection broke; this one continues its wire.
    Return {
        from: ActorId,
        /// The wire's number.
        wire: u128,
        /// Increases with every attempt, so that replayed messages are not accepted.
        attempt: u64,
        /// Number of the last received message.
        received: u64,
    },
}

/// A message to an actor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Down {
    Refused {
        reason: String,
    },
    /// Answers [`Up::Scale`]: the pool, and its previous number of encoders.
    Scaling {
        pool: PoolName,
        from: u32,
    },
    Assigned(ActorId),
    Welcome(Welcome),
    Command(Command),
}

/// Every actor has joined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    pub assignment: Assignment,
    /// Outgoing edges of the actor, and where their receivers listen.
    pub edges: Vec<(EdgeSpec, PathBuf)>,
    /// Actors with edges to this one.
    pub producers: Vec<ActorId>,
    /// Capacity of its queues.
    pub queue: usize,
    /// Longest time between two heartbeats.
    pub lease: Duration,
    /// Number of the wire that its connection now is.
    pub wire: u128,
    /// True if the scheduler can be waited for if its connection ends.
    pub returns: bool,
}

/// The processes of a run could not be joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// `cause`: empty where nobody listens; else what hinders, between brackets.
    #[error(
        "no scheduler listens at {address} after {seconds} s{cause}; start one with `--role scheduler --join {address}`"
    )]
    NoScheduler { address: String, seconds: u64, cause: String },
    #[error(
        "whoever listens at {address} said nothing for {seconds} s: either no scheduler of this run, or one that hangs"
    )]
    Silent { address: String, seconds: u64 },
    #[error("{missing} did not join at {address} within {seconds} s (`scheduler.join_timeout`)")]
    Missing { missing: String, address: String, seconds: u64 },
    #[error("the scheduler at {address} refuses this process: {reason}")]
    Refused { address: String, reason: String },
    #[error("the scheduler at {address} refuses this process: {reason}")]
    OtherConfig { address: String, reason: String },
    #[error("the scheduler at {address} changes no pool: {reason}")]
    NotScaled { address: String, reason: String },
    #[error("scheduler at {address}: {source}")]
    Connect { address: String, source: std::io::Error },
    #[error(transparent)]
    Net(NetError),
    #[error("another scheduler listens at {address}; end that run or choose another address with `--join`")]
    AddressInUse { address: String },
    #[error("cannot listen at {address}: {source}")]
    Listen { address: String, source: std::io::Error },
    #[error("scheduler at {address}: {source}")]
    Connection { address: String, source: LinkError },
    #[error("the scheduler at {address} ended before the run began")]
    SchedulerGone { address: String },
    #[error("protocol violation: the scheduler at {address} sent {said} out of turn")]
    OutOfTurn { address: String, said: String },
    #[error("{actor} ended before it joined: {reason}")]
    ChildEnded { actor: ActorId, reason: String },
}

/// The reason why a process with other settings is refused, before the keys that differ.
pub(super) const OTHER_CONFIG: &str =
    "its configuration is not this run's; give all processes the same file and overrides";
/// Keys that a refusal names.
const MAX_KEYS: usize = 8;

/// Returns the reason why a process with the config `theirs` is refused by a run with the config `ours`. It names the keys that differ
/// where both have a hash of each: `KEY=HASH`, divided by spaces.
pub(super) fn other_config(ours: &str, theirs: &str) -> String {
    let (ours, theirs) = (hashes(ours), hashes(theirs));
    let differ = ours.iter().filter(|&(key, hash)| theirs.get(key) != Some(hash));
    let keys: Vec<&str> = differ.map(|(key, _)| *key).collect();
    if keys.is_empty() || theirs.is_empty() {
        return OTHER_CONFIG.to_owned();
    }
    let more = match keys.len().saturating_sub(MAX_KEYS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{OTHER_CONFIG}; what differs: {}{more}", keys[..keys.len().min(MAX_KEYS)].join(", "))
}

/// Returns the hash of each key.
fn hashes(config: &str) -> BTreeMap<&str, &str> {
    config.split(' ').filter_map(|part| part.split_once('=')).collect()
}

/// The reason why the pools of a run do not change now, and may later.
pub(in crate::launch) const BEGINNING: &str = "the run is just beginning; ask again";
pub(in crate::launch) const ENDED: &str = "the run has ended";

impl JoinError {
    /// Returns whether nobody listens there.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::NoScheduler { .. })
    }

    /// Returns whether the same command can only end so again: another config or build than the run's, a pool that cannot have
    /// so many encoders, or an address at which nobody can listen.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::OtherConfig { .. } => true,
            Self::NotScaled { reason, .. } => ![BEGINNING, ENDED].contains(&reason.as_str()),
            Self::Net(NetError::Listen { source, .. }) => source.kind() == std::io::ErrorKind::AlreadyExists,
            Self::Connection { source, .. } => matches!(source, LinkError::Frame(FrameError::OtherVersion { .. })),
            _ => false,
        }
    }
}

impl From<NetError> for JoinError {
    fn from(error: NetError) -> Self {
        match error {
            NetError::Listen { address, source } if source.kind() == std::io::ErrorKind::AddrInUse => {
                Self::AddressInUse { address: address.to_string() }
            }
            error => Self::Net(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_another_config_is_told_which_keys_differ() {
        let ours = "ab run.seed=1 train.lr=2 train.steps=3";
        let differing = |theirs| other_config(ours, theirs).strip_prefix(OTHER_CONFIG).map(str::to_owned);
        assert_eq!(differing("cd run.seed=1 train.lr=9"), Some("; what differs: train.lr, train.steps".into()));
        assert_eq!(differing("xyz"), Some(String::new()));
        assert_eq!(differing("cd run.seed=1 train.lr=2 train.steps=3 pools.more=4"), Some(String::new()));
        let many = |hash: u32| (0..20).map(|key| format!(" k{key:02}={hash}")).collect::<String>();
        let told = other_config(&many(1), &many(2));
        assert!(told.ends_with("k06, k07 and 12 more"), "{told}");
    }
}
