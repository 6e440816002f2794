//! Configs of other trainers as ours: the YAML of LLaMA-Factory and of axolotl. Every key of theirs is accounted for.

mod axolotl;
mod llama_factory;
mod sheet;
#[cfg(test)]
mod tests;
mod trainer;

use super::yaml;
use serde_json::Value;

use sheet::Sheet;
pub use sheet::{Fate, KeyFate};

/// A config of another trainer, translated.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The trainer that it was written for.
    pub from: &'static str,
    /// The YAML of a run.
    pub yaml: String,
    /// Each key of theirs, and what became of it; in the order of their names.
    pub keys: Vec<KeyFate>,
}

/// Why a text is not translated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    #[error("it is not YAML: {0}")]
    Yaml(String),
    #[error(
        "it is of no trainer that is known here: LLaMA-Factory's configs have `model_name_or_path`, axolotl's `base_model`; its \
         keys are {0}"
    )]
    Unknown(String),
}

/// Translates a config. Nothing that it names is opened.
///
/// # Errors
/// It is not YAML, or of no trainer that is known here.
pub fn import(text: &str) -> Result<Imported, ImportError> {
    let node = yaml::parse(text, 0, 0).map_err(|error| ImportError::Yaml(error.message))?;
    let Value::Object(fields) = node.to_json() else {
        return Err(ImportError::Unknown("none".to_owned()));
    };
    let has = |key: &str| fields.contains_key(key);
    let (from, read): (_, fn(&mut Sheet)) = match () {
        () if has("model_name_or_path") => ("LLaMA-Factory", llama_factory::read),
        () if has("base_model") => ("axolotl", axolotl::read),
        () => {
            let keys: Vec<&str> = fields.keys().take(12).map(String::as_str).collect();
            return Err(ImportError::Unknown(keys.join(", ")));
        }
    };
    let mut sheet = Sheet::new(fields);
    read(&mut sheet);
    let (config, keys) = sheet.finish();
    Ok(Imported { from, yaml: yaml::dump(&config), keys })
}
