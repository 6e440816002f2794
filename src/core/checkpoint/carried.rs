//! Describes which files of a model's folder training does not change: a checkpoint takes them along.

use super::error::CheckpointError;
use super::manifest::entries;
use crate::data::policy::{action_tokenizer_files, is_processor_file};
use crate::data::{NAMED_TEMPLATES, TEXT_TOKENIZER};
use crate::files::is_inner_name;
use std::path::Path;

/// The voices of Qwen2.5-Omni's talker, without which transformers does not load the model. A pickle: it is carried, never
/// opened.
pub const SPEAKERS: &str = "spk_dict.pt";

/// Tokenizer, processor and generation config of all families.
const NAMES: [&str; 20] = [
    "added_tokens.json",
    "chat_template.json",
    "generation_config.json",
    "image_processor_config.json",
    "merges.txt",
    "policy_postprocessor.json",
    "policy_preprocessor.json",
    "preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    SPEAKERS,
    "tokenizer.json",
    "tokenizer_config.json",
    "video_preprocessor.json",
    "video_preprocessor_config.json",
    "vocab.json",
    "vocab.txt",
    "vocab_file.txt",
    "bpe.codes",
    TEXT_TOKENIZER,
];

/// Templates, vocabularies, statistics of robot policies, and the code that a family's `auto_map` names; it is carried, never run.
const ENDINGS: [&str; 5] = [".jinja", ".model", ".tiktoken", ".py", "normalizer_processor.safetensors"];

/// Names of the files of `folder` that belong into every copy of its model, in order. `config.json` and weights do not:
/// they are written anew.
///
/// # Errors
/// The folder cannot be read.
pub fn carried(folder: &Path) -> Result<Vec<String>, CheckpointError> {
    let is_carried = |name: &str| {
        NAMES.contains(&name) || ENDINGS.iter().any(|ending| name.ends_with(ending)) || is_processor_file(name)
    };
    let found = entries(folder)?.into_iter().filter(|(name, path)| is_carried(name) && path.is_file());
    let templates = folder.join(NAMED_TEMPLATES);
    let templates = if templates.is_dir() { entries(&templates)? } else { Vec::new() };
    let templates = templates.into_iter().filter(|(name, path)| name.ends_with(".jinja") && path.is_file());
    let templates = templates.map(|(name, _)| format!("{NAMED_TEMPLATES}/{name}"));
    let mut names: Vec<String> =
        found.map(|(name, _)| name).chain(templates).chain(action_tokenizer_files(folder)).collect();
    // Hidden files of other programs are not the model's, and no checkpoint may have them.
    names.retain(|name| is_inner_name(name));
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokenizers_are_carried_and_weights_are_not() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "tokenizer.json",
            "chat_template.jinja",
            "config.json",
            "model.safetensors",
            "qwen.tiktoken",
            "data.json",
            // What other systems leave beside files.
            "._modeling.py",
            "._qwen.tiktoken",
            "policy_preprocessor.json",
            "policy_preprocessor_step_3_normalizer_processor.safetensors",
        ] {
            std::fs::write(folder.path().join(name), "{}").unwrap();
        }
        for name in ["old.model", "action_tokenizer"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        for name in ["tokenizer.json", "other.json"] {
            std::fs::write(folder.path().join("action_tokenizer").join(name), "{}").unwrap();
        }
        std::fs::create_dir(folder.path().join(NAMED_TEMPLATES)).unwrap();
        for name in ["tool_use.jinja", "._tool_use.jinja", "notes.md"] {
            std::fs::write(folder.path().join(NAMED_TEMPLATES).join(name), "{}").unwrap();
        }
        let expected = [
            "action_tokenizer/tokenizer.json",
            "additional_chat_templates/tool_use.jinja",
            "chat_template.jinja",
            "policy_preprocessor.json",
            "policy_preprocessor_step_3_normalizer_processor.safetensors",
            "qwen.tiktoken",
            "tokenizer.json",
        ];
        assert_eq!(carried(folder.path()).unwrap(), expected);
    }
}
