//! Publishes a folder that engines wrote as a visible checkpoint.
//!
//! Order: the files that no engine writes; the manifest; sync of every file; the folder's entries; the rename; the parent's
//! entries. Only then are older checkpoints removed, each renamed first so that a partial one is never visible.

use super::adapters;
use super::disk::{ASIDE, Disk, RealDisk};
use super::pipeline::extras;
use loongforge_core::checkpoint::{
    CheckpointError, FileEntry, MANIFEST, Manifest, carried, entries, published, sha256,
};
use loongforge_core::data::policy::is_processor_file;
use loongforge_core::data::{Fingerprint, NAMED_TEMPLATES, TEXT_TOKENIZER, is_diffusion};
use loongforge_core::files::{self, LeftAside};
use loongforge_core::message::{SaveTo, SavedFile};
use loongforge_core::schedule::CheckpointDraft;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The parts of a checkpoint that do not come from engines, the same for the whole run.
#[derive(Clone, Debug)]
pub struct Publication {
    /// Folder of the model that the run started from (`model.load`), with tokenizer and processor files.
    pub model_dir: PathBuf,
    /// Folder of the preprocessor configs, if different.
    pub media_dir: Option<PathBuf>,
    /// File of the text tower's tokenizer, if it has its own.
    pub text_tokenizer: Option<PathBuf>,
    /// The model's `config.json`, with overrides.
    pub model_config: Value,
    /// The chat template of the run, replacing the one in `model_dir`; `None`: that one.
    pub chat_template: Option<String>,
    /// Names and contents of a robot policy's processor files, with the statistics used in training, replacing those in
    /// `model_dir`; empty: those.
    pub processor: Vec<(String, Vec<u8>)>,
    /// The composed config of the run.
    pub config: Value,
    /// Type of the weights, as in `train.precision`.
    pub precision: String,
    /// The files that samples come from; `None` if they could not be examined.
    pub data: Option<Fingerprint>,
    /// Number of checkpoints to keep, including the new one; at least 1.
    pub keep_last: usize,
}

/// Creates an empty folder for a draft, removing what a crashed run left there.
///
/// # Errors
/// Fails if the folder cannot be created.
pub fn prepare(dir: &Path) -> Result<(), CheckpointError> {
    files::if_there(fs::remove_dir_all(dir)).map_err(CheckpointError::write(dir))?;
    fs::create_dir_all(dir).map_err(CheckpointError::write(dir))
}

/// Removes the folder of a failed draft. What cannot be removed is cleaned up when the next run starts.
pub fn discard(dir: &Path) {
    if dir.exists() {
        remove(&RealDisk, dir);
    }
}

/// Gives checkpoints their names back that a crash left aside while they were being replaced, where a file system exchanges folders by
/// plain renames. Call it when a run starts, before anything is looked for.
///
/// # Errors
/// Fails if the folder cannot be read or one of them cannot be renamed.
pub fn restore(dir: &Path) -> Result<(), CheckpointError> {
    for (name, path) in entries(dir)? {
        let name = name.strip_prefix('.').and_then(|name| name.strip_suffix(ASIDE));
        let Some(there) = name.filter(|name| files::steps_of(name).is_some()).map(|name| dir.join(name)) else {
            continue;
        };
        if !there.exists() {
            fs::rename(&path, &there).map_err(CheckpointError::write(&there))?;
        }
    }
    Ok(())
}

/// Removes what crashed runs left in the folder of checkpoints. Call it when a run starts, before any draft.
///
/// # Errors
/// Fails if something cannot be removed.
pub fn clean(dir: &Path) -> Result<(), CheckpointError> {
    restore(dir)?;
    for (name, path) in entries(dir)? {
        if name.starts_with(".step-") && name.ends_with(".tmp") {
            fs::remove_dir_all(&path).map_err(CheckpointError::write(&path))?;
        }
    }
    Ok(())
}

/// Publishes a draft as `step-N` next to it; returns its path. Older checkpoints that cannot be removed cause a warning.
///
/// # Errors
/// Fails if a file cannot be written, or an engine's file is not as the engine reported. Nothing is visible then.
pub fn publish(draft: &CheckpointDraft, with: &Publication) -> Result<PathBuf, CheckpointError> {
    publish_on(&RealDisk, draft, with)
}

/// Publishes on this disk, which a test can make fail.
///
/// # Errors
/// Fails like `publish`.
pub(super) fn publish_on(
    disk: &dyn Disk,
    draft: &CheckpointDraft,
    with: &Publication,
) -> Result<PathBuf, CheckpointError> {
    let parent = draft.dir.parent().unwrap_or(Path::new("."));
    let num_steps = draft.step.0 + 1;
    let files = complete(disk, draft, with)?;
    // Nobody would read it.
    if let Some(name) = files.keys().find(|name| !files::is_inner_name(name)) {
        return Err(CheckpointError::torn(&draft.dir, format!("{name:?} is not a valid name of a file")));
    }
    let manifest = Manifest {
        scheduler: draft.state.clone(),
        precision: with.precision.clone(),
        config: with.config.clone(),
        ..Manifest::of_files(num_steps, files)
    };
    let sync = |path: &Path| disk.sync(path).map_err(CheckpointError::write(path));
    let path = draft.dir.join(MANIFEST);
    disk.write(&path, manifest.to_text().as_bytes()).map_err(CheckpointError::write(&path))?;
    for name in manifest.files.keys().map(String::as_str).chain([MANIFEST]) {
        sync(&draft.dir.join(name))?;
    }
    let folders: BTreeSet<&str> = manifest.files.keys().filter_map(|name| Some(name.split_once('/')?.0)).collect();
    folders.into_iter().try_for_each(|folder| sync(&draft.dir.join(folder)))?;
    sync(&draft.dir)?;
    let to = parent.join(files::step_name(num_steps));
    let replaces = to.exists();
    let moved = if replaces { disk.exchange(&draft.dir, &to) } else { disk.rename(&draft.dir, &to) };
    moved.map_err(CheckpointError::write(&to))?;
    sync(parent)?;
    if replaces {
        // A run that was resumed from an earlier step has come by again.
        remove(disk, &draft.dir);
    }
    // It may have been left aside in the store alone.
    if let Err(error) = LeftAside::strike(parent, num_steps) {
        tracing::warn!("{}: {error}; --resume without a path may begin at an earlier step", parent.display());
    }
    // Of those in memory the newest alone is of use.
    let best = draft.state.evaluated.best.filter(|_| draft.to == SaveTo::Disk).map(|best| best.step.0);
    prune(disk, parent, with.keep_last, num_steps, best)?;
    Ok(to)
}

/// The link in a folder of checkpoints that points to the best one.
pub const BEST: &str = "best";

/// Points the link [`BEST`] to the checkpoint after this many steps, if it is published; returns whether it is.
///
/// # Errors
/// Fails if the link cannot be created, or its name is taken.
pub fn mark_best(dir: &Path, num_steps: u64) -> Result<bool, CheckpointError> {
    let name = files::step_name(num_steps);
    if !dir.join(&name).is_dir() {
        return Ok(false);
    }
    let link = dir.join(BEST);
    if fs::read_link(&link).is_ok_and(|named| named.as_os_str() == name.as_str()) {
        return Ok(true);
    }
    if link.symlink_metadata().is_ok_and(|found| !found.is_symlink()) {
        return Err(CheckpointError::write(&link)(io::Error::other(
            "it exists and is not a symbolic link, so it is not replaced",
        )));
    }
    let next = dir.join(".best.tmp");
    let _ = fs::remove_file(&next);
    std::os::unix::fs::symlink(&name, &next)
        .and_then(|()| fs::rename(&next, &link))
        .map_err(CheckpointError::write(&link))?;
    Ok(true)
}

/// Writes the files that engines do not write; returns the entries of all files.
fn complete(
    disk: &dyn Disk,
    draft: &CheckpointDraft,
    with: &Publication,
) -> Result<BTreeMap<String, FileEntry>, CheckpointError> {
    let mut files = BTreeMap::new();
    for SavedFile { name, bytes, sha256, .. } in &draft.files {
        let path = draft.dir.join(name);
        let found = match fs::metadata(&path) {
            Err(error) if files::is_missing(&error) => {
                let what = format!(
                    "{name} is not there, although its engine has written it: all hosts of the run must share the folder of \
                     checkpoints"
                );
                return Err(CheckpointError::torn(&draft.dir, what));
            }
            found => found.map_err(CheckpointError::read(&path))?.len(),
        };
        if found != *bytes {
            let what = format!("{name} has {found} bytes, its engine wrote {bytes}");
            return Err(CheckpointError::torn(&draft.dir, what));
        }
        files.insert(name.clone(), FileEntry { bytes: *bytes, sha256: sha256.clone() });
    }
    adapters::join(&draft.dir, &mut files)?;
    let mut written = write_own(disk, draft, with)?;
    for (from, name) in of_model(with)? {
        let to = draft.dir.join(&name);
        let contents = files::read(&from, files::MAX_TEXT_BYTES).map_err(CheckpointError::read(&from))?;
        to.parent().map_or(Ok(()), fs::create_dir_all).map_err(CheckpointError::write(&to))?;
        disk.write(&to, &contents).map_err(CheckpointError::write(&to))?;
        written.push(name);
    }
    for name in written {
        let path = draft.dir.join(&name);
        let entry = || Ok(FileEntry { bytes: fs::metadata(&path)?.len(), sha256: sha256(&path)? });
        files.insert(name, entry().map_err(CheckpointError::read(&path))?);
    }
    Ok(files)
}

/// Writes the files whose contents come from the run; returns their names.
fn write_own(disk: &dyn Disk, draft: &CheckpointDraft, with: &Publication) -> Result<Vec<String>, CheckpointError> {
    let mut written = vec!["config.json".to_owned()];
    write_json(disk, &draft.dir.join("config.json"), &with.model_config)?;
    if let Some(data) = &with.data {
        written.push(DATA.to_owned());
        write_json(disk, &draft.dir.join(DATA), data)?;
    }
    for (name, index) in weight_indices(draft)? {
        write_json(disk, &draft.dir.join(&name), &index)?;
        written.push(name);
    }
    if is_diffusion(&with.model_config) {
        for extra in extras(&with.model_config, &draft.files, &with.model_dir)? {
            let to = draft.dir.join(extra.name());
            to.parent().map_or(Ok(()), fs::create_dir_all).map_err(CheckpointError::write(&to))?;
            disk.write(&to, &extra.contents()?).map_err(CheckpointError::write(&to))?;
            written.push(extra.name().to_owned());
        }
    }
    for (name, contents) in &with.processor {
        let path = draft.dir.join(name);
        path.parent().map_or(Ok(()), fs::create_dir_all).map_err(CheckpointError::write(&path))?;
        disk.write(&path, contents).map_err(CheckpointError::write(&path))?;
        written.push(name.clone());
    }
    if let Some(template) = &with.chat_template {
        let path = draft.dir.join(TEMPLATE);
        disk.write(&path, template.as_bytes()).map_err(CheckpointError::write(&path))?;
        written.push(TEMPLATE.to_owned());
    }
    Ok(written)
}

/// Returns the files of the model to copy, with their names: all except those whose contents come from the run.
fn of_model(with: &Publication) -> Result<Vec<(PathBuf, String)>, CheckpointError> {
    // A tokenizer of actions that the run names, and none of the files of the model's own.
    let is_of_folder = |own: &str, name: &str| {
        own.split_once('/').zip(name.split_once('/')).is_some_and(|((own, _), (other, _))| own == other)
    };
    let replaced = |name: &String| {
        with.chat_template.is_some() && (name == TEMPLATE || name == OLD_TEMPLATE || name.starts_with(NAMED_TEMPLATES))
            || !with.processor.is_empty() && is_processor_file(name)
            || with.processor.iter().any(|(own, _)| own == name || is_of_folder(own, name))
    };
    // Not that of a tokenizer of actions, which lies in a folder of its own.
    let is_media = |name: &String| !name.contains('/') && name.contains("processor_config");
    let mut all: Vec<(PathBuf, String)> =
        carried(&with.model_dir)?.into_iter().map(|name| (with.model_dir.join(&name), name)).collect();
    if let Some(dir) = &with.media_dir {
        all.retain(|(_, name)| !is_media(name));
        all.extend(carried(dir)?.into_iter().filter(is_media).map(|name| (dir.join(&name), name)));
    }
    all.retain(|(_, name)| !replaced(name));
    if let Some(file) = &with.text_tokenizer {
        all.retain(|(_, name)| name != TEXT_TOKENIZER);
        all.push((file.clone(), TEXT_TOKENIZER.to_owned()));
    }
    Ok(all)
}

/// The files that samples came from, with sizes and times of change.
pub const DATA: &str = "data.json";

/// Goes before the key `chat_template` of `tokenizer_config.json`.
const TEMPLATE: &str = "chat_template.jinja";
/// The name under which older processors store it.
const OLD_TEMPLATE: &str = "chat_template.json";

/// Makes `model.safetensors.index.json` as transformers writes it, or that of each network as Diffusers does; none for a single file of
/// weights.
fn weight_indices(draft: &CheckpointDraft) -> Result<Vec<(String, Value)>, CheckpointError> {
    let mut groups: BTreeMap<&str, Vec<&SavedFile>> = BTreeMap::new();
    for file in draft.files.iter().filter(|file| !file.tensors.is_empty()) {
        // Of `NETWORK/STEM-00001-of-00002.safetensors` what comes before the number.
        let stem = file.name.split("-0").next().unwrap_or_default();
        groups.entry(stem.trim_end_matches(".safetensors")).or_default().push(file);
    }
    groups.retain(|_, files| files.len() > 1);
    groups.into_iter().map(|(stem, files)| weight_index(&draft.dir, stem, &files)).collect()
}

fn weight_index(dir: &Path, stem: &str, files: &[&SavedFile]) -> Result<(String, Value), CheckpointError> {
    let mut map = BTreeMap::new();
    let mut total_size = 0;
    for file in files {
        let path = dir.join(&file.name);
        total_size += data_bytes(&path, file.bytes).map_err(CheckpointError::read(&path))?;
        let name = file.name.rsplit('/').next().unwrap_or_default();
        for tensor in &file.tensors {
            if let Some(other) = map.insert(tensor, name) {
                let what = format!("{tensor} is in {other} and in {}", file.name);
                return Err(CheckpointError::torn(dir, what));
            }
        }
    }
    let map: Map<String, Value> = map.into_iter().map(|(tensor, file)| (tensor.clone(), json!(file))).collect();
    let index = json!({ "metadata": { "total_size": total_size }, "weight_map": map });
    Ok((format!("{stem}.safetensors.index.json"), index))
}

/// Bytes of a safetensors file after its header.
fn data_bytes(path: &Path, bytes: u64) -> io::Result<u64> {
    let mut header = [0; 8];
    files::open(path)?.read_exact(&mut header)?;
    let header = u64::from_le_bytes(header).saturating_add(8);
    bytes.checked_sub(header).ok_or_else(|| io::Error::other("not a safetensors file: its header is longer than it"))
}

fn write_json(disk: &dyn Disk, path: &Path, value: &impl serde::Serialize) -> Result<(), CheckpointError> {
    let mut text = serde_json::to_vec_pretty(value).expect("JSON values can be written");
    text.push(b'\n');
    disk.write(path, &text).map_err(CheckpointError::write(path))
}

/// Returns the record of what the run of this folder left aside; one that cannot be read counts as none.
pub(super) fn left_aside(dir: &Path) -> Option<LeftAside> {
    LeftAside::read(dir).unwrap_or_else(|error| {
        tracing::warn!("{}: {error}", dir.display());
        None
    })
}

/// Removes all checkpoints but the `keep_last` with the most steps, the one just published, and the best one. A run that was resumed
/// from an earlier step has those of later ones beside it: what it has left aside counts for none, and stays until the run is past it.
fn prune(
    disk: &dyn Disk,
    parent: &Path,
    keep_last: usize,
    newest: u64,
    best: Option<u64>,
) -> Result<(), CheckpointError> {
    let left = left_aside(parent);
    let is_aside = |(number, path): &(u64, PathBuf)| left.as_ref().is_some_and(|left| left.has(*number, path));
    let (aside, mut found): (Vec<_>, Vec<_>) = published(parent)?.into_iter().partition(is_aside);
    found.truncate(found.len().saturating_sub(keep_last.max(1)));
    found.extend(aside.into_iter().filter(|(number, _)| *number < newest));
    // Until the best one is marked, that is the one before.
    let marked = fs::read_link(parent.join(BEST)).ok();
    let is_best =
        |number: u64, path: &Path| Some(number) == best || path.file_name() == marked.as_ref().map(|m| m.as_os_str());
    found.retain(|(number, path)| *number != newest && !is_best(*number, path));
    for (number, path) in found {
        let hidden = parent.join(format!(".{}.old.tmp", files::step_name(number)));
        match disk.rename(&path, &hidden) {
            Ok(()) => remove(disk, &hidden),
            Err(error) => tracing::warn!("cannot remove the old checkpoint {}: {error}", path.display()),
        }
    }
    Ok(())
}

fn remove(disk: &dyn Disk, path: &Path) {
    if let Err(error) = disk.remove_dir(path) {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}

#[cfg(test)]
#[path = "publish_tests.rs"]
mod tests;
