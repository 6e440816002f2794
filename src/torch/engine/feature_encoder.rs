//! Encodes items into a `cache_dir` outside of a run.

use super::cache_folder::CacheFolder;
use super::cache_key::Key;
use super::encoder::{TowerModels, encode_one};
use crate::native::bytes;
use crate::train::TrainState;
use loongforge_core::engine::EngineError;
use loongforge_core::message::{Grid, Tower};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use tch::Tensor;

/// An item of a tower, and what tells its content from others'.
pub struct KeyedItem {
    pub tower: Tower,
    pub grid: Grid,
    pub key: Key,
    /// `[patches, channels]`, on the CPU.
    values: Tensor,
}

impl KeyedItem {
    /// `values`: the rows of its patches, end to end.
    pub fn new(tower: Tower, grid: Grid, values: &[f32]) -> Self {
        let values = Tensor::from_slice(values).view([grid.num_cells() as i64, -1]);
        Self { tower, grid, key: Key::of(tower, grid, &values), values }
    }
}

/// The towers of an encoder pool, and the folders of what they make.
pub struct FeatureEncoder {
    models: TowerModels,
    state: TrainState,
    folders: BTreeMap<Tower, CacheFolder>,
}

impl FeatureEncoder {
    /// Encodes with these models; `folders` are those of the towers' features.
    pub(super) fn new(models: TowerModels, state: TrainState, folders: BTreeMap<Tower, CacheFolder>) -> Self {
        Self { models, state, folders }
    }

    /// Encodes an item unless its features are in the folder. Returns their bytes; `None`: they were there.
    ///
    /// # Errors
    /// The item cannot be encoded, or a file not be written.
    pub fn encode(&mut self, item: &KeyedItem) -> Result<Option<u64>, EngineError> {
        let folder = self.folders.get_mut(&item.tower);
        let folder = folder.ok_or_else(|| format!("the pool has no {} tower", item.tower))?;
        if folder.has(&item.key) {
            return Ok(None);
        }
        let values = item.values.to_device(self.state.params().flat().device());
        let features = encode_one(self.models.of(item.tower)?, &self.state, item.grid, &values)?;
        let num_bytes = features.iter().map(|level| bytes(&level.detach().to_device(tch::Device::Cpu)).len() as u64);
        let num_bytes = num_bytes.sum();
        folder.insert(item.key, &features).map_err(unwritten)?;
        Ok(Some(num_bytes))
    }

    /// Writes what waits to be written, looks for what others have written, and copies files to the pool's object store.
    ///
    /// # Errors
    /// A file cannot be written or copied, or one in the folder is torn.
    pub fn flush(&mut self) -> Result<(), EngineError> {
        for folder in self.folders.values_mut() {
            folder.flush().map_err(unwritten)?;
            folder.send().map_err(|error| format!("cannot copy features to cache_store: {error}"))?;
        }
        Ok(())
    }

    /// Returns the folder of each tower.
    pub fn folders(&self) -> impl Iterator<Item = (Tower, PathBuf)> {
        self.folders.iter().map(|(tower, folder)| (*tower, Path::to_owned(folder.path())))
    }
}

fn unwritten(error: io::Error) -> String {
    format!("cannot write features into cache_dir: {error}")
}
