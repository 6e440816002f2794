//! Checkpoints of a run that it does not go on from: it was resumed from an earlier step, or from elsewhere, and they belong to the
//! steps that it took before.

use super::{is_missing, replace_synced, step_folders};
use crate::text::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Name of the manifest in a checkpoint's folder.
pub const MANIFEST: &str = "MANIFEST.json";
/// Name of the record in the folder of checkpoints; it is there only if some are left aside, the run was resumed from elsewhere, or the
/// record in a store is to be replaced.
pub const LEFT_ASIDE: &str = ".left-aside.json";

/// The record of what a run was last resumed from by name, and which checkpoints in its folder it left aside then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftAside {
    /// The checkpoint that the run was resumed from.
    pub resumed_from: PathBuf,
    /// SHA-256 of the manifest of each checkpoint by its number of steps: one that is saved again is another one. That of the same
    /// steps in a store may be another one as well.
    pub checkpoints: BTreeMap<u64, BTreeSet<String>>,
    /// Seconds since 1970 when that was named; of the records of two machines the later one holds.
    #[serde(default)]
    pub noted_at: u64,
}

impl LeftAside {
    /// Lists the checkpoints of `folder` with more steps than `after`, or all where that is `None`.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn of(folder: &Path, resumed_from: PathBuf, after: Option<u64>) -> io::Result<Self> {
        let mut left = step_folders(folder)?;
        left.retain(|(num_steps, _)| after.is_none_or(|after| *num_steps > after));
        let checkpoints = left.into_iter().map(|(num_steps, path)| (num_steps, BTreeSet::from([hash_of(&path)])));
        Ok(Self { resumed_from, checkpoints: checkpoints.collect(), noted_at: 0 })
    }

    /// Adds a checkpoint of so many steps with this text as its manifest, which is in a store.
    pub fn add(&mut self, num_steps: u64, text: &[u8]) {
        self.checkpoints.entry(num_steps).or_default().insert(hex(Sha256::digest(text)));
    }

    /// Adds the checkpoints of an earlier record with more steps than `after`, or all where that is `None`.
    pub fn add_earlier(&mut self, earlier: Self, after: Option<u64>) {
        for (num_steps, hashes) in earlier.checkpoints {
            if after.is_none_or(|after| num_steps > after) {
                self.checkpoints.entry(num_steps).or_default().extend(hashes);
            }
        }
    }

    /// Reads the record of a folder; `None`: it has none.
    ///
    /// # Errors
    /// The record cannot be read, or is no such record.
    pub fn read(folder: &Path) -> io::Result<Option<Self>> {
        let text = match super::read(&folder.join(LEFT_ASIDE), super::MAX_TEXT_BYTES) {
            Err(error) if is_missing(&error) => return Ok(None),
            text => text.map_err(|error| io::Error::new(error.kind(), format!("{LEFT_ASIDE}: {error}")))?,
        };
        Self::parse(&text).map(Some)
    }

    /// Parses the text of a record.
    ///
    /// # Errors
    /// It is no such record.
    pub fn parse(text: &[u8]) -> io::Result<Self> {
        serde_json::from_slice(text).map_err(|error| {
            let help = "without this file the checkpoint with the most steps is the newest one";
            io::Error::new(ErrorKind::InvalidData, format!("{LEFT_ASIDE} is damaged: {error}; {help}"))
        })
    }

    /// Returns whether the checkpoint of so many steps in this folder is left aside.
    pub fn has(&self, num_steps: u64, checkpoint: &Path) -> bool {
        self.checkpoints.get(&num_steps).is_some_and(|hashes| hashes.contains(&hash_of(checkpoint)))
    }

    /// Returns whether a checkpoint of so many steps with this text as its manifest is left aside.
    pub fn has_manifest(&self, num_steps: u64, text: &[u8]) -> bool {
        self.checkpoints.get(&num_steps).is_some_and(|hashes| hashes.contains(&hex(Sha256::digest(text))))
    }

    /// Writes the record: what was there before, or all of this one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        replace_synced(&folder.join(LEFT_ASIDE), &serde_json::to_vec_pretty(self)?, 0o666)
    }

    /// Removes the record of a folder, if there is one.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(folder: &Path) -> io::Result<()> {
        match fs::remove_file(folder.join(LEFT_ASIDE)) {
            Err(error) if !is_missing(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Strikes the checkpoint of so many steps from the record of a folder: the run has saved that step again, perhaps with the same
    /// contents.
    ///
    /// # Errors
    /// The record cannot be read or written.
    pub fn strike(folder: &Path, num_steps: u64) -> io::Result<()> {
        let Some(mut left) = Self::read(folder)? else { return Ok(()) };
        match left.checkpoints.remove(&num_steps) {
            Some(_) => left.write(folder),
            None => Ok(()),
        }
    }
}

/// Returns the checkpoint of a folder that its run goes on from: the one with the most steps that it has not left aside.
///
/// # Errors
/// The folder, or the record in it, cannot be read.
pub fn newest_checkpoint(folder: &Path) -> io::Result<Option<PathBuf>> {
    let (mut found, left) = (step_folders(folder)?, LeftAside::read(folder)?);
    found.retain(|(num_steps, path)| !left.as_ref().is_some_and(|left| left.has(*num_steps, path)));
    Ok(found.pop().map(|(_, path)| path))
}

/// Returns the newest checkpoint of a folder that is a run's and no model's; `None` of every other folder, and of one that cannot
/// be read.
pub fn newest_of_run(folder: &Path) -> Option<PathBuf> {
    newest_checkpoint(&folder.join("checkpoints")).ok().flatten().filter(|_| !folder.join("config.json").exists())
}

/// Returns the lower-case hexadecimal SHA-256 of a checkpoint's manifest; empty where it cannot be read.
fn hash_of(checkpoint: &Path) -> String {
    let text = super::read(&checkpoint.join(MANIFEST), super::MAX_TEXT_BYTES);
    text.map(|text| hex(Sha256::digest(text))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::step_name;

    fn save(folder: &Path, num_steps: u64, text: &str) -> PathBuf {
        let path = folder.join(step_name(num_steps));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join(MANIFEST), text).unwrap();
        path
    }

    #[test]
    fn the_newest_checkpoint_is_the_one_of_the_last_resume() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        assert_eq!(newest_checkpoint(&folder.join("gone")).unwrap(), None);
        let [second, _, fifth] = [2, 4, 5].map(|num_steps| save(folder, num_steps, "first"));
        assert_eq!(newest_checkpoint(folder).unwrap(), Some(fifth.clone()));
        let left = LeftAside::of(folder, second.clone(), Some(2)).unwrap();
        left.write(folder).unwrap();
        assert_eq!(LeftAside::read(folder).unwrap(), Some(left.clone()));
        assert!(left.has_manifest(5, b"first") && !left.has_manifest(5, b"second") && !left.has_manifest(3, b"first"));
        assert_eq!(newest_checkpoint(folder).unwrap(), Some(second));
        let third = save(folder, 3, "second");
        assert_eq!(newest_checkpoint(folder).unwrap(), Some(third));
        // One that is saved again is of the new steps, whether it has other contents or the same.
        let fourth = save(folder, 4, "second");
        assert_eq!(newest_checkpoint(folder).unwrap(), Some(fourth));
        LeftAside::strike(folder, 5).unwrap();
        LeftAside::strike(folder, 3).unwrap();
        assert_eq!(newest_checkpoint(folder).unwrap(), Some(fifth));
        LeftAside::remove(folder).unwrap();
        LeftAside::remove(folder).unwrap();
        LeftAside::strike(folder, 5).unwrap();
        assert_eq!(LeftAside::read(folder).unwrap(), None);
    }

    #[test]
    fn a_run_that_was_resumed_from_elsewhere_leaves_all_that_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        for num_steps in [1, 7] {
            save(folder, num_steps, "first");
        }
        let mut left = LeftAside::of(folder, PathBuf::from("/elsewhere/step-00000004"), None).unwrap();
        left.add(7, b"in the store");
        left.add(8, b"in the store");
        left.write(folder).unwrap();
        assert_eq!(newest_checkpoint(folder).unwrap(), None);
        let left = LeftAside::read(folder).unwrap().unwrap();
        assert!(
            left.has_manifest(7, b"first") && [7, 8].iter().all(|steps| left.has_manifest(*steps, b"in the store"))
        );
        let mut later = LeftAside::of(&folder.join("gone"), PathBuf::new(), Some(7)).unwrap();
        later.add_earlier(left, Some(7));
        assert!(later.has_manifest(8, b"in the store") && !later.has_manifest(7, b"in the store"));
        fs::write(folder.join(LEFT_ASIDE), "{").unwrap();
        let error = newest_checkpoint(folder).unwrap_err().to_string();
        assert!(error.contains(".left-aside.json is damaged") && error.contains("without this file"), "{error}");
    }
}
