//! Object stores: S3 and what speaks its language, Google Cloud Storage, Azure, and files behind HTTP.
//!
//! Retries and time limits of a request are `object_store`'s; credentials come from the variables that the stores' own tools
//! read, and no message has them. Its futures run on two threads that live as long as the program; callers wait for them
//! and may be on any thread.

#[cfg(feature = "cloud")]
mod client;
#[cfg(not(feature = "cloud"))]
mod no_client;
mod url;

#[cfg(all(test, feature = "cloud"))]
pub(crate) use client::register;
#[cfg(feature = "cloud")]
pub(crate) use client::{client_of, failed, tag, wait};
#[cfg(feature = "cloud")]
pub use client::{delete, fetch, get, list, list_folders, put, send};
#[cfg(not(feature = "cloud"))]
pub use no_client::{delete, fetch, get, list, list_folders, put, send};
pub use url::{check_store_url, is_store_url};

/// An object of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredObject {
    /// Behind the folder's name.
    pub name: String,
    pub bytes: u64,
    /// Changes when its contents do: the store's ETag, or the time of change.
    pub tag: String,
}

/// The reason why a store did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{url}: {reason}")]
pub struct StoreError {
    pub url: String,
    /// The answer of the store or the network, without values of credentials.
    pub reason: String,
    /// True if the store did not answer, or answered that it cannot now: the same may go well later.
    pub is_outage: bool,
}

impl StoreError {
    /// Creates the error of a wrong URL, which is not an outage of the store.
    pub fn new(url: &str, reason: impl ToString) -> Self {
        Self { url: url.to_owned(), reason: reason.to_string(), is_outage: false }
    }
}

#[cfg(test)]
#[cfg(feature = "cloud")]
mod tests;
