//! A pool's part of a checkpoint: weights, and optimizer state under Hugging Face names, so that any layout reads it.
//!
//! `NAME.exp_avg`, `NAME.exp_avg_sq` and, where parameters are bf16, `NAME.master`; the step count is a header note.
//! In a pool with adapters what is trained is state as well, `NAME.value`: a checkpoint has no weights then, or those that
//! adapters were added to.

use super::adamw::AdamW;
use super::hf::{
    Dtype, Entry, Shards, Target, TensorFile, TensorFileError, WeightsError, load_weights, save_weights,
    save_weights_among, write_among, writer_of,
};
use super::peft::{AdapterError, AdapterFile, has_adapter, save_adapter, save_adapter_among};
use super::pool::Pool;
use super::shares::gather_whole;
use crate::comm::Mesh;
use crate::native::NativeError;
use crate::nn::{ParamId, Shard};
use loongforge_core::message::SavedFile;
use std::path::{Path, PathBuf};
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
    #[error("{path} lacks {name}: the checkpoint is of another model or precision")]
    Missing { path: PathBuf, name: String },
    #[error("{path}: {name} has {found} elements where the parameter has {wanted}")]
    Shape { path: PathBuf, name: String, found: usize, wanted: usize },
}

/// What a pool writes for others to read, besides its state.
#[derive(Clone, Debug)]
pub enum Export {
    /// All weights, adapters added.
    Weights(Shards),
    /// Adapters alone; `None` for a pool that has none.
    Adapter(Option<AdapterFile>),
}

impl StateError {
    /// The disk's fault: the pool is as it was, and training may go on.
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
    pool: &Pool,
    to: impl Into<Target<'a>>,
    export: &Export,
    pool_name: &str,
) -> Result<Vec<SavedFile>, StateError> {
    let to = to.into();
    if let Some(mesh) = pool.mesh() {
        return save_parts(pool, mesh, to, export, pool_name);
    }
    let (params, writes) = (pool.params(), pool.rank() == 0);
    if !writes && params.sharding().is_none() {
        return Ok(Vec::new());
    }
    let files = pool.with_whole(|| match export {
        Export::Weights(shards) if writes => Ok(save_weights(params, to, shards)?),
        Export::Adapter(Some(file)) if writes => Ok(save_adapter(params, file, to)?),
        _ => Ok::<_, StateError>(Vec::new()),
    })?;
    let Some(optimizer) = pool.optimizer() else { return files };
    let values = pool.own_values();
    let mut state: Vec<(ParamId, &Tensor)> = Vec::new();
    let mut entries = Vec::new();
    for id in params.trained_ids().filter(|id| !params.spec(*id).is_copy) {
        let spec = params.spec(id);
        let value = has_adapter(params).then_some(("value", &values));
        for (suffix, flat) in parts(optimizer).chain(value) {
            let dtype = Dtype::of(flat.kind()).expect("a type of files");
            entries.push(Entry { name: format!("{}.{suffix}", spec.name), dtype, shape: spec.shape.clone() });
            state.push((id, flat));
        }
    }
    let num_steps = optimizer.num_steps.to_string();
    let (notes, name) = ([("num_steps", &*num_steps)], file_name(pool_name, pool.part()));
    let mut tensor = |index: usize| {
        let (id, flat) = state[index];
        pool.gather_state(id, flat)
    };
    // A rank that could not write goes on to give its parts: others would wait for them.
    let file = write_among(&entries, &notes, writes.then_some((to, name)), &mut tensor)?;
    let mut files = files?;
    // They are not the model's: the model's index does not list them.
    files.extend(file.map(|file| SavedFile { tensors: Vec::new(), ..file }));
    Ok(files)
}

/// As [`save_state`] of parameters that are split: every rank calls it, and gets the files that it has written.
fn save_parts(
    pool: &Pool,
    mesh: &Mesh,
    to: Target<'_>,
    export: &Export,
    pool_name: &str,
) -> Result<Vec<SavedFile>, StateError> {
    let (params, rank) = (pool.params(), writer_of(mesh).map(|(rank, _)| rank));
    if rank.is_none() && params.sharding().is_none() {
        return Ok(Vec::new());
    }
    let files = pool.with_whole(|| match export {
        Export::Weights(shards) => Ok(save_weights_among(params, mesh, to, shards)?),
        Export::Adapter(Some(file)) if rank.is_some() => {
            Ok(save_adapter_among(params, mesh, file, (rank == Some(0)).then_some(to))?)
        }
        Export::Adapter(_) => Ok::<_, StateError>(Vec::new()),
    })?;
    let Some(optimizer) = pool.optimizer() else { return files };
    let values = has_adapter(params).then(|| pool.own_values());
    let (mut entries, mut state) = (Vec::new(), Vec::new());
    for id in params.trained_ids().filter(|id| !params.spec(*id).is_copy) {
        let spec = params.spec(id);
        for (suffix, flat) in parts(optimizer).chain(values.as_ref().map(|values| ("value", values))) {
            let dtype = Dtype::of(flat.kind()).expect("a type of files");
            let shape = spec.whole_shape().to_vec();
            entries.push(Entry { name: format!("{}.{suffix}", spec.name), dtype, shape });
            state.push((id, flat));
        }
    }
    let num_steps = optimizer.num_steps.to_string();
    let target = (rank == Some(0)).then(|| (to, file_name(pool_name, pool.part())));
    let mut tensor = |index: usize| {
        let (id, flat) = state[index];
        let part = pool.gather_state(id, flat)?;
        if rank.is_some() { gather_whole(params.spec(id), &part, mesh) } else { Ok(part) }
    };
    let file = write_among(&entries, &[("num_steps", &num_steps)], target, &mut tensor)?;
    let mut files = files?;
    // They are not the model's: the model's index does not list them.
    files.extend(file.map(|file| SavedFile { tensors: Vec::new(), ..file }));
    Ok(files)
}

/// Reads back what [`save_state`] wrote, bit for bit: the optimizer, adapters, and where `weights` says so the weights.
/// Else the pool has them already: a checkpoint does not hold the base of adapters as it was.
///
/// # Errors
/// Files are missing, torn or of another model.
pub fn load_state(pool: &mut Pool, folder: &Path, pool_name: &str, weights: bool) -> Result<(), StateError> {
    let params = pool.params().clone();
    if weights {
        load_weights(&params, folder)?;
    }
    let Some(optimizer) = pool.optimizer_mut() else { return Ok(()) };
    let files = (0..).map(|part| folder.join(file_name(pool_name, part)));
    let files = files.take_while(|path| path.exists() || path.ends_with(file_name(pool_name, 0)));
    let files = files.map(|path| TensorFile::open(&path)).collect::<Result<Vec<_>, _>>()?;
    let path = files[0].path();
    let missing = |name: &str| StateError::Missing { path: path.to_owned(), name: name.to_owned() };
    let read = |name: &str, shard: Option<&Shard>| -> Result<Tensor, StateError> {
        let mut found = files.iter().filter_map(|file| file.read_part(name, shard).transpose());
        Ok(found.next().ok_or_else(|| missing(name))??)
    };
    let num_steps = files[0].note("num_steps").and_then(|steps| steps.parse().ok());
    optimizer.num_steps = num_steps.ok_or_else(|| missing("num_steps"))?;
    let _no_grad = tch::no_grad_guard();
    for id in params.trained_ids() {
        let (part, at) = params.owned_range(id);
        let (start, len) = (part.start, part.end - part.start);
        for (suffix, flat) in parts(optimizer) {
            let name = format!("{}.{suffix}", params.spec(id).name);
            let tensor = read(&name, params.spec(id).shard.as_ref())?;
            let (found, wanted) = (tensor.numel(), params.spec(id).num_elements() as usize);
            if found != wanted {
                return Err(StateError::Shape { path: path.to_owned(), name, found, wanted });
            }
            if len > 0 {
                flat.narrow(0, at, len).copy_(&tensor.view([-1]).narrow(0, start, len));
            }
        }
        if has_adapter(&params) {
            let name = format!("{}.value", params.spec(id).name);
            params.set_whole(id, &read(&name, None)?);
        }
    }
    Ok(())
}

fn parts(optimizer: &AdamW) -> impl Iterator<Item = (&'static str, &Tensor)> {
    let parts = [
        ("exp_avg", Some(&optimizer.exp_avg)),
        ("exp_avg_sq", Some(&optimizer.exp_avg_sq)),
        ("master", optimizer.master.as_ref()),
    ];
    parts.into_iter().filter_map(|(name, tensor)| Some((name, tensor?)))
}

/// The first part has the plain name: a pool without stages has no other.
fn file_name(pool_name: &str, part: usize) -> String {
    let number = if part == 0 { String::new() } else { format!("-{:05}", part + 1) };
    format!("optimizer-{pool_name}{number}.safetensors")
}
