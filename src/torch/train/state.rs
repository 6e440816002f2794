//! A pool's part of a checkpoint: weights, and optimizer state under Hugging Face names, so that any layout reads it.
//!
//! `NAME.exp_avg`, `NAME.exp_avg_sq` and, where parameters are bf16, `NAME.master`, under `train.ema`
//! `NAME.ema`; the step count is a header note. Moments in bytes are of type U8 and have the largest magnitudes of blocks beside
//! them, `NAME.exp_avg_absmax` and `NAME.exp_avg_sq_absmax`; what Muon changes has `NAME.momentum_buffer` in place of both.
//! In a run with adapters what is trained is state as well, `NAME.value`: a checkpoint has no weights then, or those that
//! adapters were added to.

use super::adamw::AdamW;
use super::hf::{
    Dtype, Entry, Shards, Target, TensorFileError, WeightsError, save_weights, save_weights_among, write_among,
    writer_of,
};
use super::peft::{AdapterError, AdapterFile, has_adapter, save_adapter, save_adapter_among};
use super::placed::StateSlice;
use super::shares::gather_whole;
use super::state_files::file_name;
use super::train_state::TrainState;
use crate::comm::Mesh;
use crate::native::NativeError;
use crate::params::{ParamId, ParamStore};
use loongforge_core::message::SavedFile;
use std::path::PathBuf;
use tch::Tensor;

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    File(#[from] TensorFileError),
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    #[error(transparent)]
    Native(#[from] NativeError),
    #[error("{path} lacks {name}: the checkpoint is of another model, precision or train.optimizer.type")]
    Missing { path: PathBuf, name: String },
    #[error(
        "{path}: {name} is {found}, but this run has {wanted}: the checkpoint is of another train.optimizer.type. Resume with \
         that one, or begin a new run with the checkpoint's weights (model.load)"
    )]
    OtherOptimizer { path: PathBuf, name: String, found: Dtype, wanted: Dtype },
    #[error(
        "{path} has no averages of the weights: the run that made the checkpoint had no train.ema. Resume with \
         train.ema=null, or begin a new run with the checkpoint's weights (model.load)"
    )]
    NoEma { path: PathBuf },
    #[error("{path}: {name} has the shape {found:?}, but the parameter has {wanted:?}")]
    Shape { path: PathBuf, name: String, found: Vec<i64>, wanted: Vec<i64> },
}

/// Says what a pool writes for others to read, besides its state.
#[derive(Clone, Debug)]
pub enum Export {
    /// All weights, adapters added.
    Weights(Shards),
    /// Works like `Weights`, for a diffusion model, each of whose networks has files of its own.
    Networks(Vec<Shards>),
    /// Adapters, and modules that are trained themselves; `None` for a pool that has neither.
    Adapter(Option<AdapterFile>),
}

impl Export {
    /// Returns the files of weights.
    pub fn shards_mut(&mut self) -> &mut [Shards] {
        match self {
            Self::Weights(shards) => std::slice::from_mut(shards),
            Self::Networks(all) => all,
            Self::Adapter(_) => &mut [],
        }
    }

    /// Returns the files of weights.
    pub fn shards(&self) -> impl Iterator<Item = &Shards> {
        match self {
            Self::Weights(shards) => std::slice::from_ref(shards).iter(),
            Self::Networks(all) => all.iter(),
            Self::Adapter(_) => [].iter(),
        }
    }

    /// Returns whether what is trained is to be kept with the optimizer's state: elsewhere it is not as it was.
    fn keeps_values(&self, params: &ParamStore) -> bool {
        matches!(self, Self::Adapter(_)) || has_adapter(params)
    }
}

impl StateError {
    /// Returns whether the disk is at fault: the pool is unchanged then, and training may go on.
    pub fn is_of_disk(&self) -> bool {
        match self {
            Self::Weights(error) | Self::Adapter(AdapterError::Weights(error)) => {
                matches!(error, WeightsError::Write { .. })
            }
            _ => false,
        }
    }
}

/// Writes the pool's weights or adapters as `export` says and its state as `optimizer-POOL.safetensors`, with a number
/// behind for later stages of a pipeline. The first replica writes, since all are equal; where they share something out,
/// every one has to call this.
///
/// # Errors
/// A file cannot be written, or a replica is gone.
pub fn save_state<'a>(
    state: &TrainState,
    to: impl Into<Target<'a>>,
    export: &Export,
    pool_name: &str,
) -> Result<Vec<SavedFile>, StateError> {
    let to = to.into();
    if let Some(mesh) = state.mesh() {
        return save_parts(state, mesh, to, export, pool_name);
    }
    let (params, writes) = (state.params(), state.rank() == 0);
    if !writes && params.sharding().is_none() {
        return Ok(Vec::new());
    }
    let files = state.with_whole(|| match export {
        Export::Weights(shards) if writes => Ok(save_weights(params, to, shards)?),
        Export::Networks(all) if writes => {
            let files = all.iter().map(|shards| save_weights(params, to, shards)).collect::<Result<Vec<_>, _>>()?;
            Ok(files.concat())
        }
        Export::Adapter(Some(file)) if writes => Ok(save_adapter(&[params.as_ref()], file, to)?),
        _ => Ok::<_, StateError>(Vec::new()),
    })?;
    let target = writes.then(|| (to, file_name(pool_name, state.part())));
    with_optimizer(state, export, files, target, |id, slice| state.gather_slice(id, slice))
}

/// Works like [`save_state`] for parameters that are split: every rank calls it, and gets the files that it has
/// written.
fn save_parts(
    state: &TrainState,
    mesh: &Mesh,
    to: Target<'_>,
    export: &Export,
    pool_name: &str,
) -> Result<Vec<SavedFile>, StateError> {
    let (params, rank) = (state.params(), writer_of(mesh).map(|(rank, _)| rank));
    if rank.is_none() && params.sharding().is_none() {
        return Ok(Vec::new());
    }
    let files = state.with_whole(|| match export {
        Export::Weights(shards) => Ok(save_weights_among(params, mesh, to, shards)?),
        Export::Networks(all) => Ok(save_networks_among(params, mesh, to, all)?),
        Export::Adapter(Some(file)) if rank.is_some() => {
            Ok(save_adapter_among(params, mesh, file, (rank == Some(0)).then_some(to))?)
        }
        Export::Adapter(_) => Ok::<_, StateError>(Vec::new()),
    })?;
    let target = (rank == Some(0)).then(|| (to, file_name(pool_name, state.part())));
    with_optimizer(state, export, files, target, |id, slice| {
        let part = state.gather_slice(id, slice)?;
        // Blocks are of parameters that are not cut.
        let cut = rank.is_some() && slice.block == 1;
        if cut { gather_whole(params.spec(id), &part.to_device(params.flat().device()), mesh) } else { Ok(part) }
    })
}

/// Adds a file of the optimizer's state, which the rank with a `target` writes, to the model's files. `gather` makes a tensor of a
/// slice on this rank.
fn with_optimizer(
    state: &TrainState,
    export: &Export,
    files: Result<Vec<SavedFile>, StateError>,
    target: Option<(Target<'_>, String)>,
    gather: impl Fn(ParamId, &StateSlice<'_>) -> Result<Tensor, NativeError>,
) -> Result<Vec<SavedFile>, StateError> {
    let Some(optimizer) = state.optimizer() else { return files };
    let values = export.keeps_values(state.params()).then(|| state.own_values());
    let (entries, slices) = state_entries(state.params(), optimizer, values.as_ref());
    let num_steps = optimizer.num_steps.to_string();
    let mut tensor = |index: usize| {
        let (id, slice) = &slices[index];
        gather(*id, slice)
    };
    // A rank that could not write goes on to give its parts: others would wait for them.
    let file = write_among(&entries, &[("num_steps", &num_steps)], target, &mut tensor)?;
    let mut files = files?;
    // They are not the model's: the model's index does not list them.
    files.extend(file.map(|file| SavedFile { tensors: Vec::new(), ..file }));
    Ok(files)
}

/// Works like [`save_weights_among`] for several networks. A rank that could not write one gives its parts of the others: other
/// ranks would wait for them.
fn save_networks_among(
    params: &ParamStore,
    mesh: &Mesh,
    to: Target<'_>,
    all: &[Shards],
) -> Result<Vec<SavedFile>, WeightsError> {
    let (mut saved, mut failed) = (Vec::new(), None);
    for shards in all {
        match save_weights_among(params, mesh, to, shards) {
            Ok(files) => saved.extend(files),
            Err(error @ WeightsError::Native(_)) => return Err(error),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(saved), Err)
}

/// Returns the tensors of a file of state, and where each of them lies here.
fn state_entries<'a>(
    params: &ParamStore,
    optimizer: &'a AdamW,
    values: Option<&'a Tensor>,
) -> (Vec<Entry>, Vec<(ParamId, StateSlice<'a>)>) {
    let (mut entries, mut state) = (Vec::new(), Vec::new());
    for id in params.trained_ids().filter(|id| !params.spec(*id).is_copy) {
        let spec = params.spec(id);
        let value = values.map(|values| ("value", StateSlice::of(values, params.owned_range(id).1)));
        for (suffix, slice) in optimizer.state_of(params, id).into_iter().chain(value) {
            let dtype = Dtype::of(slice.tensor.kind()).expect("a type of files");
            let (name, shape) = (format!("{}.{suffix}", spec.name), slice.shape(spec.whole_shape()));
            entries.push(Entry { name, dtype, shape });
            state.push((id, slice));
        }
    }
    (entries, state)
}
