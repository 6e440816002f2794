//! Weights in and out of a Hugging Face folder: safetensors, single or sharded, only the tensors that a pool owns.

use super::tensor_file::{TensorFile, TensorFileError, write_tensor_file};
use crate::nn::ParamStore;
use loongforge_core::message::SavedFile;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Problems named in one error; a wrong model would name hundreds.
const MAX_PROBLEMS: usize = 8;

#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error(transparent)]
    File(#[from] TensorFileError),
    #[error("{folder} has no model.safetensors (nor its .index.json); for random weights set model.weights=random")]
    NoWeights { folder: PathBuf },
    #[error("{path}: {reason}")]
    Index { path: PathBuf, reason: String },
    #[error("the weights in {folder} are not of the model in config.json: {}", problems.join("; "))]
    Mismatch { folder: PathBuf, problems: Vec<String> },
}

/// Fills every parameter of `params` from the weights in `folder`.
///
/// Headers are compared first: nothing is loaded unless every name and shape fits.
///
/// # Errors
/// All missing names and wrong shapes at once, or the file that is torn or of an unknown type.
pub fn load_weights(params: &ParamStore, folder: &Path) -> Result<(), WeightsError> {
    let files = weight_files(folder, params)?;
    let files = files.iter().map(|path| TensorFile::open(path)).collect::<Result<Vec<_>, _>>()?;
    let mut problems = Vec::new();
    for piece in params.ids().flat_map(|id| &params.spec(id).pieces) {
        let want: Vec<usize> = piece.shape.iter().map(|&dim| dim as usize).collect();
        match files.iter().find_map(|file| file.shape(&piece.name)) {
            None => problems.push(format!("{} is missing", piece.name)),
            Some(shape) if shape != want => {
                problems.push(format!("{} is {shape:?} there and {want:?} by config.json", piece.name));
            }
            Some(_) => {}
        }
    }
    if problems.len() > MAX_PROBLEMS {
        let more = problems.len() - MAX_PROBLEMS;
        problems.truncate(MAX_PROBLEMS);
        problems.push(format!("and {more} more"));
    }
    if !problems.is_empty() {
        return Err(WeightsError::Mismatch { folder: folder.to_owned(), problems });
    }
    let _no_grad = tch::no_grad_guard();
    for id in params.ids() {
        let leaf = params.leaf(id).detach();
        for (piece, file) in params.spec(id).pieces.iter().flat_map(|piece| files.iter().map(move |file| (piece, file)))
        {
            if let Some(tensor) = file.read(&piece.name)? {
                piece.view(&leaf).copy_(&tensor);
            }
        }
    }
    Ok(())
}

/// Writes every parameter, in its own precision, as `folder/file`.
///
/// # Errors
/// The file cannot be written.
pub fn save_weights(params: &ParamStore, folder: &Path, file: &str) -> Result<SavedFile, WeightsError> {
    let pieces = params.ids().flat_map(|id| params.spec(id).pieces.iter().map(move |piece| (id, piece)));
    let tensors = pieces.map(|(id, piece)| (piece.name.clone(), piece.view(&params.leaf(id).detach()))).collect();
    // transformers refuses a file without this note.
    Ok(write_tensor_file(tensors, &[("format", "pt")], folder, file)?)
}

/// The files of `folder` that hold tensors of `params`.
fn weight_files(folder: &Path, params: &ParamStore) -> Result<Vec<PathBuf>, WeightsError> {
    let index = folder.join("model.safetensors.index.json");
    if !index.is_file() {
        let single = folder.join("model.safetensors");
        let absent = || WeightsError::NoWeights { folder: folder.to_owned() };
        return single.is_file().then(|| vec![single]).ok_or_else(absent);
    }
    let wrong = |reason: String| WeightsError::Index { path: index.clone(), reason };
    let text = std::fs::read_to_string(&index).map_err(|error| wrong(error.to_string()))?;
    let json: serde_json::Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let places = json["weight_map"].as_object().ok_or_else(|| wrong("has no object `weight_map`".into()))?;
    let mut files = BTreeSet::new();
    for name in params.ids().flat_map(|id| &params.spec(id).pieces).map(|piece| piece.name.as_str()) {
        // A name that is missing here is reported with the others.
        let Some(file) = places.get(name) else { continue };
        let file = file.as_str().ok_or_else(|| wrong(format!("weight_map.{name} is not a file name")))?;
        if Path::new(file).file_name().is_none_or(|last| last != file) {
            return Err(wrong(format!("weight_map.{name} leads out of the folder: {file}")));
        }
        files.insert(folder.join(file));
    }
    Ok(files.into_iter().collect())
}
