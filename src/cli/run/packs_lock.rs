//! Locks of processes that make packs in a run's folder beside each other, each its share. They keep out of the way of a run, which
//! holds the folder's lock, and a run out of theirs.
//!
//! ```text
//! RUN/run.lock                of a run, and of who makes all packs
//! RUN/packs.0-of-4.KEY.lock   of a share of the packs with this key, as long as it is made
//! RUN/packs.lock              of a share, while it sets others' packs aside and begins
//! ```
//!
//! A share takes its own lock and then looks at the run's; a run takes its own and then looks at the shares'. Of two that come at
//! once, one or both are refused, and never do both go on.

use super::lock::{LOCK, LockError, RunLock, expect_free, failed};
use loongforge_core::data::tools::Share;
use loongforge_core::observe::Console;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const KEY: &str = "run.dir";
const BEGIN: &str = "packs.lock";
/// The time that other processes may take to begin, at most, and the time between two looks at them.
const PATIENCE: Duration = Duration::from_secs(120);
const GLANCE: Duration = Duration::from_millis(20);

/// The lock of a share, until this is dropped.
pub struct ShareLock<'a> {
    run: &'a Path,
    /// End of the names of locks of shares of the same packs.
    end: String,
    console: &'a Console,
    _lock: RunLock,
}

impl<'a> ShareLock<'a> {
    /// `key`: of the packs.
    ///
    /// # Errors
    /// A run is under way in the folder, or somebody makes the same share; or the folder cannot be written.
    pub fn take(run: &'a Path, share: Share, key: &str, console: &'a Console) -> anyhow::Result<Self> {
        let end = format!(".{key}.lock");
        let own = run.join(format!("packs.{}-of-{}{end}", share.index, share.num));
        let lock = RunLock::take_file(KEY, own, console).map_err(refused)?;
        expect_free(KEY, &run.join(LOCK), console).map_err(|error| failed(KEY, error))?;
        Ok(Self { run, end, console, _lock: lock })
    }

    /// Calls `begin` while no other share begins.
    ///
    /// # Errors
    /// Another process does not come to an end of it; or it fails as `begin` does.
    pub fn alone<T>(&self, begin: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let begun = Instant::now();
        let _lock = loop {
            match RunLock::take_file(KEY, self.run.join(BEGIN), self.console) {
                Err(LockError::Held { .. }) if begun.elapsed() < PATIENCE => std::thread::sleep(GLANCE),
                taken => break taken.map_err(refused)?,
            }
        };
        begin()
    }

    /// Refuses to go on where a share of other packs is being made.
    ///
    /// # Errors
    /// A share of other packs is being made.
    pub fn expect_no_other(&self) -> anyhow::Result<()> {
        expect_no_shares(self.run, Some(&self.end), self.console)
    }
}

/// Refuses a folder in which shares of packs are being made, but for those whose locks end with `but`.
///
/// # Errors
/// A share of packs is being made.
pub fn expect_no_shares(run: &Path, but: Option<&str>, console: &Console) -> anyhow::Result<()> {
    let is_share = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_lock = name.starts_with("packs.") && name.contains("-of-") && name.ends_with(".lock");
        is_lock && !but.is_some_and(|end| name.ends_with(end))
    };
    let entries = fs::read_dir(run).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()).filter(is_share) {
        // That of a process that has died goes.
        let taken = RunLock::take_file(KEY, path, console).map_err(refused)?;
        drop(taken);
    }
    Ok(())
}

/// Makes an error of the command of a lock that another process holds while it makes packs.
fn refused(error: LockError) -> anyhow::Error {
    let error = match error {
        LockError::Held { path, holder } => LockError::Packing { path, holder },
        other => other,
    };
    failed(KEY, error)
}
