//! Memory of this machine in which a run keeps its newest state, for when one of its processes dies. It belongs to the
//! process that started the others: it outlives them, and is gone with it.
//!
//! What lies there are checkpoints as on the disk, hashes included. A run of which the starting process was killed leaves its
//! memory behind; the next run on the machine that keeps any takes it away.

use anyhow::Context;
use loongforge_core::checkpoint::{CheckpointError, Manifest, latest};
use std::ffi::OsStr;
use std::fs::{File, TryLockError, remove_dir_all};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Files here are memory.
const MEMORY: &str = "/dev/shm";
const PREFIX: &str = "loongforge-snapshots-";
/// Held as long as the run lasts.
const LOCK: &str = "lock";
/// Folders that other runs may take away before they are locked.
const MAX_TRIES: usize = 16;

pub struct Snapshots {
    folder: TempDir,
    _lock: File,
}

impl Snapshots {
    /// # Errors
    /// The machine has no such memory.
    pub fn new() -> anyhow::Result<Self> {
        Self::within(Path::new(MEMORY))
    }

    fn within(memory: &Path) -> anyhow::Result<Self> {
        sweep(memory);
        let named = || format!("cannot keep checkpoints in {}", memory.display());
        for _ in 0..MAX_TRIES {
            let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(memory).with_context(named)?;
            let path = folder.path().join(LOCK);
            let lock = File::create(&path).with_context(named)?;
            lock.lock().with_context(named)?;
            // A run that begins at the same time may have found the lock free, and taken the folder for a dead run's.
            if path.exists() {
                return Ok(Self { folder, _lock: lock });
            }
        }
        anyhow::bail!("{}: other runs that begin now take its folders away; start this one again", named())
    }

    /// Returns the folder in memory that holds the checkpoints.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the newest one, if it is whole.
    ///
    /// # Errors
    /// It is torn.
    pub fn newest(&self) -> Result<Option<(PathBuf, Manifest)>, CheckpointError> {
        let Some(path) = latest(self.path())? else { return Ok(None) };
        let manifest = Manifest::read(&path)?;
        manifest.verify(&path)?;
        Ok(Some((path, manifest)))
    }
}

/// Returns whether a checkpoint lies in the memory of a run.
pub fn is_in_memory(checkpoint: &Path) -> bool {
    let folder = checkpoint.parent().and_then(Path::file_name).and_then(OsStr::to_str);
    folder.is_some_and(|name| name.starts_with(PREFIX))
}

/// Removes the snapshots of runs of this user that have ended. Files that cannot be removed belong to somebody else.
fn sweep(memory: &Path) {
    let Ok(entries) = std::fs::read_dir(memory) else { return };
    let ours = |path: &PathBuf| {
        let owner = std::fs::symlink_metadata(path).map(|found| found.uid());
        owner.is_ok_and(|owner| owner == rustix::process::geteuid().as_raw())
    };
    let named = |name: &str| name.starts_with(PREFIX);
    let entries = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(named));
    for path in entries.map(|entry| entry.path()).filter(ours) {
        let Ok(lock) = File::open(path.join(LOCK)) else { continue };
        if !matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
            let _ = remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_dead_runs_left_goes_and_that_of_living_ones_stays() {
        let memory = tempfile::tempdir().unwrap();
        let living = Snapshots::within(memory.path()).unwrap();
        let dead = memory.path().join(format!("{PREFIX}dead"));
        std::fs::create_dir(&dead).unwrap();
        File::create(dead.join(LOCK)).unwrap();
        let other = Snapshots::within(memory.path()).unwrap();
        assert!(!dead.exists() && living.path().exists() && other.path().exists());
        assert!(other.newest().unwrap().is_none());
        // One that is torn is an error, which a caller takes for none.
        let torn = other.path().join("step-00000003");
        std::fs::create_dir(&torn).unwrap();
        std::fs::write(torn.join("MANIFEST.json"), "{").unwrap();
        assert!(other.newest().is_err());
        let path = living.path().to_owned();
        drop(living);
        assert!(!path.exists());
    }

    #[test]
    fn runs_that_begin_at_the_same_time_leave_each_others_memory_alone() {
        let memory = tempfile::tempdir().unwrap();
        let begin = || {
            let all: Vec<Snapshots> = (0..64).map(|_| Snapshots::within(memory.path()).unwrap()).collect();
            assert!(all.iter().all(|snapshots| snapshots.path().join(LOCK).exists()));
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(begin);
            }
        });
    }
}
