//! A folder of shards that many processes may write together: what the job is, which groups of samples are done, and the
//! step that joins them. Safe to kill and to run again at any time.
//!
//! ```text
//! OUT/shard-000003.tar, .tar.idx          the samples of group 3; shard-000003_01.tar … where they do not fit one file
//! OUT/.loongforge/job.json                what is made of what: the same in every process
//! OUT/.loongforge/group-000003.json       its shards with their sizes, and its bad samples: group 3 is done
//! OUT/.nv-meta/…                          written by the merge
//! ```
//!
//! The cut into groups does not depend on how many processes there are, so neither does any byte of the shards.

mod files;
mod group;
mod merge;
mod share;
#[cfg(test)]
mod tests;
mod work;

pub use files::list_bad;
pub(super) use files::{HOME, read_json, write_json};
pub use group::{Done, WrittenShard};
pub use merge::BAD;
pub use share::Share;
pub use work::{Job, Made};
