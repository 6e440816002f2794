//! Packs that others replace: kept aside until the run with the new ones takes its first step, and put back where that run is not
//! gone on with.
//!
//! ```text
//! RUN/.packs-before/packs.json    the ledger, which is moved first
//! RUN/.packs-before/packs/        the shards
//! ```
//!
//! Only packs of a run that takes steps are kept: while some are aside, those in their place are of a run that took none.

use loongforge_core::data::DataError;
use loongforge_core::files::remove_if_there;
use std::fs;
use std::path::{Path, PathBuf};

const ASIDE: &str = ".packs-before";

/// The packs of a run, and the place where former ones are kept.
pub struct FormerPacks {
    ledger: PathBuf,
    shards: PathBuf,
    aside: PathBuf,
}

impl FormerPacks {
    /// `ledger` and `shards`: those of the packs that a run uses, in its folder.
    pub fn new(ledger: PathBuf, shards: PathBuf) -> Self {
        let aside = ledger.with_file_name(ASIDE);
        Self { ledger, shards, aside }
    }

    /// Returns the ledger of the packs that are aside, whether there are any or not.
    pub fn ledger(&self) -> PathBuf {
        self.aside.join(self.ledger.file_name().unwrap_or_default())
    }

    fn shards(&self) -> PathBuf {
        self.aside.join(self.shards.file_name().unwrap_or_default())
    }

    /// Ends what a process that was killed has begun to move or to remove.
    ///
    /// # Errors
    /// A file cannot be moved or removed.
    pub fn settle(&self) -> Result<(), DataError> {
        match (self.ledger().exists(), self.ledger.exists()) {
            // Shards without a ledger: those that are aside.
            (true, false) if !self.shards().exists() && self.shards.exists() => moved(&self.shards, &self.shards()),
            (false, _) => removed(&self.aside),
            _ => Ok(()),
        }
    }

    /// Takes the packs out of the way: aside, or where some are aside already, for good.
    ///
    /// # Errors
    /// A file cannot be moved or removed.
    pub fn set_aside(&self) -> Result<(), DataError> {
        self.settle()?;
        if self.ledger().exists() || !self.ledger.exists() {
            return self.remove_current();
        }
        fs::create_dir_all(&self.aside)
            .map_err(|error| DataError::Write { path: self.aside.clone(), source: error })?;
        moved(&self.ledger, &self.ledger())?;
        if self.shards.exists() { moved(&self.shards, &self.shards()) } else { Ok(()) }
    }

    /// Puts the packs that are aside back in the place of those that are there.
    ///
    /// # Errors
    /// A file cannot be moved or removed.
    pub fn restore(&self) -> Result<(), DataError> {
        self.remove_current()?;
        if self.shards().exists() {
            moved(&self.shards(), &self.shards)?;
        }
        moved(&self.ledger(), &self.ledger)?;
        removed(&self.aside)
    }

    /// Removes what is aside: the run has taken its first step.
    ///
    /// # Errors
    /// A file cannot be removed: the next start goes on.
    pub fn remove(&self) -> Result<(), DataError> {
        removed(&self.ledger())?;
        removed(&self.aside)
    }

    fn remove_current(&self) -> Result<(), DataError> {
        removed(&self.shards)?;
        removed(&self.ledger)
    }
}

fn moved(from: &Path, to: &Path) -> Result<(), DataError> {
    fs::rename(from, to).map_err(|source| DataError::Write { path: to.to_owned(), source })
}

fn removed(path: &Path) -> Result<(), DataError> {
    remove_if_there(path).map_err(|source| DataError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a run's folder with the packs of one `name`.
    fn folder(name: &str) -> (tempfile::TempDir, FormerPacks) {
        let dir = tempfile::tempdir().unwrap();
        let former = FormerPacks::new(dir.path().join("packs.json"), dir.path().join("packs"));
        put(&former, name);
        (dir, former)
    }

    fn put(former: &FormerPacks, name: &str) {
        fs::write(&former.ledger, name).unwrap();
        fs::create_dir(&former.shards).unwrap();
        fs::write(former.shards.join("shard"), name).unwrap();
    }

    fn read(former: &FormerPacks) -> [String; 2] {
        [&former.ledger, &former.shards.join("shard")].map(|path| fs::read_to_string(path).unwrap())
    }

    #[test]
    fn the_packs_of_the_run_that_takes_steps_are_kept() {
        let (dir, former) = folder("first");
        former.set_aside().unwrap();
        put(&former, "second");
        // The second run took no step.
        former.set_aside().unwrap();
        put(&former, "third");
        former.restore().unwrap();
        assert_eq!(read(&former), ["first", "first"]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        former.set_aside().unwrap();
        put(&former, "fourth");
        former.remove().unwrap();
        assert_eq!(read(&former), ["fourth", "fourth"]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn whatever_was_under_way_is_ended() {
        // Killed between the two moves of setting aside, and of putting back.
        let (_dir, former) = folder("first");
        fs::create_dir(&former.aside).unwrap();
        moved(&former.ledger, &former.ledger()).unwrap();
        former.settle().unwrap();
        assert!(!former.shards.exists());
        put(&former, "second");
        former.settle().unwrap();
        assert_eq!(read(&former), ["second", "second"]);
        former.restore().unwrap();
        assert_eq!(read(&former), ["first", "first"]);
        // Killed as what was aside was removed.
        fs::create_dir(&former.aside).unwrap();
        fs::create_dir(former.shards()).unwrap();
        former.settle().unwrap();
        assert!(!former.aside.exists());
        assert_eq!(read(&former), ["first", "first"]);
    }
}
