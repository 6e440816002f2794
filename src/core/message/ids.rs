//! Identifiers as newtypes, so that a step cannot be mistaken for a sample.

use super::PoolName;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A global optimizer step, counted from 0. Step `s` turns version `s` of the parameters into version `s + 1`.
    StepId(u64)
);
id!(
    /// Position of a sample in the run's data stream, counted from 0 over all epochs.
    SampleId(u64)
);
id!(
    /// Number of optimizer steps that produced these parameters.
    Version(u64)
);
id!(
    /// Generation of the encoder pool; it increases by one whenever the pool's members change. Messages of an older epoch are
    /// rejected.
    Epoch(u64)
);
id!(
    /// A fixed share of a pool's gradient sum. Lanes are summed in order, whoever computed them.
    Lane(u32)
);

/// One media item (image) of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ItemId {
    pub sample: SampleId,
    /// Order among the sample's items.
    pub index: u32,
}

/// One packed micro-batch of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PackId {
    pub step: StepId,
    pub index: u32,
}

/// One fixed piece of encoder work: media items of one pack, encoded as one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UnitId {
    pub step: StepId,
    pub index: u32,
}

impl SampleId {
    /// Upper bound of positions of the data stream.
    const HELD_OUT: u64 = 1 << 63;
    const INDEX_BITS: u32 = 48;

    /// Returns the id of sample `index` of held-out stream `stream`, which is not a position of the data stream.
    pub fn held_out(stream: u16, index: u64) -> Self {
        assert!(index < 1 << Self::INDEX_BITS && stream < 1 << 15, "held-out sample {index} of stream {stream}");
        Self(Self::HELD_OUT | u64::from(stream) << Self::INDEX_BITS | index)
    }

    /// Returns stream and index of a held-out sample; `None` for a position of the data stream.
    pub fn as_held_out(self) -> Option<(u16, u64)> {
        let stream = (self.0 & !Self::HELD_OUT) >> Self::INDEX_BITS;
        (self.0 & Self::HELD_OUT != 0).then_some((stream as u16, self.0 & ((1 << Self::INDEX_BITS) - 1)))
    }
}

/// First index of packs and units of evaluations; those of a step are below it. A late message of an evaluation is thus never
/// mistaken for one of the following step.
pub const FIRST_EVALUATION_INDEX: u32 = 1 << 20;

impl PackId {
    /// Returns the seed of random draws while the pack is computed, unique to each pack of a run.
    pub fn seed(self) -> u64 {
        self.step.0 << 32 | u64::from(self.index)
    }
}

impl UnitId {
    /// Returns whether the unit belongs to an evaluation.
    pub fn is_of_evaluation(self) -> bool {
        self.index >= FIRST_EVALUATION_INDEX
    }

    /// Returns the seed of random draws while the unit is computed, unique to each unit of a run.
    pub fn seed(self) -> u64 {
        self.step.0 << 32 | u64::from(self.index)
    }
}

impl fmt::Display for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pack {}.{}", self.step, self.index)
    }
}

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unit {}.{}", self.step, self.index)
    }
}

/// The role of an actor in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Scheduler,
    Data,
    Encoder,
    Foundation,
}

impl Role {
    /// Every role, in the order in which actors are started.
    pub const ALL: [Role; 4] = [Role::Scheduler, Role::Data, Role::Encoder, Role::Foundation];

    /// Returns the name in configs, options and actors' names, such as `encoder`.
    pub fn name(self) -> &'static str {
        match self {
            Role::Scheduler => "scheduler",
            Role::Data => "data",
            Role::Encoder => "encoder",
            Role::Foundation => "foundation",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for a name that no role has.
#[derive(Debug, thiserror::Error)]
#[error("unknown role `{0}`; a role is one of scheduler, data, encoder, foundation")]
pub struct UnknownRole(pub String);

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(name: &str) -> Result<Self, UnknownRole> {
        Role::ALL.into_iter().find(|role| role.name() == name).ok_or_else(|| UnknownRole(name.to_owned()))
    }
}

/// One actor of a run: `encoder/1` is the second of the pool `encoder`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ActorId {
    pub role: Role,
    pub pool: PoolName,
    pub index: u32,
}

impl ActorId {
    pub const SCHEDULER: ActorId = ActorId::new(Role::Scheduler, 0);

    /// Returns an actor of the pool with the role's name.
    pub const fn new(role: Role, index: u32) -> Self {
        let pool = match role {
            Role::Scheduler => PoolName::SCHEDULER,
            Role::Data => PoolName::DATA,
            Role::Encoder => PoolName::ENCODER,
            Role::Foundation => PoolName::FOUNDATION,
        };
        Self { role, pool, index }
    }

    /// Returns the id of data actor `index`.
    pub const fn data(index: u32) -> Self {
        Self::new(Role::Data, index)
    }

    /// Returns an actor of the pool `encoder`.
    pub const fn encoder(index: u32) -> Self {
        Self::new(Role::Encoder, index)
    }

    /// Returns an actor of an encoder pool.
    pub const fn encoder_of(pool: PoolName, index: u32) -> Self {
        Self { role: Role::Encoder, pool, index }
    }

    /// Returns an actor of the pool `foundation`.
    pub const fn foundation(index: u32) -> Self {
        Self::new(Role::Foundation, index)
    }

    /// Returns an actor of a foundation pool.
    pub const fn foundation_of(pool: PoolName, index: u32) -> Self {
        Self { role: Role::Foundation, pool, index }
    }
}

/// One replica of a pool: the consecutively numbered actors that hold one copy of the pool's model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Replica {
    pub pool: PoolName,
    pub index: u32,
}

impl Replica {
    /// Creates the id of replica `index` of a pool.
    pub const fn new(pool: PoolName, index: u32) -> Self {
        Self { pool, index }
    }

    /// Returns a replica of the pool `encoder`.
    pub const fn encoder(index: u32) -> Self {
        Self::new(PoolName::ENCODER, index)
    }

    /// Returns a replica of the pool `foundation`.
    pub const fn foundation(index: u32) -> Self {
        Self::new(PoolName::FOUNDATION, index)
    }

    /// Returns the first actor of the replica, if each replica has `num_ranks` actors.
    pub const fn leader(self, role: Role, num_ranks: u32) -> ActorId {
        ActorId { role, pool: self.pool, index: self.index * num_ranks }
    }
}

impl fmt::Display for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.index)
    }
}

impl fmt::Display for ActorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_have_seeds_of_their_own() {
        let ids = (0..3).flat_map(|step| (0..50).map(move |index| PackId { step: StepId(step), index }));
        let mut seeds: Vec<u64> = ids.map(PackId::seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 3 * 50);
    }
}
