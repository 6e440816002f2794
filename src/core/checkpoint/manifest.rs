//! `MANIFEST.json`: what a checkpoint is of, and what its files must be.

use super::error::CheckpointError;
use super::names::{FORMAT_VERSION, MANIFEST};
use crate::files;
use crate::schedule::SchedulerState;
use crate::text::hex;
use crate::threads::with_threads;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The placeholder of the manifest's own hash while it is computed.
const NO_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Files that are read at once.
const MAX_READERS: usize = 8;

/// Written last into a checkpoint; a folder without it is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub format_version: u64,
    /// Lower-case hexadecimal SHA-256 of the manifest's text with zeros in this place.
    #[serde(default)]
    pub manifest_sha256: String,
    /// Optimizer steps that are in it: the index of the first step of a resumed run.
    pub num_steps: u64,
    /// The state that a resumed run's scheduler begins with.
    #[serde(flatten)]
    pub scheduler: SchedulerState,
    /// Type of the weights in the model's files.
    pub precision: String,
    /// The run's configuration, composed.
    pub config: serde_json::Value,
    /// Every other file of the folder.
    pub files: BTreeMap<String, FileEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    pub bytes: u64,
    /// Lower-case hexadecimal SHA-256 of the contents.
    pub sha256: String,
}

impl Manifest {
    /// Returns the manifest of a checkpoint of so many steps with these files, of a float32 run about which nothing else is known.
    pub fn of_files(num_steps: u64, files: BTreeMap<String, FileEntry>) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            manifest_sha256: String::new(),
            num_steps,
            scheduler: SchedulerState::default(),
            precision: "float32".to_owned(),
            config: serde_json::json!({}),
            files,
        }
    }

    /// Reads the manifest of the checkpoint `dir` and checks that it is what was written, and that every file is there with
    /// its length.
    ///
    /// # Errors
    /// No checkpoint, a damaged one, or one of another format version.
    pub fn read(dir: &Path) -> Result<Self, CheckpointError> {
        let path = dir.join(MANIFEST);
        let text = match files::read(&path, files::MAX_TEXT_BYTES) {
            Ok(text) => text,
            Err(error) if files::is_missing(&error) => return Err(CheckpointError::Missing { path: dir.to_owned() }),
            Err(error) => return Err(CheckpointError::read(&path)(error)),
        };
        let manifest = Self::parse(&text, dir)?;
        manifest.check_sizes(dir)?;
        Ok(manifest)
    }

    /// Parses the text of the manifest of `dir` and checks that it is what was written and names no file outside.
    ///
    /// # Errors
    /// It is damaged, or of another format version.
    pub fn parse(text: &[u8], dir: &Path) -> Result<Self, CheckpointError> {
        let torn = |what: String| CheckpointError::torn(dir, format!("{MANIFEST}: {what}"));
        let json: serde_json::Value = serde_json::from_slice(text).map_err(|error| torn(error.to_string()))?;
        let found = json["format_version"].as_u64().ok_or_else(|| torn("missing field format_version".to_owned()))?;
        if !(1..=FORMAT_VERSION).contains(&found) {
            return Err(CheckpointError::OtherVersion { path: dir.to_owned(), found });
        }
        let hash = json["manifest_sha256"].as_str().unwrap_or_default();
        if found > 1 && (hash.len() != NO_HASH.len() || own_hash(text, hash) != hash) {
            return Err(CheckpointError::changed(dir, MANIFEST));
        }
        let manifest: Self = serde_json::from_value(json).map_err(|error| torn(error.to_string()))?;
        match manifest.files.keys().find(|name| !files::is_inner_name(name)) {
            Some(name) => Err(CheckpointError::torn(
                dir,
                format!("{MANIFEST} names the file {name:?}, which is not a valid name"),
            )),
            None => Ok(manifest),
        }
    }

    fn check_sizes(&self, dir: &Path) -> Result<(), CheckpointError> {
        for (name, entry) in &self.files {
            match std::fs::metadata(dir.join(name)) {
                Ok(found) if found.len() == entry.bytes => {}
                Ok(found) => {
                    let what = format!("{name} has {} bytes, expected {}", found.len(), entry.bytes);
                    return Err(CheckpointError::torn(dir, what));
                }
                Err(error) => return Err(CheckpointError::torn(dir, format!("{name}: {error}"))),
            }
        }
        Ok(())
    }

    /// Returns the text of the file, with its own hash.
    pub fn to_text(&self) -> String {
        let unsigned = Self { manifest_sha256: NO_HASH.to_owned(), ..self.clone() };
        let text = serde_json::to_string_pretty(&unsigned).expect("JSON values can be written") + "\n";
        text.replacen(NO_HASH, &own_hash(text.as_bytes(), NO_HASH), 1)
    }

    /// Reads every file and compares its SHA-256.
    ///
    /// # Errors
    /// A file cannot be read or is not what was written.
    pub fn verify(&self, dir: &Path) -> Result<(), CheckpointError> {
        self.verify_some(dir, |_| true)
    }

    /// Works like [`Manifest::verify`], of the files of which `is_wanted`.
    ///
    /// # Errors
    /// Fails as [`Manifest::verify`] does.
    pub fn verify_some(&self, dir: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<(), CheckpointError> {
        let files: Vec<_> = self.files.iter().filter(|(name, _)| is_wanted(name)).collect();
        let next = AtomicUsize::new(0);
        let read = || {
            while let Some((name, entry)) = files.get(next.fetch_add(1, Relaxed)) {
                let path = dir.join(name);
                if sha256(&path).map_err(CheckpointError::read(&path))? != entry.sha256 {
                    return Err(CheckpointError::changed(dir, name));
                }
            }
            Ok(())
        };
        let (cores, found) = (std::thread::available_parallelism().map_or(1, usize::from), Mutex::new(Ok(())));
        with_threads(cores.min(MAX_READERS), || {
            if let Err(error) = read() {
                *found.lock().expect("no reader panics") = Err(error);
            }
        });
        found.into_inner().expect("no reader panics")
    }
}

/// Returns the lower-case hexadecimal SHA-256 of a manifest's text with zeros in the place of `hash`, its own.
fn own_hash(text: &[u8], hash: &str) -> String {
    let text = String::from_utf8_lossy(text);
    hex(Sha256::digest(text.replacen(hash, NO_HASH, 1).as_bytes()))
}

/// Returns the lower-case hexadecimal SHA-256 of a file.
///
/// # Errors
/// The file cannot be read.
pub fn sha256(path: &Path) -> io::Result<String> {
    let (mut file, mut hash) = (std::fs::File::open(path)?, Sha256::new());
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            got => hash.update(&buffer[..got]),
        }
    }
    Ok(hex(hash.finalize()))
}

/// Returns the published checkpoint of `dir` with most steps that the run there has not left aside; `None` where there is none, or no
/// such folder.
///
/// # Errors
/// The folder cannot be read.
pub fn latest(dir: &Path) -> Result<Option<PathBuf>, CheckpointError> {
    files::newest_checkpoint(dir).map_err(CheckpointError::read(dir))
}

/// Lists published checkpoints by their number of steps.
///
/// # Errors
/// The folder cannot be read.
pub fn published(dir: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    files::step_folders(dir).map_err(CheckpointError::read(dir))
}

/// Names and paths in a folder; none where the folder is not there.
///
/// # Errors
/// The folder cannot be read.
pub fn entries(dir: &Path) -> Result<Vec<(String, PathBuf)>, CheckpointError> {
    files::entries(dir).map_err(CheckpointError::read(dir))
}
