//! A trained policy that acts: the model of a folder, from one observation to a chunk of actions.

use crate::model::{
    Acting, Column, Columns, EncoderModel, FoundationFamily, ModelConfig, ModelConfigError, PolicyConfig,
};
use crate::native::NativeError;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::{Execution, Policy};
use crate::train::WeightsError;
use crate::train::hf::load_weights;
use loongforge_core::config::Precision;
use loongforge_core::data::{ColumnValues, Media, Sample};
use loongforge_core::files;
use loongforge_core::message::Tower;
use loongforge_core::rng::Counter;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use tch::{Device, Kind, Tensor};

/// Bytes of a `config.json` at most.
const MAX_CONFIG: u64 = 64 << 20;
/// The columns that a policy reads when it acts.
const READ: [&str; 2] = ["input_ids", "state"];

/// Says why a policy cannot be opened or cannot act.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("{path}: {reason}")]
    Config { path: PathBuf, reason: String },
    #[error("{path}: {source}")]
    Model { path: PathBuf, source: ModelConfigError },
    #[error("{path}: {model_type} is no robot policy")]
    Other { path: PathBuf, model_type: String },
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error("{0}")]
    Sample(String),
    #[error(transparent)]
    Native(#[from] NativeError),
}

/// A policy with its weights on one device, without gradients.
pub struct PolicyModel {
    config: PolicyConfig,
    columns: Rc<[Column]>,
    acting: Acting,
    tower: Box<dyn EncoderModel>,
    of_tower: Rc<ParamStore>,
    patch_dim: i64,
}

impl PolicyModel {
    /// Opens a model's folder: its `config.json` and weights, whose parameters become of this precision.
    ///
    /// # Errors
    /// A file is missing or torn, the model is no policy, or weights do not fit it.
    pub fn open(folder: &Path, device: Device, precision: Precision) -> Result<PolicyModel, PolicyError> {
        let path = folder.join("config.json");
        let wrong = |reason: String| PolicyError::Config { path: path.clone(), reason };
        let text = files::read(&path, MAX_CONFIG).map_err(|error| wrong(error.to_string()))?;
        let json = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        let model = ModelConfig::from_hf(&json).map_err(|source| PolicyError::Model { path: path.clone(), source })?;
        let foundation: &dyn FoundationFamily = &*model.foundation;
        let (Some(config), Some(tower)) = (foundation.as_policy(), model.towers.get(Tower::Vision)) else {
            return Err(PolicyError::Other { path, model_type: model.model_type });
        };
        let kind = match precision {
            Precision::Float32 => Kind::Float,
            Precision::Bf16 => Kind::BFloat16,
        };
        let load = |specs: Vec<ParamSpec>| {
            let params = ParamStore::new(specs, kind, device);
            params.set_trainable(false);
            load_weights(&params, folder).map(|()| params)
        };
        let (params, of_tower) = (load(foundation.specs())?, Rc::new(load(tower.specs())?));
        Ok(PolicyModel {
            acting: Acting::new(config, &params),
            columns: foundation.columns().into(),
            tower: tower.build(&of_tower, Policy::Keep),
            patch_dim: tower.patch_dim(),
            of_tower,
            config: config.clone(),
        })
    }

    /// The policy as data.
    pub fn config(&self) -> &PolicyConfig {
        &self.config
    }

    /// Actions of what `sample` observes, of the noise that belongs to `seed`: normalized, `[chunk_size, max_action_dim]`,
    /// row-major. The sample's own actions are not read.
    ///
    /// # Errors
    /// The sample is not of this policy: a column or a picture is missing or has another size, or a token is unknown.
    pub fn act(&self, sample: &Sample, seed: u64) -> Result<Vec<f32>, PolicyError> {
        let numbers = Counter::new(&[seed]);
        let count = (self.config.horizon * self.config.action_dim) as u64;
        let noise: Vec<f32> = (0..count).map(|at| numbers.normal(at) as f32).collect();
        self.act_from(sample, &noise, self.config.num_steps as usize)
    }

    /// Works like [`PolicyModel::act`] with this noise, `[chunk_size, max_action_dim]`, in so many steps.
    ///
    /// # Errors
    /// As [`PolicyModel::act`], or the noise has another size.
    pub fn act_from(&self, sample: &Sample, noise: &[f32], num_steps: usize) -> Result<Vec<f32>, PolicyError> {
        let PolicyConfig { horizon, action_dim, .. } = self.config;
        if noise.len() as i64 != horizon * action_dim || num_steps == 0 {
            let wrong =
                format!("noise of {} numbers, {num_steps} steps: {horizon} x {action_dim} are needed", noise.len());
            return Err(PolicyError::Sample(wrong));
        }
        let columns = self.columns(sample)?;
        let features = self.features(sample)?;
        let noise = Tensor::from_slice(noise).view([horizon, action_dim]);
        let ends = [0, sample.input_ids.len()];
        let actions = self.acting.act(&columns, &ends, features.as_ref(), &noise, num_steps);
        let actions = actions.to_device(Device::Cpu).to_kind(Kind::Float).flatten(0, 1);
        Ok(Vec::try_from(actions).expect("a row of numbers"))
    }

    /// What it reads of the sample, checked; other columns are empty.
    fn columns(&self, sample: &Sample) -> Result<Columns, PolicyError> {
        let wrong = |reason: String| Err::<Columns, _>(PolicyError::Sample(reason));
        let (vocab_size, image) = (self.config.vocab_size, self.config.image_token);
        if sample.input_ids.is_empty() {
            return wrong("a sample without tokens".into());
        }
        if let Some(id) = sample.input_ids.iter().find(|id| !(0..vocab_size).contains(*id) && **id != image) {
            return wrong(format!("token {id} is not below the policy's vocab_size ({vocab_size})"));
        }
        let value = |column: &Column| {
            let known = READ.contains(&column.name);
            if column.name == "input_ids" {
                return Ok(Tensor::from_slice(&sample.input_ids));
            }
            if !known {
                return Ok(Tensor::zeros(column.size(0), (column.kind, Device::Cpu)));
            }
            let size = column.size(column.num_rows(0, 1));
            let found = sample.columns.iter().find(|own| own.name == column.name);
            match found.map(|own| &own.values) {
                Some(ColumnValues::F32(values)) if values.len() as i64 == size.iter().product::<i64>() => {
                    Ok(Tensor::from_slice(values).view(size.as_slice()))
                }
                _ => Err(PolicyError::Sample(format!("the sample has no column {} of {size:?} float32", column.name))),
            }
        };
        let values = self.columns.iter().map(value).collect::<Result<Vec<_>, _>>()?;
        Ok(Columns::new(&self.columns, values))
    }

    /// The features of the sample's pictures `[F, D]`; `None` without pictures.
    fn features(&self, sample: &Sample) -> Result<Option<Tensor>, PolicyError> {
        let places = sample.input_ids.iter().filter(|id| **id == self.config.image_token).count();
        let of_pictures: usize = sample.media.iter().map(|item| item.num_features).sum();
        let fits = |item: &Media| {
            let patches = item.grid.num_patches();
            item.tower == Tower::Vision
                && item.num_features == patches
                && item.pixels.len() as i64 == patches as i64 * self.patch_dim
        };
        if places != of_pictures || !sample.media.iter().all(fits) {
            let reason =
                format!("{places} tokens of pictures for {of_pictures} features of {} pictures", sample.media.len());
            return Err(PolicyError::Sample(reason));
        }
        if sample.media.is_empty() {
            return Ok(None);
        }
        let grids: Vec<_> = sample.media.iter().map(|item| item.grid).collect();
        let pixels: Vec<Tensor> =
            sample.media.iter().map(|item| Tensor::from_slice(&item.pixels).view([-1, self.patch_dim])).collect();
        let flat = self.of_tower.flat();
        let pixels = Tensor::cat(&pixels, 0).to_device(flat.device()).to_kind(flat.kind());
        let made = self.tower.record(&grids);
        let mut run = Execution::forward_only(made.tape, self.of_tower.clone(), vec![(made.pixels, pixels)]);
        run.forward()?;
        Ok(Some(run.value(made.outputs[0]).shallow_clone()))
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
