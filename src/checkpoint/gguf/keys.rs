//! The keys of an architecture.

use super::container::{Metadata, Value};

/// Keys that begin with the architecture's name.
pub struct Keys {
    pub begin: &'static str,
    pub metadata: Metadata,
}

impl Keys {
    /// Adds an entry whose key begins with the architecture's name.
    pub fn put(&mut self, key: &str, value: Value) {
        self.metadata.push((format!("{}.{key}", self.begin), value));
    }

    /// Adds a u32; a number that does not fit becomes the largest one.
    pub fn whole(&mut self, key: &str, number: i64) {
        self.put(key, Value::U32(u32::try_from(number).unwrap_or(u32::MAX)));
    }

    /// Adds a number rounded to float32.
    pub fn float(&mut self, key: &str, number: f64) {
        self.put(key, Value::F32(number as f32));
    }
}
