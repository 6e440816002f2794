//! The adapters of a model's parameters in a file, and back.

use super::config::CONFIG;
use super::error::AdapterError;
use super::folder::AdapterFolder;
use super::names::places;
use super::pair::adapters;
use super::whole::{is_saved, whole_pieces};
use crate::comm::Mesh;
use crate::model::TreeNames;
use crate::native::NativeError;
use crate::params::{ADAPTER_PARTS, LinearModule, ParamId, ParamSpec, ParamStore};
use crate::train::hf::{ADAPTER_FILE, Target, WeightsError, write_plain_file, write_tensor_file};
use crate::train::shares::gather_whole;
use loongforge_core::message::SavedFile;
use std::collections::{BTreeMap, BTreeSet};
use tch::Tensor;

/// The adapter files that a pool writes.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterFile {
    /// The text of `adapter_config.json`, where this pool writes it.
    pub config: Option<String>,
    pub tree: TreeNames,
    /// Modules that are saved themselves.
    pub modules_to_save: BTreeSet<String>,
    /// The name of the file of tensors.
    pub name: String,
}

impl AdapterFile {
    /// Returns the file's name where one pool has everything, or of one of `count` parts, which are put together later.
    pub fn name(part: usize, count: usize) -> String {
        match count {
            0 | 1 => ADAPTER_FILE.to_owned(),
            _ => format!("adapter_model-{:05}-of-{count:05}.safetensors", part + 1),
        }
    }
}

/// Returns these parameters, frozen unless the folder holds them itself, and behind them the parameters of the adapters of `folder`.
///
/// # Errors
/// The folder's tensors are not those of the parameters.
pub fn adapted(
    specs: Vec<ParamSpec>,
    folder: &AdapterFolder,
    tree: &TreeNames,
) -> Result<Vec<ParamSpec>, AdapterError> {
    let contents = folder.contents(&specs, tree)?;
    let is_whole = |spec: &ParamSpec| contents.whole.iter().any(|found| found.name == spec.name);
    let base = specs.into_iter().map(|spec| if is_whole(&spec) { spec } else { spec.frozen() });
    Ok(base.chain(contents.adapters.iter().flat_map(|found| found.lora.specs(&found.module))).collect())
}

/// Writes the adapters of these parameters into `to`, and the parameters that are saved themselves.
///
/// # Errors
/// A file cannot be written.
pub fn save_adapter<'a>(
    stores: &[&ParamStore],
    file: &AdapterFile,
    to: impl Into<Target<'a>>,
) -> Result<Vec<SavedFile>, AdapterError> {
    let mut found = Vec::new();
    for params in stores {
        found.extend(tensors(params, file, |id| Ok(params.leaf(id).detach()))?);
    }
    write(&found, file, to.into())
}

/// Works like [`save_adapter`] from the parts that ranks hold, each of which calls it; one of them has the folder and
/// writes.
///
/// # Errors
/// A file cannot be written, or a rank is gone.
pub fn save_adapter_among(
    params: &ParamStore,
    mesh: &Mesh,
    file: &AdapterFile,
    to: Option<Target<'_>>,
) -> Result<Vec<SavedFile>, AdapterError> {
    let tensors = tensors(params, file, |id| gather_whole(params.spec(id), &params.leaf(id).detach(), mesh))?;
    to.map_or(Ok(Vec::new()), |to| write(&tensors, file, to))
}

/// Returns the tensors of the file; `whole` gives parameters as they are on one rank.
fn tensors(
    params: &ParamStore,
    file: &AdapterFile,
    whole: impl Fn(ParamId) -> Result<Tensor, NativeError>,
) -> Result<Vec<(String, Tensor)>, AdapterError> {
    let mut found = Vec::new();
    for (names, id) in adapter_names(params, &file.tree) {
        let value = whole(id).map_err(WeightsError::from)?;
        for (name, rows) in names {
            let part = rows.map(|rows| value.index_select(0, &Tensor::from_slice(&rows).to_device(value.device())));
            found.push((name, part.unwrap_or_else(|| value.shallow_clone())));
        }
    }
    let own = |id: &ParamId| !params.spec(*id).is_copy && is_saved(params.spec(*id), &file.modules_to_save, &file.tree);
    for id in params.ids().filter(own) {
        let value = whole(id).map_err(WeightsError::from)?;
        let pieces = whole_pieces(params.spec(id), &file.tree);
        found.extend(pieces.into_iter().map(|piece| (piece.in_file.clone(), piece.take(&value).contiguous())));
    }
    Ok(found)
}

fn write(tensors: &[(String, Tensor)], file: &AdapterFile, to: Target<'_>) -> Result<Vec<SavedFile>, AdapterError> {
    let mut files = Vec::new();
    if let Some(config) = &file.config {
        files.push(write_plain_file(config.as_bytes(), to, CONFIG)?);
    }
    if !tensors.is_empty() {
        let saved = write_tensor_file(tensors, &[("format", "pt")], to, &file.name)?;
        // They are not the model's: the model's index does not list them.
        files.push(SavedFile { tensors: Vec::new(), ..saved });
    }
    Ok(files)
}

/// Fills the adapters of `params` from `folder`, and what it holds itself, of those parameters whose names in the checkpoint
/// are wanted. All or nothing.
///
/// # Errors
/// The file is torn, or its adapters are of other shapes: all differences.
pub fn load_adapter(
    params: &ParamStore,
    folder: &AdapterFolder,
    tree: &TreeNames,
    wanted: impl Fn(&str) -> bool,
) -> Result<(), AdapterError> {
    let is_wanted = |spec: &&ParamSpec| spec.pieces.first().is_some_and(|piece| wanted(&piece.name));
    let specs: Vec<ParamSpec> = params.ids().map(|id| params.spec(id)).filter(is_wanted).cloned().collect();
    let contents = folder.contents(&specs, tree)?;
    let mut values = Vec::new();
    for found in &contents.adapters {
        let tensors = folder.tensors_of(found)?;
        for (part, tensor) in ADAPTER_PARTS.iter().zip(tensors) {
            values.push((params.id(&format!("{}{part}", found.module.path)), tensor));
        }
    }
    for found in &contents.whole {
        let id = params.id(&found.name);
        values.push((id, folder.whole(found, params.spec(id).whole_shape())?));
    }
    for (id, value) in values {
        params.set_whole(id, &value);
    }
    Ok(())
}

/// Names in a file, and which rows of a parameter these are; `None`: all.
type Rows = (String, Option<Vec<i64>>);

/// Returns the adapters' parameters with their names in the file.
fn adapter_names(params: &ParamStore, tree: &TreeNames) -> Vec<(Vec<Rows>, ParamId)> {
    let modules: Vec<LinearModule> = params.ids().filter_map(|id| LinearModule::of(params.spec(id))).collect();
    let by_path: BTreeMap<&str, &LinearModule> = modules.iter().map(|module| (module.path.as_str(), module)).collect();
    let found: Vec<(&str, usize, ParamId)> = adapters(params).collect();
    let adapted = found.iter().filter_map(|(path, _, _)| by_path.get(path).copied());
    let places = places(adapted, tree);
    let named = |(path, part, id): (&str, usize, ParamId)| {
        // A is the same for all rows.
        let rows = |rows: &Option<Vec<i64>>| rows.clone().filter(|_| part > 0);
        (places[path].iter().map(|place| (place.tensor(ADAPTER_PARTS[part]), rows(&place.rows))).collect(), id)
    };
    found.into_iter().map(named).collect()
}

/// Returns PEFT's names of the adapters' parameters, by our own; the first, where it has several.
pub fn names_in_file(params: &ParamStore, tree: &TreeNames) -> BTreeMap<String, String> {
    let first = |(mut names, id): (Vec<Rows>, ParamId)| (params.spec(id).name.clone(), names.swap_remove(0).0);
    adapter_names(params, tree).into_iter().map(first).collect()
}
