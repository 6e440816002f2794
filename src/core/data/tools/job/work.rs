//! A job, and the writing of its groups.

use std::fs;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::files::{HOME, group_path, read_json, write_json};
use super::group::{Done, Group, WrittenShard};
use super::share::Share;
use crate::data::error::{BadSample, DataError};
use crate::data::tools::ordered::for_each_ordered;
use crate::data::tools::shard::{Member, ShardWriter};

/// The description of a job that writes samples or packs into shards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// `convert` or `pack`.
    pub kind: String,
    /// Everything that decides what is written; processes and runs with another one do not go on with this folder.
    pub spec: serde_json::Value,
    /// Samples or packs of the whole job.
    pub num_samples: u64,
    /// Samples of a group.
    pub group_samples: u64,
    /// A shard that would be larger is begun anew.
    pub max_bytes: u64,
    /// `sample_type` of Megatron-Energon's crude samples: which cooker reads them.
    pub sample_type: String,
    /// Samples that were left out before.
    pub bad: Vec<BadSample>,
}

/// It holds the members made of a sample or a pack, if anything of it can be used, and what was left out.
#[derive(Debug, Default)]
pub struct Made {
    pub members: Option<Vec<Member>>,
    pub bad: Vec<BadSample>,
    /// Positions of those samples of a pack that are among `bad`.
    pub left_out: Vec<u64>,
}

impl From<Result<Vec<Member>, BadSample>> for Made {
    fn from(made: Result<Vec<Member>, BadSample>) -> Self {
        match made {
            Ok(members) => Self { members: Some(members), ..Self::default() },
            Err(bad) => Self { bad: vec![bad], ..Self::default() },
        }
    }
}

impl Job {
    /// Returns the number of groups of samples, of which the last may be smaller.
    pub fn num_groups(&self) -> u64 {
        self.num_samples.div_ceil(self.group_samples.max(1))
    }

    fn samples_of(&self, group: u64) -> Range<u64> {
        group * self.group_samples..((group + 1) * self.group_samples).min(self.num_samples)
    }

    /// Returns the number of samples of a share.
    pub fn num_samples_of(&self, share: Share) -> u64 {
        share.of(self.num_groups()).map(|group| self.samples_of(group)).map(|range| range.end - range.start).sum()
    }

    /// Says in the folder what is made there, or sees that it is the same.
    ///
    /// # Errors
    /// The folder holds another job, or cannot be written.
    pub fn begin(&self, out: &Path) -> Result<(), DataError> {
        let path = out.join(HOME).join("job.json");
        fs::create_dir_all(out.join(HOME)).map_err(|error| DataError::write(out, error))?;
        match read_json::<Job>(&path)? {
            Some(job) if job == *self => Ok(()),
            Some(job) => {
                let reason = format!(
                    "the folder holds shards of another {}: other inputs or options; name another folder, or remove it",
                    job.kind
                );
                Err(DataError::file(out, reason))
            }
            None => write_json(&path, self),
        }
    }

    /// Opens the job of a folder.
    ///
    /// # Errors
    /// The folder has no job, or its description cannot be read.
    pub fn open(out: &Path) -> Result<Self, DataError> {
        let none = || DataError::file(out, "no shards of `data convert` or `data pack` (no .loongforge/job.json)");
        read_json(&out.join(HOME).join("job.json"))?.ok_or_else(none)
    }

    /// Writes the groups of a share that are not done yet. `work` makes the members of a sample, on `jobs` threads;
    /// `progress` is told of every sample, in order. A bad sample is listed and left out.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn write<M: Into<Made> + Send>(
        &self,
        out: &Path,
        share: Share,
        jobs: usize,
        work: impl Fn(u64) -> M + Sync,
        mut progress: impl FnMut(u64, Option<&BadSample>),
    ) -> Result<Done, DataError> {
        let mut done = Done::default();
        for index in share.of(self.num_groups()) {
            if let Some(group) = self.finished(out, index)? {
                let samples = self.samples_of(index);
                done.kept += samples.end - samples.start;
                samples.for_each(|sample| progress(sample, None));
                done.add(group);
                continue;
            }
            done.add(self.write_group(out, index, jobs, &work, &mut progress)?);
        }
        Ok(done)
    }

    fn write_group<M: Into<Made> + Send>(
        &self,
        out: &Path,
        index: u64,
        jobs: usize,
        work: &(impl Fn(u64) -> M + Sync),
        progress: &mut impl FnMut(u64, Option<&BadSample>),
    ) -> Result<Group, DataError> {
        let mut group = Group::default();
        let mut writer: Option<(String, ShardWriter)> = None;
        for_each_ordered(jobs, self.samples_of(index), work, |sample, made| {
            let Made { members, bad, left_out } = made.into();
            progress(sample, bad.first());
            group.bad.extend(bad);
            group.left_out.extend(left_out);
            let Some(members) = members else { return Ok(()) };
            if let Some((name, full)) = writer.take_if(|(_, shard)| shard.num_bytes_with(&members) > self.max_bytes) {
                group.shards.push(finish(name, full)?);
            }
            let (_, shard) = match &mut writer {
                Some(open) => open,
                None => {
                    let name = shard_name(index, group.shards.len());
                    let shard = ShardWriter::create(&out.join(&name))?;
                    writer.insert((name, shard))
                }
            };
            shard.append(&key(sample), &members)
        })?;
        if let Some((name, last)) = writer {
            group.shards.push(finish(name, last)?);
        }
        write_json(&group_path(out, index), &group)?;
        Ok(group)
    }

    /// Returns a group that is there, its shards of the size that was noted.
    pub(super) fn finished(&self, out: &Path, index: u64) -> Result<Option<Group>, DataError> {
        let group: Option<Group> = read_json(&group_path(out, index))?;
        let whole = |shard: &WrittenShard| {
            // A name from a file that somebody may have changed: nothing outside of the folder is looked at.
            shard.name.starts_with("shard-")
                && !shard.name.contains(['/', '\\'])
                && fs::metadata(out.join(&shard.name)).is_ok_and(|file| file.len() == shard.bytes)
                && out.join(&shard.name).with_extension("tar.idx").exists()
        };
        Ok(group.filter(|group| group.shards.iter().all(whole)))
    }
}

fn finish(name: String, shard: ShardWriter) -> Result<WrittenShard, DataError> {
    let samples = shard.num_samples();
    Ok(WrittenShard { bytes: shard.finish()?, name, samples })
}

fn shard_name(group: u64, index: usize) -> String {
    if index == 0 { format!("shard-{group:06}.tar") } else { format!("shard-{group:06}_{index:02}.tar") }
}

/// Returns the key of a sample: unique in the data set, without a dot.
fn key(sample: u64) -> String {
    format!("{sample:09}")
}
