//! Averages of what a run trains (`train.ema`), in the optimizer's files of its checkpoint.

use super::error::AdapterError;
use super::forms::TEXT;
use super::keys::NETWORK;
use super::names::{PREFIX, SECOND};
use crate::params::ADAPTER_PARTS;
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

    /// Returns the average of a parameter, float32, flat `[elements]` as its file has it; `None`: the parameter's value is its average,
    /// since it is not trained or its pool has taken no step.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn find(&self, name: &str) -> Result<Option<Tensor>, AdapterError> {
        let name = format!("{name}.ema");
        let mut files = self.files.iter().filter(|file| has_steps(file));
        Ok(files.find_map(|file| file.read(&name).transpose()).transpose()?)
    }

    /// Works like [`Averages::find`] for a parameter that is trained, whose value is `own` `[…]`; the average is returned in the shape of
    /// `own`.
    ///
    /// # Errors
    /// There is no average of the parameter, or the file cannot be read.
    pub fn of_trained(&self, name: &str, own: &Tensor) -> Result<Tensor, AdapterError> {
        let key = format!("{name}.ema");
        if !self.files.iter().any(|file| file.tensors().contains_key(&key)) {
            return Err(Self::missing(&self.folder, &format!("it has no average of {name}")));
        }
        Ok(self.find(name)?.map_or_else(|| own.shallow_clone(), |average| average.view_as(own)))
    }

    /// Refuses averages of adapters, which a checkpoint with whole weights has added to them.
    ///
    /// # Errors
    /// There are averages of adapters.
    pub fn expect_of_weights(&self) -> Result<(), AdapterError> {
        let end = format!("{}.ema", ADAPTER_PARTS[0]);
        match self.files.iter().any(|file| file.tensors().keys().any(|name| name.ends_with(&end))) {
            true => Err(Self::missing(
                &self.folder,
                "its averages are of adapters, which its weights already contain (checkpoint.merge_lora): only a \
                 checkpoint of adapters can be read with their averages",
            )),
            false => Ok(()),
        }
    }

    fn missing(folder: &Path, problem: &str) -> AdapterError {
        AdapterError::Mismatch { path: folder.to_owned(), problems: vec![problem.to_owned()] }
    }
}

/// Returns whether the pool of a file of state has taken a step: before the first one its averages are zeros.
fn has_steps(file: &TensorFile) -> bool {
    file.note("num_steps") != Some("0")
}

/// Returns the name of the parameter that PEFT calls so, of diffusion models, which alone have averages: PEFT leaves the first
/// transformer's name out.
pub(super) fn parameter_of(name: &str) -> String {
    let path = name.strip_prefix(PREFIX).unwrap_or(name);
    let is_named = [SECOND, TEXT].iter().any(|network| path.starts_with(network));
    if is_named { path.to_owned() } else { format!("{NETWORK}{path}") }
}

#[cfg(test)]
mod tests {
    use super::parameter_of;

    #[test]
    fn parameters_have_the_names_of_their_networks() {
        for (path, name) in [
            ("blocks.0.attn1.to_q.lora_A.weight", "transformer.blocks.0.attn1.to_q.lora_A.weight"),
            ("transformer_2.blocks.0.attn1.to_q.lora_A.weight", "transformer_2.blocks.0.attn1.to_q.lora_A.weight"),
            ("text_encoder.block.0.q.lora_A.weight", "text_encoder.block.0.q.lora_A.weight"),
        ] {
            assert_eq!(parameter_of(&format!("base_model.model.{path}")), name);
        }
    }
}
