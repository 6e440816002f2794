//! The checks of a run before it touches anything: whether its layout, weights, device and data go together. `check` makes them and ends;
//! `run` makes them before there is a folder or an actor. Nothing is written, and no weight is read but those of small
//! towers whose features `check` counts.

mod adapters;
mod cached;
mod data;
mod first_read;
mod folders;
mod held_out;
mod memory;
mod overlap;
mod reference;
mod shares;
mod weights;

pub use adapters::AdapterProblem;
pub use data::DataProblem;
pub use first_read::FirstRead;
pub use folders::FolderProblem;
pub use held_out::HeldOutProblem;
pub use memory::{MemoryProblem, machine};
pub use weights::{WeightsProblem, expect_weights};

use crate::eval::made;
use crate::eval::samples::{self, SampleError};
use crate::model::folder::ModelFolder;
use loongforge_core::checkpoint::StoredCheckpoints;
use loongforge_core::config::{Device, KindError, ModelKind, Placement, RunConfig, Shift};
use loongforge_core::data::{DataError, MediaDecoder};
use loongforge_core::engine::EngineError;
use loongforge_core::message::PoolName;
use loongforge_core::schedule::SigmaSpec;
use loongforge_core::store::{StoreError, list_folders};
use loongforge_torch::device::{CUBLAS_WORKSPACE, adds_in_order};
use loongforge_torch::engine::{
    adapters_without_base, check_engines, find_device, note_on_carried_parts, random_parts, untrained_maps,
    whole_beside_adapters, without_effect,
};
use loongforge_torch::native::expect_products;
use std::sync::Arc;

/// The run that is asked about.
pub struct Preflight<'a> {
    pub config: &'a RunConfig,
    pub folder: &'a ModelFolder,
    /// Decodes the samples' pictures and videos.
    pub decoder: Arc<dyn MediaDecoder>,
}

/// Questions that are not always asked.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// True to check that the device is there: not where other machines compute.
    pub device: bool,
    /// True to check that the first weights fit: not where a checkpoint is to be resumed, or the weights are not here.
    pub weights: bool,
    /// True if the whole run is on this machine, so that its memory must suffice and its folders can be written.
    pub alone: bool,
}

/// A run that may begin.
#[derive(Clone, Debug)]
pub struct Passed {
    /// Facts that the user should know, a line each.
    pub lines: Vec<String>,
    /// Samples of all data sets.
    pub num_samples: u64,
}

/// The reasons why a run cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    #[error(transparent)]
    Keys(#[from] KindError),
    #[error(transparent)]
    Engine(EngineError),
    #[error(transparent)]
    Weights(#[from] WeightsProblem),
    #[error(transparent)]
    Adapters(#[from] AdapterProblem),
    #[error(transparent)]
    Memory(#[from] MemoryProblem),
    #[error(transparent)]
    Folder(#[from] FolderProblem),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Samples(#[from] DataProblem),
    #[error(transparent)]
    Sampling(#[from] SampleError),
    #[error("checkpoint.upload")]
    Upload(#[source] StoreError),
    #[error("pools.{0}.cache_store")]
    CacheStore(PoolName, #[source] StoreError),
    #[error(transparent)]
    Eval(anyhow::Error),
    #[error(transparent)]
    HeldOut(#[from] HeldOutProblem),
}

/// Pictures of so many tokens stand for all where the shift goes by them.
const NUM_TOKENS: usize = 1024;

/// Returns how the noise levels of training are drawn; `None` if the model has none.
fn sigmas(config: &RunConfig, folder: &ModelFolder) -> Option<SigmaSpec> {
    let shape = folder.shape().flow?;
    Some(SigmaSpec::new(config.run.seed, config.train.sigma, config.model.experts, shape))
}

/// Refuses a range of noise levels that has none of the transformer that is trained.
///
/// # Errors
/// There are two transformers, and the range is all of the other one.
pub fn expect_levels(config: &RunConfig, folder: &ModelFolder) -> Result<(), PreflightError> {
    match sigmas(config, folder) {
        Some(spec) => spec.expect_levels().map_err(|reason| PreflightError::Engine(reason.into())),
        None => Ok(()),
    }
}

/// Returns how the noise levels of training are spread, and how many of them each of two transformers gets.
fn noise_levels(config: &RunConfig, folder: &ModelFolder) -> Option<String> {
    let spec = sigmas(config, folder)?;
    let percent = |part: f64| format!("{:.0}", 100.0 * part);
    let parts: Vec<String> = spec.histogram(10, NUM_TOKENS).into_iter().map(percent).collect();
    let of =
        if spec.levels.shift == Shift::Auto { format!(" (pictures of {NUM_TOKENS} tokens)") } else { String::new() };
    let high = spec.shape.boundary.map_or(String::new(), |boundary| {
        let part = percent(spec.mass_above(boundary, NUM_TOKENS));
        format!("; {part} % from {boundary} on, for the transformer of high noise")
    });
    Some(format!("noise levels in tenths from 0 to 1{of}: {} %{high}", parts.join(" ")))
}

impl Preflight<'_> {
    /// Asks all there is to ask, what is found fastest first.
    ///
    /// # Errors
    /// The first reason for which the run could not go.
    pub fn ask(&self, asked: Asked) -> Result<Passed, PreflightError> {
        let (config, model) = (self.config, &self.folder.config);
        let kind = self.folder.model_kind();
        config.expect_keys_of(kind)?;
        expect_levels(config, self.folder)?;
        // Those of a diffusion model are settled whether it has them or not.
        if !matches!(kind, ModelKind::Diffusion { .. }) {
            config.expect_keys_of_towers(model.towers.set())?;
        }
        if asked.alone {
            folders::check(config, model.towers.set())?;
        }
        if asked.weights {
            // A wrong bit in their files would be told of as settings or shapes that do not fit.
            adapters::expect_as_written(config)?;
        }
        let untrained = samples::spec(config, self.folder)?.and_then(|samples| samples.other);
        let beside = untrained.as_ref().map_or_else(Vec::new, |untrained| untrained.family.specs());
        let memory = memory::check(config, model, &beside, asked.alone)?;
        check_engines(config, model).map_err(PreflightError::Engine)?;
        if asked.device {
            self.expect_devices(asked.alone)?;
            if config.run.deterministic && !adds_in_order(config.device) {
                let what = format!(
                    "run.deterministic: on a GPU the environment variable {CUBLAS_WORKSPACE} must be :4096:8 (the default if it is unset) or :16:8"
                );
                return Err(PreflightError::Engine(what.into()));
            }
            if config.device == Device::Cpu {
                expect_products(config.run.products).map_err(|error| PreflightError::Engine(error.into()))?;
            }
        }
        if asked.weights {
            expect_weights(config, self.folder)?;
        }
        let mut lines = self.folder.notes.clone();
        lines.extend(
            random_parts(config, model)
                .into_iter()
                .map(|key| format!("{key} starts with random weights: it has no `load`, and there is no model.load")),
        );
        lines.extend(without_effect(config, model));
        lines.extend(whole_beside_adapters(config, model));
        lines.extend(adapters_without_base(config));
        lines.extend(untrained_maps(&config.model.foundation, model));
        lines.extend(reference::without_adapters(config));
        lines.extend(note_on_carried_parts(config, model));
        lines.extend(memory);
        lines.extend(noise_levels(config, self.folder));
        if let Some(untrained) = untrained.filter(|_| asked.weights) {
            untrained.check(config, model).map_err(PreflightError::Engine)?;
        }
        if let Some(url) = &config.checkpoint.upload {
            match StoredCheckpoints::new(url).steps() {
                Ok(_) => {}
                Err(error) if asked.weights => return Err(PreflightError::Upload(error)),
                // What is resumed may be here, and the store there again when the next checkpoint is.
                Err(error) => lines.push(format!("warning: checkpoint.upload: {error}")),
            }
        }
        for (name, pool, _) in config.pools.encoders(model.towers.set()) {
            match pool.cache_store.as_deref().map(list_folders) {
                Some(Err(error)) if asked.weights => return Err(PreflightError::CacheStore(name, error)),
                // What is only there is encoded again.
                Some(Err(error)) => lines.push(format!("warning: pools.{name}.cache_store: {error}")),
                _ => {}
            }
        }
        lines.extend(folders::without_features(config, model.towers.set()));
        lines.extend(overlap::trained_on(config));
        let (num_samples, said) = self.data(asked.weights)?;
        lines.extend(said);
        lines.extend(held_out::check(config, self.folder, &self.decoder)?);
        made::check_reader(config, self.folder).map_err(PreflightError::Eval)?;
        Ok(Passed { lines, num_samples })
    }

    /// Sees to it that the run's devices are here; those of its encoder pools where the run is `alone` on this machine. They are not
    /// opened: this process may be the scheduler's alone, and would keep memory of the first GPU.
    fn expect_devices(&self, alone: bool) -> Result<(), PreflightError> {
        find_device(&self.config.device, 0).map_err(PreflightError::Engine)?;
        let pools = self.config.pools.encoders(self.folder.config.towers.set());
        let asked = alone && self.config.pools.placement == Placement::Separate;
        for (name, pool, _) in pools.into_iter().filter(|(_, pool, _)| asked && !pool.reads()) {
            let found = pool.device.map_or(Ok(tch::Device::Cpu), |device| find_device(&device, 0));
            found.map_err(|error| PreflightError::Engine(format!("pools.{name}.{error}").into()))?;
        }
        Ok(())
    }
}
