//! A pool's part of a checkpoint: weights, and optimizer state under Hugging Face names, so that any layout reads it.
//!
//! `NAME.exp_avg`, `NAME.exp_avg_sq` and, where parameters are bf16, `NAME.master`; the step count is a header note.
//! In a pool with adapters what is trained is state as well, `NAME.value`: a checkpoint has no weights then, or those that
//! adapters were added to.

use super::adamw::AdamW;
use super::hf::{
    Dtype, Entry, Shards, TensorFile, TensorFileError, WeightsError, load_weights, save_weights, save_weights_among,
    write_among, write_tensor_file, writer_of,
};
use super::peft::{AdapterError, AdapterFile, has_adapter, save_adapter, save_adapter_among};
use super::pool::Pool;
use super::shares::gather_whole;
use crate::comm::Mesh;
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

/// Writes the pool's weights or adapters as `export` says and its state as `optimizer-POOL.safetensors`.
///
/// # Errors
/// A file cannot be written.
pub fn save_state(pool: &Pool, folder: &Path, export: &Export, pool_name: &str) -> Result<Vec<SavedFile>, StateError> {
    let params = pool.params();
    if let Some(mesh) = pool.mesh() {
        return save_parts(pool, mesh, folder, export, pool_name);
    }
    let mut files = match export {
        Export::Weights(shards) => save_weights(params, folder, shards)?,
        Export::Adapter(Some(file)) => save_adapter(params, file, folder)?,
        Export::Adapter(None) => Vec::new(),
    };
    let Some(optimizer) = pool.optimizer() else { return Ok(files) };
    let mut tensors = Vec::new();
    for id in params.trained_ids() {
        let (spec, (offset, len)) = (params.spec(id), params.range(id));
        for (suffix, flat) in parts(optimizer) {
            let tensor = flat.narrow(0, offset, len).view(spec.shape.as_slice());
            tensors.push((format!("{}.{suffix}", spec.name), tensor));
        }
        if has_adapter(params) {
            tensors.push((format!("{}.value", spec.name), params.leaf(id).detach()));
        }
    }
    let num_steps = optimizer.num_steps.to_string();
    let mut file = write_tensor_file(&tensors, &[("num_steps", &num_steps)], folder, &file_name(pool_name))?;
    // They are not the model's: the model's index does not list them.
    file.tensors.clear();
    files.push(file);
    Ok(files)
}

/// As [`save_state`] of parameters that are split: every rank calls it, and gets the files that it has written.
fn save_parts(
    pool: &Pool,
    mesh: &Mesh,
    folder: &Path,
    export: &Export,
    pool_name: &str,
) -> Result<Vec<SavedFile>, StateError> {
    let Some((rank, _)) = writer_of(mesh) else { return Ok(Vec::new()) };
    let params = pool.params();
    let mut files = match export {
        Export::Weights(shards) => save_weights_among(params, mesh, folder, shards)?,
        Export::Adapter(Some(file)) => save_adapter_among(params, mesh, file, (rank == 0).then_some(folder))?,
        Export::Adapter(None) => Vec::new(),
    };
    let Some(optimizer) = pool.optimizer() else { return Ok(files) };
    let (mut entries, mut state) = (Vec::new(), Vec::new());
    for id in params.trained_ids() {
        let (spec, (offset, len)) = (params.spec(id), params.range(id));
        let mut add = |suffix: &str, tensor: Tensor| {
            let dtype = Dtype::of(tensor.kind()).expect("a type of files");
            let shape = spec.whole_shape().to_vec();
            entries.push(Entry { name: format!("{}.{suffix}", spec.name), dtype, shape });
            state.push((id, tensor));
        };
        for (suffix, flat) in parts(optimizer) {
            add(suffix, flat.narrow(0, offset, len).view(spec.shape.as_slice()));
        }
        if has_adapter(params) {
            add("value", params.leaf(id).detach());
        }
    }
    let num_steps = optimizer.num_steps.to_string();
    let target = (rank == 0).then(|| (folder, file_name(pool_name)));
    let mut tensor = |index: usize| {
        let (id, part) = &state[index];
        gather_whole(params.spec(*id), part, mesh)
    };
    let file = write_among(&entries, &[("num_steps", &num_steps)], target, &mut tensor)?;
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
    let file = TensorFile::open(&folder.join(file_name(pool_name)))?;
    let missing = |name: &str| StateError::Missing { path: file.path().to_owned(), name: name.to_owned() };
    let num_steps = file.note("num_steps").and_then(|steps| steps.parse().ok());
    optimizer.num_steps = num_steps.ok_or_else(|| missing("num_steps"))?;
    let _no_grad = tch::no_grad_guard();
    for id in params.trained_ids() {
        let (offset, len) = params.range(id);
        for (suffix, flat) in parts(optimizer) {
            let name = format!("{}.{suffix}", params.spec(id).name);
            let tensor = file.read_part(&name, params.spec(id).shard.as_ref())?.ok_or_else(|| missing(&name))?;
            let (found, wanted) = (tensor.numel(), len as usize);
            if found != wanted {
                return Err(StateError::Shape { path: file.path().to_owned(), name, found, wanted });
            }
            flat.narrow(0, offset, len).copy_(&tensor.view([-1]));
        }
        if has_adapter(&params) {
            let name = format!("{}.value", params.spec(id).name);
            params.set_whole(id, &file.read(&name)?.ok_or_else(|| missing(&name))?);
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

fn file_name(pool_name: &str) -> String {
    format!("optimizer-{pool_name}.safetensors")
}
