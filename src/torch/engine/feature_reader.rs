//! Features of a pool that has no encoders: all of them are in folders.

use super::cache::stack;
use super::cache_folder::CacheFolder;
use super::cache_key::Key;
use super::cache_name::CacheName;
use super::stored_towers::StoredTowers;
use loongforge_core::engine::EngineError;
use loongforge_core::files::if_there;
use loongforge_core::message::{PoolName, SampleId, Tower, UnitItem};
use loongforge_core::store::list_folders;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tch::{Device, Tensor};

/// Finds features by the content of their items.
pub(super) struct FeatureReader {
    pool: PoolName,
    dir: PathBuf,
    /// The folders of each tower: first the one that the pool's encoders would write.
    folders: BTreeMap<Tower, Vec<CacheFolder>>,
    /// The towers' weights, which checkpoints have.
    pub towers: Arc<StoredTowers>,
}

/// Features that are in no folder.
pub(super) struct Missing {
    pub sample: SampleId,
    pub error: String,
}

impl FeatureReader {
    /// Returns the reader of a pool whose `cache_dir` is `dir`, and its `cache_store` `store`; `names` are those of its towers' folders.
    ///
    /// # Errors
    /// A file in a folder is torn or cannot be read.
    pub fn open(
        pool: PoolName,
        (dir, store): (&Path, Option<&str>),
        names: Vec<(Tower, CacheName)>,
        towers: StoredTowers,
    ) -> Result<Self, EngineError> {
        let wrong = |error: io::Error| format!("pools.{pool}.cache_dir: {}: {error}", dir.display());
        let mut found: Vec<String> = Vec::new();
        // What is missing is said when it is asked for.
        let entries = if_there(std::fs::read_dir(dir)).map_err(wrong)?;
        for entry in entries.into_iter().flatten() {
            found.extend(entry.map_err(wrong)?.file_name().into_string());
        }
        if let Some(url) = store {
            found.extend(folders_in_store(pool, url));
            found.sort();
            found.dedup();
        }
        let mut folders = BTreeMap::new();
        for (tower, name) in names {
            let mut own: Vec<&String> = found.iter().filter(|folder| name.is_of_same_tower(folder)).collect();
            let expected = name.to_string();
            own.sort_by_key(|folder| (**folder != expected, (*folder).clone()));
            let open =
                |folder: &String| CacheFolder::open(dir, folder, store).map(CacheFolder::only_read).map_err(wrong);
            folders.insert(tower, own.into_iter().map(open).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(Self { pool, dir: dir.to_owned(), folders, towers: Arc::new(towers) })
    }

    /// Returns the features of a tower's items, level by level, whose values are the rows of `pixels`. Each level is `[features, D]`.
    ///
    /// # Errors
    /// The first item that has none.
    pub fn read(&mut self, tower: Tower, items: &[UnitItem], pixels: &Tensor) -> Result<Vec<Tensor>, Missing> {
        let folders = self.folders.entry(tower).or_default();
        let (mut start, mut found) = (0, Vec::new());
        for item in items {
            let len = item.meta.grid.num_cells() as i64;
            let key = Key::of(tower, item.meta.grid, &pixels.narrow(0, start, len));
            start += len;
            let mut features = folders.iter().find_map(|folder| folder.get(&key));
            if features.is_none() {
                // Somebody may have encoded it since; a folder that cannot be read lacks it.
                folders.iter_mut().for_each(|folder| drop(folder.renew()));
                features = folders.iter().find_map(|folder| folder.get(&key));
            }
            let Some(features) = features else { return Err(self.missing(tower, item.id.sample)) };
            found.push(features);
        }
        let num_levels = found.first().map_or(0, Vec::len);
        Ok((0..num_levels).map(|level| stack(&found, level, Device::Cpu)).collect())
    }

    fn missing(&self, tower: Tower, sample: SampleId) -> Missing {
        let (pool, dir) = (self.pool, self.dir.display());
        let why = match self.folders.get(&tower).is_some_and(|folders| !folders.is_empty()) {
            true => "one of its items is not in",
            false => "there are no features of this tower, with these weights and in this precision, in",
        };
        let sample_name = match sample.as_held_out() {
            Some((stream, index)) => format!("held-out sample {index} of set {}", stream / 2),
            None => format!("sample {sample}"),
        };
        let error = format!(
            "{sample_name} has no features of the {tower} tower, and the pool `{pool}` has no encoders (pools.{pool}.replicas is \
             0): {why} {dir}; `loongforge data encode CONFIG` computes what is missing"
        );
        Missing { sample, error }
    }
}

/// Returns the names of the folders in a pool's store. A store that does not answer has none: all features may be in `cache_dir`.
fn folders_in_store(pool: PoolName, url: &str) -> Vec<String> {
    list_folders(url).unwrap_or_else(|error| {
        tracing::warn!("features are only read from cache_dir: pools.{pool}.cache_store: {error}");
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_does_not_answer_leaves_the_features_that_are_here() {
        assert!(folders_in_store(PoolName::ENCODER, "nowhere:///features").is_empty());
    }
}
