//! The fields of a JSON object, taken one by one; none may be left.

use std::ops::RangeInclusive;

use serde_json::{Map, Value as Json};

use super::error::ApiError;
use crate::data::parse_strictly;

/// Names that an error repeats are cut off here.
pub const MAX_NAME: usize = 64;
/// Values of a body at most, and of the arguments of all calls in it: a value takes much more memory than its text may have bytes.
pub const MAX_VALUES: usize = 1 << 18;

pub struct Fields(Map<String, Json>);

impl Fields {
    /// # Errors
    /// The bytes are no JSON object, or it has too many values.
    pub fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        let wrong = |reason: String| ApiError::new(400, format!("the body is not a JSON object: {reason}"));
        let text = std::str::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
        if num_values(text) > MAX_VALUES {
            return Err(ApiError::new(400, format!("the body has more than {MAX_VALUES} JSON values")));
        }
        match parse_strictly(text).map_err(|error| wrong(error.to_string()))? {
            Json::Object(fields) => Ok(Self(fields)),
            _ => Err(wrong("it is another JSON value".to_owned())),
        }
    }

    /// Returns the field's value; `null` is as good as no field.
    pub fn take(&mut self, name: &str) -> Option<Json> {
        self.0.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Takes a string, if it is there.
    ///
    /// # Errors
    /// It is none.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::String(text)) => Ok(Some(text)),
            Some(_) => Err(ApiError::bad(name, format!("`{name}` must be a string"))),
        }
    }

    /// Takes a truth value, if it is there.
    ///
    /// # Errors
    /// It is none.
    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(ApiError::bad(name, format!("`{name}` must be true or false"))),
        }
    }

    /// Takes an integer, if it is there.
    ///
    /// # Errors
    /// It is none, or outside of the range.
    pub fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_i64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let (low, high) = (range.start(), range.end());
                Err(ApiError::bad(name, format!("`{name}` must be an integer from {low} to {high}")))
            }
        }
    }

    /// Takes a number, if it is there.
    ///
    /// # Errors
    /// It is none, or outside of the range.
    pub fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let (low, high) = (range.start(), range.end());
                Err(ApiError::bad(name, format!("`{name}` must be a number from {low} to {high}")))
            }
        }
    }

    /// Reads one string or a list of at most `most`.
    ///
    /// # Errors
    /// It is neither, or has too many.
    pub fn texts(&mut self, name: &str, most: usize) -> Result<Vec<String>, ApiError> {
        let wrong = || ApiError::bad(name, format!("`{name}` must be a string or a list of at most {most} strings"));
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Json::String(text)) => Ok(vec![text]),
            Some(Json::Array(list)) if list.len() <= most => {
                let text = |value| if let Json::String(text) = value { Ok(text) } else { Err(wrong()) };
                list.into_iter().map(text).collect()
            }
            Some(_) => Err(wrong()),
        }
    }

    /// Takes a field that may only say what holds anyway.
    ///
    /// # Errors
    /// It says something else.
    pub fn only(&mut self, name: &str, holds: impl Fn(&Json) -> bool, hint: &str) -> Result<(), ApiError> {
        match self.take(name) {
            Some(value) if !holds(&value) => Err(ApiError::unsupported(name, hint)),
            _ => Ok(()),
        }
    }

    /// # Errors
    /// A field is left: it is not known.
    pub fn finish(self) -> Result<(), ApiError> {
        match self.0.into_iter().find(|(_, value)| !value.is_null()) {
            Some((name, _)) => {
                let name: String = name.chars().take(MAX_NAME).collect();
                Err(ApiError::unsupported(name, "this server does not know this field"))
            }
            None => Ok(()),
        }
    }
}

/// Returns how many values a JSON text has at most, without reading them.
pub fn num_values(text: &str) -> usize {
    let (mut count, mut is_string, mut is_escaped) = (1, false, false);
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_string,
            b'"' => is_string = !is_string,
            b',' | b'[' | b'{' if !is_string => count += 1,
            _ => {}
        }
    }
    count
}
