//! The results of a job: shards, groups of them, and all that a process has done.

use serde::{Deserialize, Serialize};

use crate::data::error::BadSample;

/// A group that is done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Group {
    pub shards: Vec<WrittenShard>,
    pub bad: Vec<BadSample>,
    /// Positions of samples that are in none of the packs that they were planned for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenShard {
    pub name: String,
    pub bytes: u64,
    pub samples: u64,
}

/// The work that a process has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub samples: u64,
    pub bytes: u64,
    pub shards: usize,
    pub bad: Vec<BadSample>,
    /// Positions of samples that are in none of the packs that they were planned for.
    pub left_out: Vec<u64>,
    /// Samples of groups that had been done before.
    pub kept: u64,
}

impl Done {
    /// Adds what a group came to.
    pub(super) fn add(&mut self, group: Group) {
        self.samples += group.shards.iter().map(|shard| shard.samples).sum::<u64>();
        self.bytes += group.shards.iter().map(|shard| shard.bytes).sum::<u64>();
        self.shards += group.shards.len();
        self.bad.extend(group.bad);
        self.left_out.extend(group.left_out);
    }
}
