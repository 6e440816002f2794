//! The faults to inject, where and when.

use loongforge_core::message::{ActorId, PoolName};
use std::fmt;
use std::time::Duration;

/// Faults, in the order in which they were written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    pub faults: Vec<FaultRule>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FaultRule {
    /// The text as it was written.
    pub text: String,
    pub target: Target,
    pub verb: Fault,
    /// It begins when so many steps are done; with the run where nothing is said.
    pub from_step: u64,
    /// The time that the fault lasts; `None`: until the end of the run.
    pub span: Option<Span>,
}

/// The length of a fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Span {
    Time(Duration),
    Steps(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Process(Pattern),
    /// The fault applies to messages from one process to another; with `both`, also to those in the other direction.
    Line {
        from: Pattern,
        to: Pattern,
        both: bool,
    },
}

/// Actors: `*`, `encoder/*` or `encoder/1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    pub pool: Option<PoolName>,
    pub index: Option<u32>,
}

impl Pattern {
    /// Returns whether an actor is meant.
    pub fn matches(&self, actor: ActorId) -> bool {
        self.pool.is_none_or(|pool| pool == actor.pool) && self.index.is_none_or(|index| index == actor.index)
    }
}

impl Target {
    /// Returns the pools that it names.
    pub fn pools(&self) -> impl Iterator<Item = PoolName> + use<> {
        let patterns = match *self {
            Self::Process(pattern) => [Some(pattern), None],
            Self::Line { from, to, .. } => [Some(from), Some(to)],
        };
        patterns.into_iter().flatten().filter_map(|pattern| pattern.pool)
    }

    /// Returns whether it is about what goes from one actor to another.
    pub fn covers(&self, from: ActorId, to: ActorId) -> bool {
        match self {
            Self::Process(_) => false,
            Self::Line { from: a, to: b, both } => {
                (a.matches(from) && b.matches(to)) || (*both && a.matches(to) && b.matches(from))
            }
        }
    }
}

/// The messages that a fault happens to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// One from each actor to each other.
    Once,
    /// A share of all.
    Share(f64),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// The process is killed at a point of its step when it comes to it for so many times, or when the fault begins.
    Kill {
        point: Option<(String, u32)>,
    },
    Freeze {
        point: Option<(String, u32)>,
    },
    /// Each message comes later, by something between the two.
    Delay {
        least: Duration,
        most: Duration,
    },
    /// Bytes a second.
    Throttle {
        rate: u64,
    },
    /// No message comes through.
    Partition,
    /// One bit of a message is another.
    Flip {
        rate: Rate,
    },
    /// A message comes twice.
    Duplicate {
        rate: Rate,
    },
    /// A message comes after the one that follows it.
    Reorder {
        rate: Rate,
    },
    /// A message does not come.
    Lose {
        rate: Rate,
    },
    /// Connections are closed in order.
    Drop,
    /// Connections are broken off.
    Reset,
    /// Connections are closed after so many bytes, wherever that is.
    Cut {
        after: u64,
    },
}

impl Fault {
    /// Returns whether it is done to a process rather than to what goes between two.
    pub fn is_of_process(&self) -> bool {
        matches!(self, Self::Kill { .. } | Self::Freeze { .. })
    }
}

impl fmt::Display for FaultRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
