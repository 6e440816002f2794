//! Joining what all processes have done.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::files::list_bad;
use super::group::{Done, WrittenShard};
use super::work::Job;
use crate::data::error::DataError;
use crate::data::tools::energon;

/// The file in which a merge lists what was left out.
pub const BAD: &str = "bad.jsonl";

impl Job {
    /// Joins what all processes have done: writes `.nv-meta`. The same again when it is run again.
    ///
    /// # Errors
    /// A group is missing or damaged: says which shares of `num` processes are to be run again.
    pub fn merge(&self, out: &Path) -> Result<Done, DataError> {
        let mut done = Done { bad: self.bad.clone(), ..Done::default() };
        let mut missing = Vec::new();
        let mut shards = Vec::new();
        for index in 0..self.num_groups() {
            match self.finished(out, index)? {
                Some(group) => {
                    shards.extend(group.shards.iter().cloned());
                    done.add(group);
                }
                None => missing.push(index),
            }
        }
        if let [first, ..] = missing[..] {
            let (num, all) = (missing.len(), self.num_groups());
            let reason = format!(
                "{num} of {all} groups of samples are not done, the first is {first}: run every --shard i/n of the job \
                 (what is done is kept), then merge"
            );
            return Err(DataError::file(out, reason));
        }
        if shards.is_empty() {
            let first = done.bad.first().map_or_else(String::new, |bad| format!("; the first: {bad}"));
            return Err(DataError::file(out, format!("every sample is bad: there is no shard{first}")));
        }
        remove_strangers(out, &shards)?;
        list_bad(&out.join(BAD), &done.bad)?;
        energon::write(out, &shards, &self.sample_type)?;
        Ok(done)
    }
}

/// Removes shards that a group has no more, from a run that was killed; never anything but `shard-….tar` and the like.
fn remove_strangers(out: &Path, shards: &[WrittenShard]) -> Result<(), DataError> {
    let known: BTreeSet<&str> = shards.iter().map(|shard| shard.name.as_str()).collect();
    let entries = fs::read_dir(out).map_err(|error| DataError::read(out, error))?;
    for entry in entries {
        let entry = entry.map_err(|error| DataError::read(out, error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let stem = name.split('.').next().unwrap_or_default();
        let is_ours = stem
            .strip_prefix("shard-")
            .is_some_and(|rest| rest.len() >= 6 && rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_'));
        if is_ours && !known.contains(format!("{stem}.tar").as_str()) {
            fs::remove_file(entry.path()).map_err(|error| DataError::write(&entry.path(), error))?;
        }
    }
    Ok(())
}
