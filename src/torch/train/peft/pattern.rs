//! PEFT's patterns of modules: regular expressions that match the end of a path, of which the file's first one counts.

use super::error::AdapterError;
use fancy_regex::Regex;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Numbers by pattern, from one key of the file at `path`.
pub struct Patterns {
    path: PathBuf,
    key: &'static str,
    list: Vec<(Regex, f64)>,
}

impl Patterns {
    /// Reads the patterns under `key` of `config`, which is the file at `path`.
    ///
    /// # Errors
    /// There is no map, a pattern is no regular expression, or its value no number.
    pub fn read(path: &Path, config: &Value, key: &'static str) -> Result<Self, AdapterError> {
        let wrong = |reason: String| AdapterError::Config { path: path.to_owned(), reason: format!("{key}: {reason}") };
        let compiled = |(pattern, value): (&String, &Value)| -> Result<(Regex, f64), AdapterError> {
            let regex = Regex::new(&format!("^(?:.*\\.)?(?:{pattern})$"));
            let regex = regex.map_err(|error| wrong(format!("{pattern:?}: {error}")))?;
            Ok((regex, value.as_f64().ok_or_else(|| wrong(format!("{pattern:?} is {value}, not a number")))?))
        };
        let map = match &config[key] {
            Value::Null => None,
            Value::Object(map) => Some(map),
            other => return Err(wrong(format!("{other} does not map patterns to numbers"))),
        };
        let list = map.into_iter().flatten().map(compiled);
        Ok(Self { path: path.to_owned(), key, list: list.collect::<Result<_, AdapterError>>()? })
    }

    /// Returns the value of the first pattern that matches this module's path.
    ///
    /// # Errors
    /// A pattern takes too long.
    pub fn get(&self, module: &str) -> Result<Option<f64>, AdapterError> {
        for (regex, value) in &self.list {
            let matches = regex.is_match(module).map_err(|error| AdapterError::Config {
                path: self.path.clone(),
                reason: format!("{}: {:?}: {error}", self.key, regex.as_str()),
            })?;
            if matches {
                return Ok(Some(*value));
            }
        }
        Ok(None)
    }
}

/// Returns the pattern that matches this path and no other.
pub fn exactly(path: &str) -> String {
    format!("^{}", path.replace('.', "\\."))
}
