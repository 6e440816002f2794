//! Detects how a path stores a model: a transformers folder, a Diffusers folder, or a single network of a Diffusers folder.

use std::path::{Path, PathBuf};

/// File that lists the parts of a folder in Diffusers layout.
pub const MODEL_INDEX: &str = "model_index.json";

/// File name, before `.safetensors`, of the weights of a network that Diffusers defines.
const NETWORK_STEM: &str = "diffusion_pytorch_model";

/// File name of adapters saved by Diffusers.
const LORA_FILE: &str = "pytorch_lora_weights.safetensors";

/// Ends of the names of two files of adapters, for high noise and for low noise.
const LORA_FILES_OF_TWO: [&str; 2] = ["_high_noise.safetensors", "_low_noise.safetensors"];

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

/// Returns whether a path is an adapter file, a folder with one as Diffusers saves it, or one with those of two transformers.
pub(super) fn is_lora_file(path: &Path) -> bool {
    is_tensor_file(path) || path.join(LORA_FILE).is_file() || lora_files_of_two(path).is_some()
}

/// Returns whether a file is called as that of the adapters of the transformer for low noise.
pub fn is_low_noise_file(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.ends_with(LORA_FILES_OF_TWO[1]))
}

/// Returns the adapter files of two transformers, for high and for low noise, of a folder that has one of each, as ComfyUI and
/// kohya's scripts have them.
pub fn lora_files_of_two(folder: &Path) -> Option<[PathBuf; 2]> {
    let paths: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    let only = |end: &str| {
        let mut found = paths.iter().filter(|path| path.to_str().is_some_and(|path| path.ends_with(end)));
        let first = found.next()?.clone();
        found.next().is_none().then_some(first)
    };
    Some([only(LORA_FILES_OF_TWO[0])?, only(LORA_FILES_OF_TWO[1])?])
}
