//! The party at the other end of a connection.

use loongforge_core::message::Role;
use std::fmt;

/// The party that a process can be: an actor, or a user who controls a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    Actor(Role),
    Operator,
}

impl Party {
    pub const ALL: [Party; 5] = [
        Party::Actor(Role::Scheduler),
        Party::Actor(Role::Data),
        Party::Actor(Role::Encoder),
        Party::Actor(Role::Foundation),
        Party::Operator,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Actor(role) => role.name(),
            Self::Operator => "operator",
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
