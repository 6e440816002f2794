//! Averages of what a run trains (`train.ema`), in the optimizer's files of its checkpoint.

use super::error::AdapterError;
use crate::train::hf::TensorFile;
use crate::train::state_files::state_files;
use std::path::{Path, PathBuf};
use tch::Tensor;

/// The averages in a checkpoint, under the names of the parameters.
pub struct Averages {
    folder: PathBuf,
    files: Vec<TensorFile>,
}

impl Averages {
    /// # Errors
    /// The checkpoint has none, or a file is torn.
    pub fn open(folder: &Path) -> Result<Self, AdapterError> {
        let paths = state_files(folder).unwrap_or_default();
        let files = paths.iter().map(|path| TensorFile::open(path)).collect::<Result<Vec<_>, _>>()?;
        let has_averages = files.iter().any(|file| file.tensors().keys().any(|name| name.ends_with(".ema")));
        match has_averages {
            true => Ok(Self { folder: folder.to_owned(), files }),
            false => Err(Self::missing(folder, "it has no averages of the weights: the run had no train.ema")),
        }
    }

    /// The average of a parameter, float32, as flat as its file has it; `None`: it is not trained.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn find(&self, name: &str) -> Result<Option<Tensor>, AdapterError> {
        let name = format!("{name}.ema");
        Ok(self.files.iter().find_map(|file| file.read(&name).transpose()).transpose()?)
    }

    /// Works like [`Averages::find`] of a parameter that is trained.
    ///
    /// # Errors
    /// There is none, or as there.
    pub fn get(&self, name: &str) -> Result<Tensor, AdapterError> {
        self.find(name)?.ok_or_else(|| Self::missing(&self.folder, &format!("it has no average of {name}")))
    }

    fn missing(folder: &Path, problem: &str) -> AdapterError {
        AdapterError::Mismatch { path: folder.to_owned(), problems: vec![problem.to_owned()] }
    }
}
