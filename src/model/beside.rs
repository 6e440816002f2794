//! Files beside a model's weights: the tokenizer of a text tower, and the preprocessor configs of pictures.

use loongforge_core::data::{TEXT_TOKENIZER, is_diffusion, is_fastwam};
use serde_json::Value;
use std::path::{Path, PathBuf};

pub(super) const TOKENIZER: &str = "tokenizer.json";

/// Returns the file of the text tower's own tokenizer: beside the model, or of a diffusion model where Diffusers has it.
pub(super) fn find_text_tokenizer(folder: &Path, json: &Value) -> Option<PathBuf> {
    let in_folder = (is_diffusion(json) || is_fastwam(json)).then(|| folder.join("tokenizer").join(TOKENIZER));
    [folder.join(TEXT_TOKENIZER)].into_iter().chain(in_folder).find(|file| file.is_file())
}

/// Returns the folder with the preprocessor configs of a model's pictures: its own, or of a diffusion model where Diffusers has them.
pub(super) fn find_media(folder: &Path, json: &Value) -> PathBuf {
    let inner = ["image_processor", "processor"].map(|name| folder.join(name));
    let inner =
        inner.into_iter().find(|inner| is_diffusion(json) && !has_preprocessor(folder) && has_preprocessor(inner));
    inner.unwrap_or_else(|| folder.to_owned())
}

pub(super) fn has_preprocessor(folder: &Path) -> bool {
    ["preprocessor_config.json", "processor_config.json"].iter().any(|name| folder.join(name).is_file())
}
