//! Folders for the sockets of a run, in the system's temporary folder. A process that is killed leaves its folder there; the next process
//! of this user that makes one removes it.

use loongforge_core::config::Address;
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::fs::{File, read_dir, read_to_string, remove_dir_all, symlink_metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tempfile::TempDir;

const PREFIX: &str = "loongforge-";
/// Letters and digits behind it, which are drawn.
const NUM_DRAWN: usize = 6;
/// Bytes of the names of a folder and of what is in it.
const NAMES: usize = "/loongforge-abcdef/scheduler.sock".len();
/// The file in a folder on which each process that needs the folder has a shared lock. It has the id of the machine's boot: locks of
/// another machine that has the same disk may not be seen.
const LOCK: &str = "in-use";
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// A temporary folder with short enough paths for sockets, open to this user only, which goes when this is dropped.
pub(super) struct SocketFolder {
    folder: TempDir,
    _held: File,
}

impl SocketFolder {
    /// Creates a folder in the system's temporary folder, or, if that has a long path, as on some clusters, in `/tmp`.
    pub fn new() -> io::Result<Self> {
        Self::within(&std::env::temp_dir())
    }

    fn within(folder: &Path) -> io::Result<Self> {
        let fits = folder.as_os_str().len() + NAMES <= Address::MAX_PATH;
        let folder = if fits { folder } else { Path::new("/tmp") };
        let boot = read_to_string(BOOT).unwrap_or_default();
        sweep(folder, &boot);
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{error}; TMPDIR names another folder for it"));
        let folder = tempfile::Builder::new().prefix(PREFIX).rand_bytes(NUM_DRAWN).tempdir_in(folder).map_err(named)?;
        let mut held = File::create(folder.path().join(LOCK)).map_err(named)?;
        // A folder is left alone as long as its file is empty, also for ever on a disk without locks.
        if held.lock_shared().is_ok() {
            held.write_all(boot.as_bytes()).map_err(named)?;
        }
        Ok(Self { folder, _held: held })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Keeps the folder of another process until the file that is returned is dropped; `None`: there is no such folder here.
pub(super) fn hold(folder: &Path) -> Option<File> {
    let held = File::open(folder.join(LOCK)).ok()?;
    held.lock_shared().is_ok().then_some(held)
}

/// Removes the folders whose processes have all ended.
fn sweep(folder: &Path, boot: &str) {
    let Ok(entries) = read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| is_ours(&entry.file_name())) {
        let path = entry.path();
        if let Some(lock) = of_nobody(&path, boot) {
            let _ = remove_dir_all(&path);
            drop(lock);
        }
    }
}

fn is_ours(name: &OsStr) -> bool {
    let drawn = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
    drawn.is_some_and(|drawn| drawn.len() == NUM_DRAWN && drawn.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// Returns the lock of a folder that this user has made since the machine's start, and that no process needs any more.
fn of_nobody(path: &Path, boot: &str) -> Option<File> {
    let found = symlink_metadata(path).ok()?;
    if !found.is_dir() || found.uid() != geteuid().as_raw() {
        return None;
    }
    let lock = File::open(path.join(LOCK)).ok()?;
    lock.try_lock().ok()?;
    let mut written = String::new();
    (&lock).take(boot.len() as u64 + 1).read_to_string(&mut written).ok()?;
    (!boot.is_empty() && written == boot).then_some(lock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    #[test]
    fn sockets_have_short_paths_wherever_temporary_files_are() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a".repeat(100));
        std::fs::create_dir(&deep).unwrap();
        for (folder, is_in_it) in [(dir.path(), true), (&deep, false)] {
            let made = SocketFolder::within(folder).unwrap();
            assert_eq!(made.path().starts_with(folder), is_in_it);
            UnixListener::bind(made.path().join("scheduler.sock")).unwrap();
        }
        let error = SocketFolder::within(&dir.path().join("gone")).err().unwrap();
        assert!(error.kind() == io::ErrorKind::NotFound && error.to_string().contains("TMPDIR"), "{error}");
    }

    #[test]
    fn folders_of_killed_processes_go_and_no_others_do() {
        let dir = tempfile::tempdir().unwrap();
        let make = || SocketFolder::within(dir.path()).unwrap();
        let living = make();
        // Killed processes remove nothing, and the system frees their locks.
        let killed = [make(), make(), make(), make()].map(|SocketFolder { folder, .. }| folder.keep());
        let [left, held, elsewhere, unmarked] = &killed;
        let holder = hold(held).expect("it has a lock");
        std::fs::write(elsewhere.join(LOCK), "another boot\n").unwrap();
        std::fs::remove_file(unmarked.join(LOCK)).unwrap();
        let (other, link) = (dir.path().join("loongforge-snapshots-abcdef"), dir.path().join("loongforge-abcdef"));
        std::fs::create_dir(&other).unwrap();
        std::fs::copy(left.join(LOCK), other.join(LOCK)).unwrap();
        symlink(&other, &link).unwrap();
        let newest = make();
        assert!(!left.exists());
        for path in [living.path(), held, elsewhere, unmarked, &other, &link, newest.path()] {
            assert!(path.exists(), "{}", path.display());
        }
        drop(holder);
        let path = living.path().to_owned();
        drop(living);
        assert!(!path.exists() && make().path().exists() && !held.exists());
        assert!(hold(held).is_none());
    }
}
