//! Disk operations of publishing, one per method, so that tests can simulate a crash at each.

use loongforge_core::engine::fault;
use loongforge_core::message::ActorId;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

pub(super) trait Disk {
    /// Creates or replaces a file. It is durable only after [`Disk::sync`].
    fn write(&self, path: &Path, contents: &[u8]) -> io::Result<()>;
    /// Syncs a file or a folder's entries to disk.
    fn sync(&self, path: &Path) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Exchanges two folders atomically.
    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()>;
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
}

pub(super) struct RealDisk;

impl Disk for RealDisk {
    fn write(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        let half = contents.len() / 2;
        let mut file = File::create(path)?;
        // A torn file is what a crash here leaves.
        file.write_all(&contents[..half])?;
        fault::io(ActorId::SCHEDULER, "publish_write")?;
        file.write_all(&contents[half..])
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        fault::io(ActorId::SCHEDULER, "publish_sync")?;
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fault::io(ActorId::SCHEDULER, "publish_rename")?;
        fs::rename(from, to)
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        match renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE) {
            // Network file systems such as NFS and Lustre have only plain renames.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => swap(one, other),
            exchanged => Ok(exchanged?),
        }
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }
}

/// The end of a checkpoint's name, which begins with a point, while it is exchanged by plain renames.
pub(super) const ASIDE: &str = ".aside.tmp";

/// Exchanges a draft `one`, `.step-N.tmp`, and a checkpoint `other` by plain renames: for a moment `other` is not there.
pub(super) fn swap(one: &Path, other: &Path) -> io::Result<()> {
    let aside = one.with_extension(&ASIDE[1..]);
    fs::rename(other, &aside)?;
    fs::rename(one, other).inspect_err(|_| drop(fs::rename(&aside, other)))?;
    fs::rename(&aside, one)
}
