//! Describes how processes that download the same file of the hub wait for each other.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

/// Returns the folder of the locks of a repository, which is `folder` in the cache: where Python's tools have theirs.
pub(super) fn locks_of(cache: &Path, folder: &str) -> PathBuf {
    cache.join(".locks").join(folder)
}

/// Waits until no other process of ours downloads the file with the tag `etag` of a repository, which is `folder` in the cache;
/// `what` is the file to a person. The lock is held until what is returned is dropped. Where the cache has no locks, nothing is
/// waited for.
pub(super) fn wait_for_others(cache: &Path, folder: &str, etag: &str, what: &str) -> Option<File> {
    let locks = locks_of(cache, folder);
    fs::create_dir_all(&locks).ok()?;
    let lock = File::create(locks.join(format!("{etag}.loongforge"))).ok()?;
    if let Err(TryLockError::WouldBlock) = lock.try_lock() {
        eprintln!("waiting for another process, which downloads {what}");
        lock.lock().ok()?;
    }
    Some(lock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::thread;
    use std::time::Duration;

    #[test]
    fn a_file_that_another_process_downloads_is_waited_for() {
        let cache = tempfile::tempdir().unwrap();
        let wait = |etag: &str| wait_for_others(cache.path(), "models--org--name", etag, "config.json of org/name");
        let first = wait("tag").unwrap();
        assert!(wait("other").is_some());
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            let second = scope.spawn(|| wait("tag").map(|_| is_done.load(SeqCst)));
            thread::sleep(Duration::from_millis(50));
            is_done.store(true, SeqCst);
            drop(first);
            assert_eq!(second.join().unwrap(), Some(true));
        });
    }
}
