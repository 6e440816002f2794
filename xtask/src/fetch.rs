//! One wheel, by package name through the user's own pip: fetched, checked against a known hash, unpacked in part.
//!
//! No address is written anywhere: where packages come from is pip's configuration, which may be a mirror.
//! The hash makes any source equally good, and keeps a "+cpu" build of an extra index from being taken instead.

use std::fs::{self, File};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// A wheel and the members of it that we need.
pub struct Wheel {
    pub package: &'static str,
    pub version: &'static str,
    /// SHA-256 of the file, in hex.
    pub sha256: &'static str,
    /// Size of the file in bytes, for the progress line.
    pub bytes: u64,
    /// Paths inside the wheel; one that ends in `*` is a prefix.
    pub members: &'static [&'static str],
}

/// Says what became of an unpacking.
#[derive(Debug, PartialEq, Eq)]
pub enum Unpacked {
    Done,
    /// The file is damaged: fetch it again.
    Damaged,
}

impl Wheel {
    /// Puts the wheel into `downloads`, by way of `scratch`, which holds everything unfinished.
    /// A wheel in `downloads` is whole: it is renamed there after pip has checked it.
    pub fn fetch(&self, python: &Path, downloads: &Path, scratch: &Path) -> Result<PathBuf> {
        let wheel = downloads.join(format!("{}-{}.whl", self.package, self.version));
        if wheel.exists() {
            eprintln!("  {} {}: already downloaded", self.package, self.version);
            return Ok(wheel);
        }
        let temporary = scratch.join(format!("{}-tmp", self.package));
        let arrived = scratch.join(self.package);
        let log = scratch.join(format!("{}.log", self.package));
        let requirements = scratch.join(format!("{}.txt", self.package));
        fs::create_dir_all(&temporary)?;
        fs::write(&requirements, format!("{}=={} --hash=sha256:{}\n", self.package, self.version, self.sha256))?;
        let mut child = Command::new(python)
            .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:"])
            .args(["--python-version", "3.11", "--implementation", "cp"])
            .args(platforms())
            .args(["--quiet", "--progress-bar", "off", "--no-input", "--disable-pip-version-check"])
            .args(["--require-hashes", "--requirement"])
            .arg(&requirements)
            .arg("--dest")
            .arg(&arrived)
            // pip downloads here first: half a file is never taken for a whole one, and its size is our progress.
            .env("TMPDIR", &temporary)
            .env("PIP_REQUIRE_VIRTUALENV", "0")
            .stdin(Stdio::null())
            .stdout(File::create(&log)?)
            .stderr(File::options().append(true).open(&log)?)
            .spawn()
            .with_context(|| format!("cannot start {}", python.display()))?;
        let mut progress = Progress::new(self);
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            progress.show(folder_size(&temporary));
            sleep(Duration::from_millis(100));
        };
        progress.clear();
        if !status.success() {
            let said = complaint(&fs::read_to_string(&log).unwrap_or_default());
            bail!(
                "could not download {} {}: {said}; check the network and pip's settings (`{} -m pip config list`) \
                 and run the same command again, or set LIBTORCH to an unpacked libtorch",
                self.package,
                self.version,
                python.display()
            );
        }
        let found = fs::read_dir(&arrived)?.filter_map(Result::ok).map(|entry| entry.path());
        let found = found.into_iter().find(|path| path.extension().is_some_and(|ext| ext == "whl"));
        let found = found.with_context(|| format!("pip left no wheel of {}", self.package))?;
        fs::rename(found, &wheel)?;
        eprintln!(
            "  {} {}: {} MB in {:.0} s",
            self.package,
            self.version,
            self.bytes / 1_000_000,
            progress.started.elapsed().as_secs_f64()
        );
        Ok(wheel)
    }

    /// Copies the members we need from `wheel` into `folder`.
    pub fn unpack(&self, python: &Path, wheel: &Path, folder: &Path) -> Result<Unpacked> {
        let output = Command::new(python)
            .args(["-I", "-c", include_str!("unpack.py")])
            .args([wheel, folder])
            .arg(self.version)
            .args(self.members)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot start {}", python.display()))?;
        match output.status.code() {
            Some(0) => Ok(Unpacked::Done),
            Some(3) => Ok(Unpacked::Damaged),
            _ => {
                let said = String::from_utf8_lossy(&output.stderr);
                let said = said.lines().last().unwrap_or("no reason given");
                bail!("cannot unpack {} {}: {said}", self.package, self.version)
            }
        }
    }
}

/// pip takes a wheel only for a platform that is named: the newest we run on, and its older siblings.
fn platforms() -> Vec<String> {
    let mut names: Vec<String> = (17..=28).rev().map(|minor| format!("manylinux_2_{minor}_x86_64")).collect();
    names.push("manylinux2014_x86_64".into());
    names.into_iter().flat_map(|name| ["--platform".to_string(), name]).collect()
}

/// Returns the line of pip's output that says why it failed.
fn complaint(log: &str) -> String {
    let unreachable = log.lines().any(|line| line.contains("connection broken by"));
    let error = log.lines().rev().find_map(|line| line.trim().strip_prefix("ERROR: "));
    let error = error.or_else(|| log.lines().rev().map(str::trim).find(|line| !line.is_empty()));
    match (error, unreachable) {
        (Some(error), true) => format!("the package index does not answer (pip says: {error})"),
        (Some(error), false) => format!("pip says: {error}"),
        (None, _) => "pip was stopped".into(),
    }
}

fn folder_size(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => folder_size(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.filter_map(Result::ok).map(size).sum()
}

/// Bytes so far: one line rewritten on a terminal, a new line every ten seconds elsewhere.
struct Progress<'a> {
    wheel: &'a Wheel,
    started: Instant,
    shown: Option<Instant>,
    terminal: bool,
}

impl<'a> Progress<'a> {
    fn new(wheel: &'a Wheel) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { wheel, started: Instant::now(), shown: None, terminal }
    }

    fn show(&mut self, bytes: u64) {
        let pause = Duration::from_millis(if self.terminal { 200 } else { 10_000 });
        if self.shown.unwrap_or(self.started).elapsed() < pause {
            return;
        }
        self.shown = Some(Instant::now());
        let line = progress_line(self.wheel, bytes, self.started.elapsed());
        if self.terminal {
            eprint!("\r\x1b[K{line}");
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
    }

    fn clear(&self) {
        if self.terminal && self.shown.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}

fn progress_line(wheel: &Wheel, bytes: u64, elapsed: Duration) -> String {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let (done, total) = (megabytes(bytes.min(wheel.bytes)), megabytes(wheel.bytes));
    let rate = done / elapsed.as_secs_f64().max(1e-3);
    format!("  {} {}: {done:.0} of {total:.0} MB, {rate:.1} MB/s", wheel.package, wheel.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHEEL: Wheel = Wheel { package: "torch", version: "2.11.0", sha256: "", bytes: 530_600_000, members: &[] };

    #[test]
    fn the_line_that_matters_is_taken_from_pips_output() {
        let refused = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'\n\
                       ERROR: Could not find a version that satisfies the requirement torch\n\
                       ERROR: No matching distribution found for torch==2.11.0\n";
        let said = complaint(refused);
        assert!(said.starts_with("the package index does not answer"), "{said}");
        assert!(said.contains("No matching distribution found"), "{said}");
        assert_eq!(complaint("Traceback\nMemoryError\n\n"), "pip says: MemoryError");
        assert_eq!(complaint(""), "pip was stopped");
    }

    #[test]
    fn progress_never_passes_the_whole() {
        let line = progress_line(&WHEEL, 200_000_000, Duration::from_secs(10));
        assert_eq!(line, "  torch 2.11.0: 200 of 531 MB, 20.0 MB/s");
        assert!(progress_line(&WHEEL, u64::MAX, Duration::from_secs(1)).contains("531 of 531 MB"));
    }

    #[test]
    fn siblings_go_down_to_manylinux2014() {
        let platforms = platforms();
        assert_eq!(platforms[1], "manylinux_2_28_x86_64");
        assert_eq!(platforms.last().unwrap(), "manylinux2014_x86_64");
    }
}
