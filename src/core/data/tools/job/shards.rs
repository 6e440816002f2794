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

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::energon;
use super::ordered::for_each_ordered;
use super::shard::{Member, ShardWriter, write_whole};
use crate::data::error::{BadSample, DataError};

pub(super) const HOME: &str = ".loongforge";
/// Where a merge lists what was left out.
pub const BAD: &str = "bad.jsonl";

/// What is made of what.
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

/// One process of several: `index` of `num`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub index: u64,
    pub num: u64,
}

impl Share {
    pub const WHOLE: Self = Self { index: 0, num: 1 };

    /// The numbers of `0..len` that are this process's: neighbours, as many as everybody's but for one.
    pub fn of(self, len: u64) -> Range<u64> {
        let at = |index: u64| (u128::from(len) * u128::from(index) / u128::from(self.num)) as u64;
        at(self.index)..at(self.index + 1)
    }
}

impl std::str::FromStr for Share {
    type Err = String;

    /// `i/n` with `i` from 0.
    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (index, num) = text.split_once('/')?;
            Some((index.trim().parse::<u64>().ok()?, num.trim().parse::<u64>().ok()?))
        };
        match parse() {
            Some((index, num)) if index < num => Ok(Self { index, num }),
            Some((index, num)) => {
                Err(format!("{index}/{num}: the first of {num} is 0/{num}, the last {}/{num}", num.saturating_sub(1)))
            }
            None => Err(format!("{text:?} is not i/n, for example 0/8")),
        }
    }
}

/// A group that is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    pub shards: Vec<Shard>,
    pub bad: Vec<BadSample>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    pub name: String,
    pub bytes: u64,
    pub samples: u64,
}

/// What a process has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub samples: u64,
    pub bytes: u64,
    pub shards: usize,
    pub bad: Vec<BadSample>,
    /// Samples of groups that had been done before.
    pub kept: u64,
}

impl Done {
    fn add(&mut self, group: Group) {
        self.samples += group.shards.iter().map(|shard| shard.samples).sum::<u64>();
        self.bytes += group.shards.iter().map(|shard| shard.bytes).sum::<u64>();
        self.shards += group.shards.len();
        self.bad.extend(group.bad);
    }
}

impl Job {
    pub fn num_groups(&self) -> u64 {
        self.num_samples.div_ceil(self.group_samples.max(1))
    }

    fn samples_of(&self, group: u64) -> Range<u64> {
        group * self.group_samples..((group + 1) * self.group_samples).min(self.num_samples)
    }

    /// Samples of a share.
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

    /// The job of a folder.
    pub fn open(out: &Path) -> Result<Self, DataError> {
        let none = || DataError::file(out, "no shards of `data convert` or `data pack` (no .loongforge/job.json)");
        read_json(&out.join(HOME).join("job.json"))?.ok_or_else(none)
    }

    /// Writes the groups of a share that are not done yet. `work` makes the members of a sample, on `jobs` threads;
    /// `progress` is told of every sample, in order. A bad sample is listed and left out.
    pub fn write(
        &self,
        out: &Path,
        share: Share,
        jobs: usize,
        work: impl Fn(u64) -> Result<Vec<Member>, BadSample> + Sync,
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

    fn write_group(
        &self,
        out: &Path,
        index: u64,
        jobs: usize,
        work: &(impl Fn(u64) -> Result<Vec<Member>, BadSample> + Sync),
        progress: &mut impl FnMut(u64, Option<&BadSample>),
    ) -> Result<Group, DataError> {
        let mut group = Group { shards: Vec::new(), bad: Vec::new() };
        let mut writer: Option<(String, ShardWriter)> = None;
        for_each_ordered(jobs, self.samples_of(index), work, |sample, members| {
            let members = match members {
                Ok(members) => members,
                Err(bad) => {
                    progress(sample, Some(&bad));
                    group.bad.push(bad);
                    return Ok(());
                }
            };
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
            shard.append(&key(sample), &members)?;
            progress(sample, None);
            Ok(())
        })?;
        if let Some((name, last)) = writer {
            group.shards.push(finish(name, last)?);
        }
        write_json(&group_path(out, index), &group)?;
        Ok(group)
    }

    /// A group that is there, its shards of the size that was noted.
    fn finished(&self, out: &Path, index: u64) -> Result<Option<Group>, DataError> {
        let group: Option<Group> = read_json(&group_path(out, index))?;
        let whole = |shard: &Shard| {
            // A name from a file that somebody may have changed: nothing outside of the folder is looked at.
            shard.name.starts_with("shard-")
                && !shard.name.contains(['/', '\\'])
                && fs::metadata(out.join(&shard.name)).is_ok_and(|file| file.len() == shard.bytes)
                && out.join(&shard.name).with_extension("tar.idx").exists()
        };
        Ok(group.filter(|group| group.shards.iter().all(whole)))
    }

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
            return Err(DataError::file(out, "every sample is bad: there is no shard"));
        }
        remove_strangers(out, &shards)?;
        list_bad(&out.join(BAD), &done.bad)?;
        energon::write(out, &shards, &self.sample_type)?;
        Ok(done)
    }
}

/// One bad sample a line; no file where there is none.
pub fn list_bad(path: &Path, bad: &[BadSample]) -> Result<(), DataError> {
    if bad.is_empty() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(DataError::write(path, error)),
            _ => Ok(()),
        };
    }
    let mut lines = Vec::new();
    for sample in bad {
        serde_json::to_writer(&mut lines, sample).map_err(|error| DataError::file(path, error))?;
        lines.push(b'\n');
    }
    write_whole(path, &lines)
}

/// Removes shards that a group has no more, from a run that was killed; never anything but `shard-….tar` and the like.
fn remove_strangers(out: &Path, shards: &[Shard]) -> Result<(), DataError> {
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

fn finish(name: String, shard: ShardWriter) -> Result<Shard, DataError> {
    let samples = shard.num_samples();
    Ok(Shard { bytes: shard.finish()?, name, samples })
}

fn shard_name(group: u64, index: usize) -> String {
    if index == 0 { format!("shard-{group:06}.tar") } else { format!("shard-{group:06}_{index:02}.tar") }
}

/// The key of a sample: unique in the data set, without a dot.
pub fn key(sample: u64) -> String {
    format!("{sample:09}")
}

fn group_path(out: &Path, index: u64) -> PathBuf {
    out.join(HOME).join(format!("group-{index:06}.json"))
}

/// `None` where there is no such file, or half of one.
pub(super) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, DataError> {
    match fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(DataError::read(path, error)),
    }
}

pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), DataError> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|error| DataError::file(path, error))?;
    bytes.push(b'\n');
    write_whole(path, &bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn job() -> Job {
        let kind = "convert".to_owned();
        let sample_type = "x".to_owned();
        Job { kind, spec: 1.into(), num_samples: 25, group_samples: 4, max_bytes: 5000, sample_type, bad: Vec::new() }
    }

    /// Sample 7 is bad, 5 is large.
    fn work(sample: u64) -> Result<Vec<Member>, BadSample> {
        if sample == 7 {
            return Err(BadSample { file: "a".into(), at: "8".into(), reason: "no".into() });
        }
        let len = if sample == 5 { 3000 } else { 10 };
        Ok(vec![("json".to_owned(), Arc::from(vec![sample as u8; len]))])
    }

    fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for folder in [folder.to_path_buf(), folder.join(".nv-meta")] {
            for entry in fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_file() {
                    files.insert(path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(path).unwrap());
                }
            }
        }
        files
    }

    #[test]
    fn many_processes_write_what_one_writes() {
        let folder = tempfile::tempdir().unwrap();
        let (one, three) = (folder.path().join("one"), folder.path().join("three"));
        job().begin(&one).unwrap();
        let mut seen = Vec::new();
        let done = job().write(&one, Share::WHOLE, 2, work, |sample, bad| seen.push((sample, bad.is_some()))).unwrap();
        assert_eq!(seen, (0..25).map(|sample| (sample, sample == 7)).collect::<Vec<_>>());
        assert_eq!((done.samples, done.bad.len(), done.shards), (24, 1, 8));
        assert_eq!(job().merge(&one).unwrap(), Done { kept: 0, ..done.clone() });
        let first = files(&one);
        assert!(
            first.contains_key("shard-000001_01.tar") && first.contains_key("shard-000006.tar.idx"),
            "{:?}",
            first.keys()
        );
        assert_eq!(job().merge(&one).unwrap(), done);
        assert_eq!(files(&one), first, "a merge may be run twice");

        job().begin(&three).unwrap();
        for index in [2, 0] {
            job().write(&three, Share { index, num: 3 }, 1, work, |_, _| ()).unwrap();
        }
        let error = job().merge(&three).unwrap_err().to_string();
        assert!(error.contains("2 of 7 groups") && error.contains("first is 2"), "{error}");
        job().begin(&three).unwrap();
        job().write(&three, Share { index: 1, num: 3 }, 3, work, |_, _| ()).unwrap();
        job().merge(&three).unwrap();
        assert_eq!(files(&three), first);
    }

    #[test]
    fn a_killed_job_goes_on_where_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path();
        job().begin(out).unwrap();
        // Killed in the third group: an error stands for it.
        let calls = AtomicU64::new(0);
        let counted = |sample| {
            calls.fetch_add(1, Ordering::SeqCst);
            work(sample)
        };
        let dies = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            job().write(
                out,
                Share::WHOLE,
                1,
                |sample| if sample == 10 { panic!("killed") } else { counted(sample) },
                |_, _| (),
            )
        }));
        assert!(dies.is_err());
        assert!(out.join("shard-000002.tar.part").exists() && !out.join("shard-000002.tar").exists());
        // A finished shard that was cut since, and one that nobody knows.
        fs::write(out.join("shard-000000.tar"), b"short").unwrap();
        fs::write(out.join("shard-000000_07.tar"), b"of an older run").unwrap();
        fs::write(out.join("notes.txt"), b"mine").unwrap();
        calls.store(0, Ordering::SeqCst);
        let done = job().write(out, Share::WHOLE, 1, counted, |_, _| ()).unwrap();
        assert_eq!((done.samples, done.kept, calls.into_inner()), (24, 4, 21));
        job().merge(out).unwrap();

        let clean = tempfile::tempdir().unwrap();
        job().begin(clean.path()).unwrap();
        job().write(clean.path(), Share::WHOLE, 1, work, |_, _| ()).unwrap();
        job().merge(clean.path()).unwrap();
        let mut ours = files(out);
        assert_eq!(ours.remove("notes.txt").unwrap(), b"mine");
        assert_eq!(ours, files(clean.path()));
    }

    #[test]
    fn another_job_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Job::open(folder.path()).unwrap_err().to_string().contains("no shards of"));
        job().begin(folder.path()).unwrap();
        assert_eq!(Job::open(folder.path()).unwrap(), job());
        let error = Job { spec: 2.into(), ..job() }.begin(folder.path()).unwrap_err().to_string();
        assert!(error.contains("another convert"), "{error}");
        let all_bad = Job { num_samples: 1, ..job() };
        let other = tempfile::tempdir().unwrap();
        all_bad.begin(other.path()).unwrap();
        all_bad.write(other.path(), Share::WHOLE, 1, |_| work(7), |_, _| ()).unwrap();
        assert!(all_bad.merge(other.path()).unwrap_err().to_string().contains("every sample is bad"));
    }

    #[test]
    fn shares_cover_everything_once() {
        for (len, num) in [(0, 3), (1, 3), (10, 3), (7, 7), (1000, 16)] {
            let all: Vec<u64> = (0..num).flat_map(|index| Share { index, num }.of(len)).collect();
            assert_eq!(all, (0..len).collect::<Vec<_>>());
        }
        assert_eq!("2/3".parse(), Ok(Share { index: 2, num: 3 }));
        assert!("3/3".parse::<Share>().unwrap_err().contains("2/3"));
        assert!("0/0".parse::<Share>().is_err() && "a".parse::<Share>().unwrap_err().contains("i/n"));
    }
}
