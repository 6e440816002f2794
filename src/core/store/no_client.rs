//! Stands in for the client in a program without the Cargo feature `cloud`.

use super::{StoreError, StoredObject};
use std::io::{self, Read};

fn absent<T>(url: &str) -> Result<T, StoreError> {
    Err(StoreError::new(url, "this program was built without the feature `cloud`"))
}

/// Returns an error: this build has no client for object stores.
pub fn get(url: &str, _max: u64) -> Result<Option<Vec<u8>>, StoreError> {
    absent(url)
}

/// Returns an error: this build has no client for object stores.
pub fn put(url: &str, _bytes: Vec<u8>) -> Result<(), StoreError> {
    absent(url)
}

/// Returns an error: this build has no client for object stores.
pub fn send(url: &str, _reader: &mut dyn Read, _bytes: u64) -> Result<(), StoreError> {
    absent(url)
}

/// Returns an error: this build has no client for object stores.
pub fn fetch(url: &str, _bytes: u64, _sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> Result<(), StoreError> {
    absent(url)
}

/// Returns an error: this build has no client for object stores.
pub fn list(folder: &str) -> Result<Vec<StoredObject>, StoreError> {
    absent(folder)
}

/// Returns an error: this build has no client for object stores.
pub fn list_folders(folder: &str) -> Result<Vec<String>, StoreError> {
    absent(folder)
}

/// Returns an error: this build has no client for object stores.
pub fn delete(url: &str) -> Result<(), StoreError> {
    absent(url)
}
