//! Towers whose weights nobody holds: they are read, or drawn, one parameter at a time.

use super::pool_specs::kind;
use super::weights::initialize;
use crate::params::{ParamSpec, ParamStore};
use crate::train::hf::{SameFiles, Shards, WeightsError, is_adapter, load_weights, save_specs};
use loongforge_core::config::RunConfig;
use loongforge_core::message::SavedFile;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tch::{Device, Kind, Tensor};

/// The frozen parameters of a pool, where its encoders would find them.
pub(super) struct StoredTowers {
    config: RunConfig,
    /// The checkpoint that has them, in a run that was resumed.
    checkpoint: Option<PathBuf>,
    pub specs: Vec<ParamSpec>,
}

impl StoredTowers {
    /// Returns the parameters with these specs; `checkpoint`: the one that the run goes on from.
    pub fn new(config: &RunConfig, checkpoint: Option<&Path>, specs: Vec<ParamSpec>) -> Self {
        let checkpoint = checkpoint.filter(|folder| !is_adapter(folder)).map(Path::to_owned);
        Self { config: config.clone(), checkpoint, specs }
    }

    /// Returns the type that the weights are read in: that of `train.precision`.
    pub fn kind(&self) -> Kind {
        kind(self.config.train.precision)
    }

    /// Returns the value of a parameter on the CPU, in the shape `[…]` of its spec and the type of [`StoredTowers::kind`].
    ///
    /// # Errors
    /// It is missing in its folder, or the folder cannot be read.
    pub fn value(&self, spec: &ParamSpec) -> Result<Tensor, WeightsError> {
        let params = ParamStore::new(vec![spec.clone()], self.kind(), Device::Cpu);
        match &self.checkpoint {
            // As encoders do.
            Some(folder) if !spec.held.rounding.is_some() => load_weights(&params, folder)?,
            _ => initialize(&self.config, &params)?,
        }
        Ok(params.value(params.id(&spec.name)))
    }

    /// Writes the files that an encoder of the pool would write, unless they are the `same` as before. Ends with an error where `stop` is
    /// set.
    ///
    /// # Errors
    /// A parameter or a file cannot be read, or a file not be written.
    pub fn write(
        &self,
        (folder, same): (&Path, &SameFiles),
        shards: &Shards,
        stop: &AtomicBool,
    ) -> Result<Vec<SavedFile>, WeightsError> {
        save_specs(&self.specs, self.kind(), (folder, same), shards, |spec| {
            if stop.load(Relaxed) {
                let source = std::io::Error::other("the run ends");
                return Err(WeightsError::Write { path: folder.to_owned(), source });
            }
            self.value(spec)
        })
    }
}
