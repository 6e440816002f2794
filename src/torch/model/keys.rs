//! Reading Hugging Face's `config.json`, with errors that name the key.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::nn::Activation;

/// Says what is wrong with a model's `config.json`. Keys are dotted paths.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ModelConfigError {
    #[error("model config: {key} is missing")]
    Missing { key: String },
    #[error("model config: {key} must be {expected}, not {found}")]
    WrongType { key: String, expected: &'static str, found: String },
    #[error("model config: {key} is {found}; supported: {supported}")]
    Unsupported { key: String, found: String, supported: String },
    #[error("model config: {key} is {found}, but {must}")]
    Inconsistent { key: String, found: String, must: String },
    #[error("model config: {key} ({model_type}): {what}", key = if key.is_empty() { "config.json" } else { key })]
    Own { key: String, model_type: String, what: String },
}

type Result<T> = std::result::Result<T, ModelConfigError>;

/// Returns the largest size that is taken: what is made of it is bounded before anything is allocated.
fn most(key: &str) -> i64 {
    match key {
        "num_hidden_layers" | "depth" | "num_layers" => 4096,
        _ if key.contains("expert") => 1 << 20,
        // Not every table of positions is one.
        _ if key.contains("position") || key.contains("window") => i64::from(u32::MAX),
        _ => 1 << 24,
    }
}

/// An object of the config, with the path that leads to it. A key whose value is null counts as absent.
#[derive(Clone)]
pub(super) struct Keys<'a> {
    object: &'a Value,
    path: String,
    /// The paths of the keys that were read.
    seen: Option<Seen>,
}

/// The paths of keys that a family read.
pub(super) type Seen = Rc<RefCell<BTreeSet<String>>>;

impl<'a> Keys<'a> {
    /// Reads a whole config; keys are named as they are.
    pub fn new(object: &'a Value) -> Keys<'a> {
        Keys { object, path: String::new(), seen: None }
    }

    /// Works like `new`, and notes which keys are read.
    pub fn watched(object: &'a Value) -> (Keys<'a>, Seen) {
        let seen = Seen::default();
        (Keys { seen: Some(seen.clone()), ..Keys::new(object) }, seen)
    }

    fn note(&self, key: &str) {
        if let Some(seen) = &self.seen {
            seen.borrow_mut().insert(self.path(key));
        }
    }

    /// Returns the key as messages call it: behind the names of the sections that it is in.
    pub fn path(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }

    /// Returns whether the key is there, be it null.
    pub fn has(&self, key: &str) -> bool {
        self.note(key);
        self.object.get(key).is_some()
    }

    /// Returns the value of a key; `None` where it is missing or null.
    pub fn value(&self, key: &str) -> Option<&'a Value> {
        self.note(key);
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// Returns the section of a key.
    ///
    /// # Errors
    /// It is missing, or no object.
    pub fn section(&self, key: &str) -> Result<Keys<'a>> {
        self.section_or(key)?.ok_or_else(|| self.missing(key))
    }

    /// Returns the section of a key, if it is there.
    ///
    /// # Errors
    /// It is no object.
    pub fn section_or(&self, key: &str) -> Result<Option<Keys<'a>>> {
        let Some(object) = self.value(key) else { return Ok(None) };
        if !object.is_object() {
            return Err(self.wrong(key, "an object", object));
        }
        Ok(Some(Keys { object, path: format!("{}{key}.", self.path), seen: self.seen.clone() }))
    }

    /// Returns the object with these values where it has no key for them: for [`Keys::instead`].
    pub fn filled(&self, defaults: &Value) -> Value {
        let mut filled = defaults.clone();
        let own = self.object.as_object().into_iter().flatten();
        own.for_each(|(key, value)| filled[key] = value.clone());
        filled
    }

    /// Returns the keys of `object` under the same path.
    pub fn instead<'b>(&self, object: &'b Value) -> Keys<'b> {
        Keys { object, path: self.path.clone(), seen: self.seen.clone() }
    }

    /// Returns the object itself.
    pub fn object(&self) -> &'a Value {
        self.object
    }

    /// Returns whether it has no key.
    pub fn is_empty(&self) -> bool {
        self.object.as_object().is_none_or(serde_json::Map::is_empty)
    }

    /// Returns the first key whose value is an object.
    pub fn first_object(&self) -> Option<String> {
        self.object.as_object()?.iter().find(|(_, value)| value.is_object()).map(|(key, _)| key.clone())
    }

    /// Returns the value of `key`, a positive integer.
    ///
    /// # Errors
    /// The key is missing, or no integer above 0.
    pub fn size(&self, key: &str) -> Result<i64> {
        self.size_or(key)?.ok_or_else(|| self.missing(key))
    }

    /// Returns a positive integer, if it is there.
    ///
    /// # Errors
    /// It is none, or larger than what the key may be.
    pub fn size_or(&self, key: &str) -> Result<Option<i64>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let size =
            value.as_i64().filter(|size| *size > 0).ok_or_else(|| self.wrong(key, "a positive integer", value))?;
        match size > most(key) {
            true => Err(self.inconsistent(key, size, format!("must be at most {}", most(key)))),
            false => Ok(Some(size)),
        }
    }

    /// Works like `size_or`, with the default of a key for which null has a meaning of its own.
    ///
    /// # Errors
    /// The key is there, and no integer above 0.
    pub fn size_or_null(&self, key: &str, default: i64) -> Result<Option<i64>> {
        if self.has(key) { self.size_or(key) } else { Ok(Some(default)) }
    }

    /// Returns an integer of at least 0, if it is there.
    ///
    /// # Errors
    /// It is none.
    pub fn index_or(&self, key: &str) -> Result<Option<i64>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let index = value.as_i64().filter(|index| *index >= 0);
        index.map(Some).ok_or_else(|| self.wrong(key, "an integer of at least 0", value))
    }

    /// Returns an integer, if it is there.
    ///
    /// # Errors
    /// It is none.
    pub fn integer_or(&self, key: &str) -> Result<Option<i64>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_i64().map(Some).ok_or_else(|| self.wrong(key, "an integer", value))
    }

    /// Returns a number, if it is there.
    ///
    /// # Errors
    /// It is none.
    pub fn number_or(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.wrong(key, "a number", value))
    }

    /// Returns a truth value, if it is there.
    ///
    /// # Errors
    /// It is none.
    pub fn flag_or(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(key, "true or false", value))
    }

    /// Returns a string, if it is there.
    ///
    /// # Errors
    /// It is none.
    pub fn text_or(&self, key: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(key, "a string", value))
    }

    /// Returns an activation function's name.
    ///
    /// # Errors
    /// The key is no text, or names a function that is not implemented.
    pub fn activation_or(&self, key: &str) -> Result<Option<Activation>> {
        let Some(name) = self.text_or(key)? else { return Ok(None) };
        let known = Activation::NAMES.map(|name| json!(name));
        Activation::from_name(name).map(Some).ok_or_else(|| self.unsupported(key, &json!(name), &known))
    }

    /// Returns integers of at least 0.
    ///
    /// # Errors
    /// The key is missing, or no list of such integers.
    pub fn indices(&self, key: &str) -> Result<Vec<i64>> {
        let value = self.value(key).ok_or_else(|| self.missing(key))?;
        let integer = |value: &Value| value.as_i64().filter(|index| *index >= 0);
        let found: Option<Vec<i64>> = value.as_array().and_then(|list| list.iter().map(integer).collect());
        found.ok_or_else(|| self.wrong(key, "a list of integers of at least 0", value))
    }

    /// Returns a list of numbers.
    ///
    /// # Errors
    /// It is missing, or something else.
    pub fn numbers(&self, key: &str) -> Result<Vec<f64>> {
        let value = self.value(key).ok_or_else(|| self.missing(key))?;
        let found: Option<Vec<f64>> = value.as_array().and_then(|list| list.iter().map(Value::as_f64).collect());
        found.ok_or_else(|| self.wrong(key, "a list of numbers", value))
    }

    /// Refuses a key that has a value other than those the model implements.
    ///
    /// # Errors
    /// It has another value: the error names the supported ones.
    pub fn only(&self, key: &str, supported: &[Value]) -> Result<()> {
        match self.value(key) {
            Some(value) if !supported.contains(value) => Err(self.unsupported(key, value, supported)),
            _ => Ok(()),
        }
    }

    /// Refuses a rate of dropout.
    ///
    /// # Errors
    /// The rate is not 0, or no number.
    pub fn no_dropout(&self, key: &str) -> Result<()> {
        let Some(rate) = self.number_or(key)?.filter(|rate| *rate != 0.0) else { return Ok(()) };
        let place = self.path(key);
        let must = format!("dropout is not computed here: set it to 0, in a run by model.overrides.{place}=0");
        Err(self.inconsistent(key, rate, must))
    }

    /// Refuses keys that are not among these.
    ///
    /// # Errors
    /// There is another key: the error names it.
    pub fn only_keys(&self, known: &[&str]) -> Result<()> {
        self.no_others(known, || format!("only {} are supported here", known.join(" and ")))
    }

    /// Works like `only_keys`, and says why by `must`.
    ///
    /// # Errors
    /// There is another key: the error names it.
    pub fn no_others(&self, known: &[&str], must: impl Fn() -> String) -> Result<()> {
        match self.object.as_object().and_then(|object| object.iter().find(|(key, _)| !known.contains(&key.as_str()))) {
            Some((key, value)) => Err(self.inconsistent(key, value, must())),
            None => Ok(()),
        }
    }

    /// Makes the error of a value that is not computed here, beside those that are.
    pub fn unsupported(&self, key: &str, found: &Value, supported: &[Value]) -> ModelConfigError {
        let supported = supported.iter().map(Value::to_string).collect::<Vec<_>>().join(", ");
        ModelConfigError::Unsupported { key: self.path(key), found: found.to_string(), supported }
    }

    /// Makes the error of a value that does not go with others: what it `must` be.
    pub fn inconsistent(&self, key: &str, found: impl ToString, must: impl Into<String>) -> ModelConfigError {
        ModelConfigError::Inconsistent { key: self.path(key), found: found.to_string(), must: must.into() }
    }

    /// Makes the error of a key that is not there.
    pub fn missing(&self, key: &str) -> ModelConfigError {
        ModelConfigError::Missing { key: self.path(key) }
    }

    fn wrong(&self, key: &str, expected: &'static str, found: &Value) -> ModelConfigError {
        ModelConfigError::WrongType { key: self.path(key), expected, found: found.to_string() }
    }
}
