//! Describes how a path holds a model: as a folder of transformers, as a folder of Diffusers, or one network of the latter alone.

use std::path::Path;

/// The file that names the parts of a folder in Diffusers' layout.
pub const MODEL_INDEX: &str = "model_index.json";

/// The name of the files of weights in the folder of a network that Diffusers defines, before `.safetensors`.
const NETWORK_STEM: &str = "diffusion_pytorch_model";

/// The name of a file of adapters that Diffusers has saved.
const LORA_FILE: &str = "pytorch_lora_weights.safetensors";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FolderKind {
    /// `config.json`, weights and tokenizer are beside each other.
    Plain,
    /// `model_index.json` names folders of networks and of tokenizers.
    Pipeline,
    /// The folder of one network, or one file of weights: there is no tokenizer.
    Network,
}

impl FolderKind {
    /// Looks which files are at the path; a path without any counts as a plain folder.
    pub fn of(path: &Path) -> Self {
        let is_there = |end: &str| path.join(format!("{NETWORK_STEM}.{end}")).is_file();
        match () {
            () if path.join(MODEL_INDEX).is_file() => Self::Pipeline,
            () if is_tensor_file(path) || is_there("safetensors") || is_there("safetensors.index.json") => {
                Self::Network
            }
            () => Self::Plain,
        }
    }
}

/// Returns whether a path is a file of weights.
pub(super) fn is_tensor_file(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "safetensors") && path.is_file()
}

/// Returns whether a path is adapters in one file, or a folder with one as Diffusers saves it.
pub(super) fn is_lora_file(path: &Path) -> bool {
    is_tensor_file(path) || path.join(LORA_FILE).is_file()
}
