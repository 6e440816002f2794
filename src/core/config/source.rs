//! The source of a model: a directory, or a repository on the Hugging Face hub.

use std::fmt;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::store::is_store_url;

/// A directory, or a hub id `org/name[@revision]`, as the user wrote it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Source(#[schemars(length(min = 1))] String);

/// A repository on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubId {
    /// `org/name`.
    pub repo: String,
    /// Branch, tag or commit; `None`: the hub's `main`.
    pub revision: Option<String>,
}

impl Source {
    /// Wraps a directory or hub id as the config has it; nothing is checked.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text as the user wrote it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the text as a path, which need not exist.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// Returns whether this is not a local directory: a model on the hub or in an object store.
    pub fn is_elsewhere(&self) -> bool {
        is_store_url(&self.0) || self.hub_id().is_some()
    }

    /// Returns the hub id, unless this is a directory: a path that exists, starts with `.`, `/` or `~`, or is not two names with
    /// one `/` between them.
    pub fn hub_id(&self) -> Option<HubId> {
        if self.as_path().exists() || self.0.starts_with(['.', '/', '~']) {
            return None;
        }
        let (repo, revision) = match self.0.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision)),
            None => (self.0.as_str(), None),
        };
        let is_name = |name: &str| {
            let mut chars = name.chars();
            chars.next().is_some_and(|c| c.is_ascii_alphanumeric())
                && chars.all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        let (org, name) = repo.split_once('/')?;
        let is_id = is_name(org) && is_name(name) && revision.is_none_or(|revision| !revision.is_empty());
        is_id.then(|| HubId { repo: repo.to_owned(), revision: revision.map(str::to_owned) })
    }
}

/// Returns the hub id of a data set, if the path is one and does not exist locally.
pub fn hub_data_set(path: &Path) -> Option<String> {
    let text = path.to_str()?;
    let is_elsewhere = path.extension().is_none() && path.parent().is_some_and(|parent| !parent.is_dir());
    let id = Source::new(text).hub_id().filter(|_| is_elsewhere)?;
    Some(format!("a data set of the hub is named `hf://datasets/{id}`"))
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for HubId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.revision {
            Some(revision) => write!(f, "{}@{revision}", self.repo),
            None => f.write_str(&self.repo),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hub_ids_and_directories() {
        let id = |text: &str| Source::new(text).hub_id().map(|id| (id.repo, id.revision));
        assert_eq!(id("Qwen/Qwen3-0.6B"), Some(("Qwen/Qwen3-0.6B".into(), None)));
        assert_eq!(id("a/b.c@v1.0"), Some(("a/b.c".into(), Some("v1.0".into()))));
        for directory in ["models", "./a/b", "/a/b", "a/b/c", "a/b@", "a b/c", "/", "a/", "~/a"] {
            assert_eq!(id(directory), None, "{directory}");
        }
        let here = tempfile::tempdir().unwrap();
        assert_eq!(Source::new(here.path().to_str().unwrap()).hub_id(), None);
    }
}
