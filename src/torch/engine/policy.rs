//! A trained policy that acts: the model of a folder, from one observation to a chunk of actions.

use crate::model::{
    Acting, ActionChunk, Column, Columns, Decoding, Denoising, EncoderFamily, EncoderModel, FeatureInput,
    FoundationFamily, INPUT_IDS, ModelConfig, ModelConfigError, Observed, POSITION_IDS,
};
use crate::native::NativeError;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::{Execution, Policy};
use crate::train::hf::{Checkpoint, load_weights};
use crate::train::{AdapterError, Adapters, WeightsError};
use loongforge_core::config::Precision;
use loongforge_core::data::{ColumnValues, Media, Sample};
use loongforge_core::files;
use loongforge_core::message::Tower;
use loongforge_core::rng::Counter;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use tch::{Device, Kind, Tensor};

/// Bytes of a `config.json` at most.
const MAX_CONFIG: u64 = 64 << 20;

/// Says why a policy cannot be opened or cannot act.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("{path}: {reason}")]
    Config { path: PathBuf, reason: String },
    #[error("{path}: {source}")]
    Model { path: PathBuf, source: ModelConfigError },
    #[error("{path}: {model_type} is not a robot policy")]
    Other { path: PathBuf, model_type: String },
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Adapters(#[from] AdapterError),
    #[error("{0}")]
    Sample(String),
    #[error(transparent)]
    Native(#[from] NativeError),
}

/// A policy with its weights on one device, without gradients.
pub struct PolicyModel {
    chunk: ActionChunk,
    continues_chunks: bool,
    columns: Rc<[Column]>,
    acting: Box<dyn Acting>,
    /// The towers, in the order of the foundation's inputs.
    towers: Vec<OpenTower>,
}

/// A tower on its weights.
struct OpenTower {
    tower: Tower,
    family: Arc<dyn EncoderFamily>,
    model: Box<dyn EncoderModel>,
    params: Rc<ParamStore>,
    /// The tokens that its features replace.
    placeholders: Vec<i64>,
}

impl PolicyModel {
    /// Opens a model's folder: its `config.json` and weights, whose parameters become of this precision.
    ///
    /// # Errors
    /// A file is missing or torn, the model is no policy, or weights do not fit it.
    pub fn open(folder: &Path, device: Device, precision: Precision) -> Result<PolicyModel, PolicyError> {
        Self::open_adapted(folder, (folder, None), device, precision)
    }

    /// Works like [`PolicyModel::open`], of weights in a folder of their own, to which the adapters in another one are added.
    ///
    /// # Errors
    /// Fails as [`PolicyModel::open`] does, and where the adapters are not the model's.
    pub fn open_adapted(
        folder: &Path,
        (weights, adapters): (&Path, Option<&Path>),
        device: Device,
        precision: Precision,
    ) -> Result<PolicyModel, PolicyError> {
        let path = folder.join("config.json");
        let wrong = |reason: String| PolicyError::Config { path: path.clone(), reason };
        let text = files::read(&path, MAX_CONFIG).map_err(|error| wrong(error.to_string()))?;
        let json = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        let model = ModelConfig::from_hf(&json).map_err(|source| PolicyError::Model { path: path.clone(), source })?;
        let foundation: &dyn FoundationFamily = &*model.foundation;
        let Some(policy) = foundation.as_policy().filter(|_| !model.towers.is_empty()) else {
            return Err(PolicyError::Other { path, model_type: model.model_type });
        };
        let kind = match precision {
            Precision::Float32 => Kind::Float,
            Precision::Bf16 => Kind::BFloat16,
        };
        let adapters = match adapters {
            Some(adapters) => Some(Adapters::open(adapters, &model, &Checkpoint::open(weights)?)?),
            None => None,
        };
        let load = |specs: Vec<ParamSpec>| {
            let params = ParamStore::new(specs, kind, device);
            params.set_trainable(false);
            load_weights(&params, weights)?;
            adapters.iter().for_each(|adapters| adapters.add_to(&params));
            Ok::<_, WeightsError>(params)
        };
        let params = load(foundation.specs())?;
        let tower = |input: &FeatureInput| {
            let family = model.towers.get(input.tower).expect("a tower for each input");
            let params = Rc::new(load(family.specs())?);
            Ok(OpenTower {
                tower: input.tower,
                family: family.clone(),
                model: family.build(&params, Policy::Keep),
                params,
                placeholders: input.placeholders.clone(),
            })
        };
        let towers = foundation.inputs().iter().map(tower).collect::<Result<_, PolicyError>>()?;
        Ok(PolicyModel {
            acting: policy.acting(&params),
            columns: foundation.columns().into(),
            towers,
            chunk: policy.chunk(),
            continues_chunks: policy.continues_chunks(),
        })
    }

    /// Returns whether it can go on with a chunk that has begun.
    pub fn continues_chunks(&self) -> bool {
        self.continues_chunks
    }

    /// Returns the sizes of what it predicts.
    pub fn chunk(&self) -> &ActionChunk {
        &self.chunk
    }

    /// Returns the actions of what `sample` observes, of the noise that belongs to `seed`: normalized, `[chunk_size, max_action_dim]`,
    /// row-major. The sample's own actions are not read.
    ///
    /// # Errors
    /// The sample is not of this policy: a column or a picture is missing or has another size, or a token is unknown.
    pub fn act(&self, sample: &Sample, seed: u64) -> Result<Vec<f32>, PolicyError> {
        self.act_from(sample, &self.noise(seed), self.chunk.num_steps as usize)
    }

    /// Returns the noise that belongs to `seed`, `[chunk_size, max_action_dim]`.
    pub fn noise(&self, seed: u64) -> Vec<f32> {
        let numbers = Counter::new(&[seed]);
        let count = (self.chunk.horizon * self.chunk.action_dim) as u64;
        (0..count).map(|at| numbers.normal(at) as f32).collect()
    }

    /// Works like [`PolicyModel::act`] with this noise, `[chunk_size, max_action_dim]`, in so many steps.
    ///
    /// # Errors
    /// Fails as [`PolicyModel::act`] does, and where the noise has another size.
    pub fn act_from(&self, sample: &Sample, noise: &[f32], num_steps: usize) -> Result<Vec<f32>, PolicyError> {
        self.act_after(sample, noise, num_steps, &[])
    }

    /// Works like [`PolicyModel::act_from`] where the first actions are `given`, normalized, so many times `max_action_dim` numbers:
    /// the policy goes on with a chunk that has begun.
    ///
    /// # Errors
    /// Fails as [`PolicyModel::act_from`] does, and where the given actions are a whole chunk, or the policy cannot go on with a chunk.
    pub fn act_after(
        &self,
        sample: &Sample,
        noise: &[f32],
        num_steps: usize,
        given: &[f32],
    ) -> Result<Vec<f32>, PolicyError> {
        let ActionChunk { horizon, action_dim, .. } = self.chunk;
        if given.len() as i64 % action_dim != 0 || given.len() as i64 >= horizon * action_dim {
            let wrong = format!(
                "{} numbers of given actions: they must be whole actions of {action_dim}, and fewer than {horizon} actions",
                given.len()
            );
            return Err(PolicyError::Sample(wrong));
        }
        if noise.len() as i64 != horizon * action_dim || num_steps == 0 {
            let wrong = format!(
                "noise of {} numbers for {num_steps} steps: {horizon} x {action_dim} numbers and at least one step are needed",
                noise.len()
            );
            return Err(PolicyError::Sample(wrong));
        }
        if self.chunk.writes {
            return Err(PolicyError::Sample(
                "this policy writes actions as tokens and does not generate them from noise".into(),
            ));
        }
        let columns = self.columns(sample)?;
        let features = self.features(sample)?;
        let noise = Tensor::from_slice(noise).view([horizon, action_dim]);
        let ends = [0, sample.input_ids.len()];
        let given = (!given.is_empty()).then(|| Tensor::from_slice(given).view([1, -1, action_dim]));
        let observed = Observed { columns: &columns, cu_seqlens: &ends, features: &features };
        let actions = self.acting.act(observed, Denoising { noise: &noise, num_steps, given: given.as_ref() });
        let cannot = || PolicyError::Sample("this policy cannot continue a chunk that has begun".to_owned());
        let actions = actions.ok_or_else(cannot)?;
        let actions = actions.to_device(Device::Cpu).to_kind(Kind::Float).flatten(0, 1);
        Ok(Vec::try_from(actions).expect("a row of numbers"))
    }

    /// Returns the tokens that follow `sample`, of a policy that writes actions, before `stop`; `most` at most. Always the most likely
    /// one.
    ///
    /// # Errors
    /// Fails as [`PolicyModel::act`] does, and where the policy makes actions of noise.
    pub fn write(&self, sample: &Sample, stop: i64, most: usize) -> Result<Vec<i64>, PolicyError> {
        let (columns, features) = (self.columns(sample)?, self.features(sample)?);
        let decoding = Decoding { max_new_tokens: most, stop_token_ids: vec![stop], ..Decoding::default() };
        let ends = [0, sample.input_ids.len()];
        let observed = Observed { columns: &columns, cu_seqlens: &ends, features: &features };
        let written = self.acting.write(observed, &decoding);
        let written = written.and_then(|mut written| written.pop());
        written.ok_or_else(|| {
            PolicyError::Sample("this policy generates actions from noise and does not write them as tokens".into())
        })
    }

    /// Returns the columns that it reads of the sample, checked; other columns are empty.
    fn columns(&self, sample: &Sample) -> Result<Columns, PolicyError> {
        let wrong = |reason: String| Err::<Columns, _>(PolicyError::Sample(reason));
        let (vocab_size, image) = (self.chunk.vocab_size, self.chunk.image_token);
        if sample.input_ids.is_empty() {
            return wrong("the sample has no tokens".into());
        }
        if let Some(id) = sample.input_ids.iter().find(|id| !(0..vocab_size).contains(*id) && **id != image) {
            return wrong(format!("token {id} is not below the policy's vocab_size ({vocab_size})"));
        }
        let num_tokens = sample.input_ids.len() as i64;
        let value = |column: &Column| {
            let size = column.size(column.num_rows(num_tokens, 1));
            match column.name {
                name if !self.chunk.columns.contains(&name) => {
                    Ok(Tensor::zeros(column.size(0), (column.kind, Device::Cpu)))
                }
                INPUT_IDS => Ok(Tensor::from_slice(&sample.input_ids)),
                POSITION_IDS if sample.position_ids.len() as i64 == 3 * num_tokens => {
                    Ok(Tensor::from_slice(&sample.position_ids).view(size.as_slice()))
                }
                name => {
                    let found = sample.columns.iter().find(|own| own.name == name);
                    let found = found.and_then(|own| tensor_of(&own.values, column.kind, &size));
                    let lacks = || format!("the sample has no column {name} of {size:?} {:?}", column.kind);
                    found.ok_or_else(|| PolicyError::Sample(lacks()))
                }
            }
        };
        let values = self.columns.iter().map(value).collect::<Result<Vec<_>, _>>()?;
        Ok(Columns::new(&self.columns, values))
    }

    /// Returns the features of the sample's items, `[F, D]` of each tensor of a tower, one tower after the other; none of one without
    /// items.
    fn features(&self, sample: &Sample) -> Result<Vec<Tensor>, PolicyError> {
        let all = self.towers.iter().map(|tower| tower.features(sample)).collect::<Result<Vec<_>, _>>()?;
        match sample.media.iter().find(|item| self.towers.iter().all(|tower| tower.tower != item.tower)) {
            Some(other) => Err(PolicyError::Sample(format!(
                "the sample has an item for the {} tower, which the policy does not have",
                other.tower
            ))),
            None => Ok(all.into_iter().flatten().collect()),
        }
    }
}

impl OpenTower {
    fn features(&self, sample: &Sample) -> Result<Vec<Tensor>, PolicyError> {
        let patch_dim = self.family.patch_dim();
        let places = sample.input_ids.iter().filter(|id| self.placeholders.contains(id)).count();
        let items: Vec<&Media> = sample.media.iter().filter(|item| item.tower == self.tower).collect();
        let of_items: usize = items.iter().map(|item| item.num_features).sum();
        let fits = |item: &&Media| {
            let num_values = item.grid.num_cells() as i64 * patch_dim;
            item.num_features == self.family.num_features(item.grid) && item.pixels.len() as i64 == num_values
        };
        if places != of_items || !items.iter().all(fits) {
            let (tower, count) = (self.tower, items.len());
            let reason = format!(
                "the sample has {places} placeholder tokens for {of_items} features of {count} items of the {tower} tower"
            );
            return Err(PolicyError::Sample(reason));
        }
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let grids: Vec<_> = items.iter().map(|item| item.grid).collect();
        let values: Vec<Tensor> =
            items.iter().map(|item| Tensor::from_slice(&item.pixels).view([-1, patch_dim])).collect();
        let flat = self.params.flat();
        let values = Tensor::cat(&values, 0).to_device(flat.device());
        // A kind of less bits does not have every id.
        let values = if self.model.takes_ids() { values } else { values.to_kind(flat.kind()) };
        let made = self.model.record(&grids);
        let mut run = Execution::forward_only(made.tape, self.params.clone(), vec![(made.pixels, values)]);
        run.forward()?;
        Ok(made.outputs.iter().map(|slot| run.value(*slot).shallow_clone()).collect())
    }
}

/// Returns the values as a tensor of this size; `None` where they are of another kind or count.
fn tensor_of(values: &ColumnValues, kind: Kind, size: &[i64]) -> Option<Tensor> {
    let flat = match (values, kind) {
        (ColumnValues::F32(values), Kind::Float) => Tensor::from_slice(values),
        (ColumnValues::I64(values), Kind::Int64) => Tensor::from_slice(values),
        _ => return None,
    };
    (flat.size1().ok()? == size.iter().product::<i64>()).then(|| flat.view(size))
}

#[cfg(test)]
#[path = "policy_groot_tests.rs"]
mod groot_tests;
#[cfg(test)]
#[path = "policy_lora_tests.rs"]
mod lora_tests;
#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
#[cfg(test)]
#[path = "policy_xvla_tests.rs"]
mod xvla_tests;
