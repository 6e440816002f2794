//! Models in object stores: `s3://bucket/folder` to a folder of the cache, `~/.cache/loongforge/models` or below `XDG_CACHE_HOME`.
//!
//! A folder with a manifest is a checkpoint, whose files are compared with their SHA-256; one that holds checkpoints means the newest one
//! that their run has not left aside. From other folders, the same files are fetched as from a repository of the hub.

use loongforge_core::checkpoint::{CheckpointError, MANIFEST, StoredCheckpoints, StoredError, fetch_file, fetch_files};
use loongforge_core::files;
use loongforge_core::store::{self, StoreError, StoredObject};
use loongforge_core::text::hex;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The file with the name of the folder's origin. It is written last, so that a folder with it is whole.
const WHOLE: &str = ".whole";

/// The part of a model that is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    Whole,
    /// Enough for what only reads the config or the tokenizer.
    WithoutWeights,
}

/// Returns the folder of the cache with the model at `url`, fetched where it is not there yet. `is_wanted`: of files by their names,
/// beside the manifest's.
///
/// # Errors
/// There is no model, a file is damaged, or the store cannot be reached.
pub fn fetch_model(url: &str, extent: Extent, is_wanted: impl Fn(&str) -> bool) -> Result<PathBuf, StoredError> {
    store::check_store_url(url).map_err(|reason| StoreError::new(url, reason))?;
    let mut url = url.trim_end_matches('/').to_owned();
    let mut objects = store::list(&url)?;
    if !objects
        .iter()
        .any(|object| object.name == "config.json" || !object.name.contains('/') && is_wanted(&object.name))
        && let Some(num_steps) = StoredCheckpoints::new(&url).newest_kept()?
    {
        url = StoredCheckpoints::new(&url).url(num_steps);
        objects = store::list(&url)?;
    }
    let manifest = store::get(&format!("{url}/{MANIFEST}"), files::MAX_TEXT_BYTES)?;
    let wanted = |name: &str| is_wanted(name) && (extent == Extent::Whole || !name.ends_with(".safetensors"));
    objects.retain(|object| files::is_inner_name(&object.name) && wanted(&object.name));
    if objects.is_empty() {
        return Err(StoreError::new(&url, "no model is there: it has no config.json and no weights").into());
    }
    let folder = cache(&url, &objects);
    let whole = |folder: &Path| folder.join(WHOLE).is_file();
    let parent = folder.parent().unwrap_or(Path::new("."));
    let write = || CheckpointError::write(parent);
    fs::create_dir_all(parent).map_err(write())?;
    // Several processes of a run want the same model at the same time.
    let lock = File::create(folder.with_extension("lock")).map_err(write())?;
    lock.lock().map_err(write())?;
    if whole(&folder) {
        return Ok(folder);
    }
    match manifest {
        // All of it, so that it is a checkpoint here as well.
        Some(manifest) if extent == Extent::Whole => {
            fetch_files(&url, &manifest, &folder, |_| true)?;
            fs::write(folder.join(MANIFEST), manifest).map_err(write())?;
        }
        Some(manifest) => fetch_files(&url, &manifest, &folder, wanted)?,
        None => {
            for StoredObject { name, bytes, .. } in &objects {
                fetch_file(&format!("{url}/{name}"), *bytes, &folder.join(name))?;
            }
        }
    }
    fs::write(folder.join(WHOLE), &url).map_err(write())?;
    Ok(folder)
}

/// Returns the folder for these files of this URL.
fn cache(url: &str, objects: &[StoredObject]) -> PathBuf {
    let mut hash = Sha256::new();
    hash.update(url);
    for StoredObject { name, bytes, tag } in objects {
        hash.update(format!("\n{name}\t{bytes}\t{tag}"));
    }
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache"))).unwrap_or_else(|| ".cache".into());
    cache.join("loongforge/models").join(&hex(hash.finalize())[..32])
}
