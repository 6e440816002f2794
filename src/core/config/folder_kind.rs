//! Detects how a path stores a model: a transformers folder, a Diffusers folder, or a single network of a Diffusers folder.

use std::path::Path;

/// File that lists the parts of a folder in Diffusers layout.
pub const MODEL_INDEX: &str = "model_index.json";

/// File name, before `.safetensors`, of the weights of a network that Diffusers defines.
const NETWORK_STEM: &str = "diffusion_pytorch_model";

/// File name of adapters saved by Diffusers.
const LORA_FILE: &str = "pytorch_lora_weights.safetensors";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FolderKind {
    /// `config.json`, weights and tokenizer are in one folder.
    Plain,
    /// `model_index.json` lists folders of networks and tokenizers.
    Pipeline,
    /// The folder of one network, or one weights file, without a tokenizer.
    Network,
}

impl FolderKind {
    /// Detects the kind from the files at the path; without any, the path counts as a plain folder.
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

/// Returns whether a path is a weights file.
pub(super) fn is_tensor_file(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "safetensors") && path.is_file()
}

/// Returns whether a path is an adapter file, or a folder with one as Diffusers saves it.
pub(super) fn is_lora_file(path: &Path) -> bool {
    is_tensor_file(path) || path.join(LORA_FILE).is_file()
}
