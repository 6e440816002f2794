//! Set-up: it checks the tools and fetches libtorch. The second time it does nothing.
//!
//! `.libtorch/` holds, besides a lock and the stamp that is written last:
//! ```text
//! torch/include  torch/lib       what torch-sys compiles and links against (LIBTORCH)
//! nvidia/cu13/lib                libcudart and libcupti, where libtorch_cpu.so's own RPATH looks for them
//! download/                      whole wheels, kept only until they are unpacked
//! partial-PID/                   everything unfinished; whoever holds the lock removes it
//! ```
//! `libtorch_cuda.so` is left out on purpose: torch-sys would link it in, and the binary must start on
//! machines without CUDA.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::fetch::{Unpacked, Wheel};
use crate::libtorch::{self, Libtorch};
use crate::{stamp, tools};

/// Changes when the layout below does, so that an older `.libtorch/` is made anew.
const LAYOUT: &str = "libtorch 2.11.0, layout 1";

const WHEELS: [Wheel; 3] = [
    Wheel {
        package: "torch",
        version: libtorch::VERSION,
        sha256: "7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a",
        bytes: 530_604_548,
        members: &[
            "torch/include/*",
            "torch/lib/libtorch_cpu.so",
            "torch/lib/libc10.so",
            "torch/lib/libgomp.so.1",
            "torch-2.11.0.dist-info/licenses/*",
        ],
    },
    Wheel {
        package: "nvidia-cuda-runtime",
        version: "13.0.96",
        sha256: "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
        bytes: 2_243_632,
        members: &["nvidia/cu13/lib/libcudart.so.13"],
    },
    Wheel {
        package: "nvidia-cuda-cupti",
        version: "13.0.85",
        sha256: "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
        bytes: 10_715_597,
        members: &["nvidia/cu13/lib/libcupti.so.13"],
    },
];

/// Files whose presence and size the stamp vouches for.
const STAMPED: [&str; 7] = [
    "torch/lib/libtorch_cpu.so",
    "torch/lib/libtorch.so",
    "torch/lib/libc10.so",
    "torch/lib/libgomp.so.1",
    "torch/include/torch/headeronly/version.h",
    "nvidia/cu13/lib/libcudart.so.13",
    "nvidia/cu13/lib/libcupti.so.13",
];

/// Makes the machine ready to build, or says in one line what is missing.
pub fn setup(root: &Path, force: bool) -> Result<()> {
    tools::require_compilers()?;
    match Libtorch::from_env(root) {
        Libtorch::Given(path) => libtorch::check_given(&path),
        Libtorch::Ours => install(&root.join(".libtorch"), force),
    }
}

fn install(home: &Path, force: bool) -> Result<()> {
    if !force && stamp::holds(home, LAYOUT) {
        return Ok(());
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!(
            "set-up fetches libtorch for Linux on x86-64 only; set LIBTORCH to an unpacked libtorch {}",
            libtorch::VERSION
        );
    }
    let python = tools::require_python()?;
    fs::create_dir_all(home).with_context(|| format!("cannot write to {}", home.display()))?;
    let _lock = lock(home)?;
    // Whoever held the lock before us may have done it all.
    if !force && stamp::holds(home, LAYOUT) {
        return Ok(());
    }
    sweep(home)?;
    let downloads = home.join("download");
    if force {
        remove_tree(&downloads)?;
    }
    let scratch = home.join(format!("partial-{}", std::process::id()));
    fs::create_dir_all(&downloads)?;
    fs::create_dir_all(&scratch)?;

    let megabytes = WHEELS.iter().map(|wheel| wheel.bytes).sum::<u64>() / 1_000_000;
    eprintln!("Fetching libtorch {} once, about {megabytes} MB, into {}", libtorch::VERSION, home.display());
    let tree = scratch.join("tree");
    for wheel in &WHEELS {
        fetch_and_unpack(wheel, &python, &downloads, &scratch, &tree)?;
    }
    publish(&tree, home, &scratch)?;
    remove_tree(&downloads)?;
    remove_tree(&scratch)?;
    eprintln!("libtorch {} is ready", libtorch::VERSION);
    Ok(())
}

/// A damaged wheel (a disk that filled up, a power cut) is fetched once more.
fn fetch_and_unpack(wheel: &Wheel, python: &Path, downloads: &Path, scratch: &Path, tree: &Path) -> Result<()> {
    for _ in 0..2 {
        let file = wheel.fetch(python, downloads, scratch)?;
        eprintln!("  {} {}: unpacking", wheel.package, wheel.version);
        match wheel.unpack(python, &file, tree)? {
            Unpacked::Done => return Ok(()),
            Unpacked::Damaged => {
                eprintln!("  {} {}: the downloaded file is damaged; fetching it again", wheel.package, wheel.version);
                fs::remove_file(&file)?;
            }
        }
    }
    bail!("the wheel of {} {} arrives damaged; check the disk and run again", wheel.package, wheel.version)
}

/// Moves the finished tree into place; only then is the stamp written.
fn publish(tree: &Path, home: &Path, scratch: &Path) -> Result<()> {
    let torch = tree.join("torch");
    // torch-sys asks for `-ltorch` and `-lgomp`; it checks its version against this file.
    std::os::unix::fs::symlink("libtorch_cpu.so", torch.join("lib/libtorch.so"))?;
    std::os::unix::fs::symlink("libgomp.so.1", torch.join("lib/libgomp.so"))?;
    fs::write(torch.join("build-version"), libtorch::VERSION)?;
    fs::rename(tree.join(format!("torch-{}.dist-info/licenses", libtorch::VERSION)), torch.join("licenses"))?;
    libtorch::check_given(&torch)?;

    stamp::remove(home)?;
    for part in ["torch", "nvidia"] {
        let place = home.join(part);
        if place.exists() {
            fs::rename(&place, scratch.join(format!("old-{part}")))?;
        }
        fs::rename(tree.join(part), place)?;
    }
    stamp::write(home, LAYOUT, &STAMPED).context("the unpacked libtorch is not complete")
}

/// Allows one set-up at a time; the operating system releases the lock of a process that dies.
fn lock(home: &Path) -> Result<File> {
    let file = File::create(home.join("lock"))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            eprintln!("another set-up is running in this clone; waiting for it");
            file.lock()?;
        }
        Err(TryLockError::Error(error)) => return Err(error).context("cannot lock .libtorch/lock"),
    }
    Ok(file)
}

/// Removes what interrupted set-ups left. A pip that outlived its set-up loses its folder and gives up.
fn sweep(home: &Path) -> Result<()> {
    let entries = fs::read_dir(home)?.filter_map(Result::ok);
    let partial = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("partial-"));
    for folder in partial.map(|entry| entry.path()).collect::<Vec<PathBuf>>() {
        remove_tree(&folder)?;
    }
    Ok(())
}

fn remove_tree(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stamp_covers_what_is_unpacked() {
        let unpacked = |file: &str| {
            let mut members = WHEELS.iter().flat_map(|wheel| wheel.members);
            members.any(|member| match member.strip_suffix('*') {
                Some(prefix) => file.starts_with(prefix),
                None => *member == file,
            })
        };
        let links = ["torch/lib/libtorch.so"];
        for file in STAMPED.iter().filter(|file| !links.contains(file)) {
            assert!(unpacked(file), "{file}");
        }
    }

    #[test]
    fn sweeping_removes_only_what_is_unfinished() {
        let home = std::env::temp_dir().join(format!("xtask-sweep-{}", std::process::id()));
        for folder in ["partial-1/torch-tmp", "partial-22", "download", "torch"] {
            fs::create_dir_all(home.join(folder)).unwrap();
        }
        sweep(&home).unwrap();
        let mut left: Vec<_> = fs::read_dir(&home).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["download", "torch"]);
        fs::remove_dir_all(home).unwrap();
    }
}
