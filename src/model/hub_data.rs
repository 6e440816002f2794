//! Data sets of the Hugging Face hub: what `hf://` paths mean is fetched into the shared cache, where the readers of data find it.

use super::hub::{Hub, HubError};
use hf_hub::RepoType;
use loongforge_core::config::{Data, RunConfig};
use loongforge_core::data::HubPath;
use std::collections::BTreeSet;
use std::sync::Mutex;

/// Paths that this process has fetched: the hub is asked once.
static FETCHED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Fetches what those of `paths` mean that are of the hub; others are left to the readers.
///
/// # Errors
/// The hub has no such data set, or it cannot be fetched.
pub fn fetch_paths<'a>(paths: impl IntoIterator<Item = &'a str>) -> Result<(), HubError> {
    for text in paths {
        // What is no id of the hub is told by the readers, with the key.
        let Ok(Some(path)) = HubPath::parse(text) else { continue };
        let mut fetched = FETCHED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !fetched.contains(text) {
            Hub::of(RepoType::Dataset).fetch_data(&path)?;
            fetched.insert(text.to_owned());
        }
    }
    Ok(())
}

/// Fetches what `data.train`, `eval` and `sample` of a run name.
///
/// # Errors
/// Fails as [`fetch_paths`] does.
pub fn fetch_data(config: &RunConfig) -> Result<(), HubError> {
    fetch_paths(train(&config.data).chain(held(config)))
}

/// Fetches those of `data.train`, `eval` and `sample`, where they are read, that the cache of this machine lacks, as an actor on another
/// machine than the command's.
///
/// # Errors
/// Fails as [`fetch_paths`] does.
pub fn fetch_missing(config: &RunConfig, reads_train: bool, reads_held: bool) -> Result<(), HubError> {
    let hub = Hub::of(RepoType::Dataset);
    let is_missing = |text: &&str| match HubPath::parse(text) {
        Ok(Some(path)) => hub.is_missing(&path),
        _ => false,
    };
    let train = train(&config.data).filter(|_| reads_train);
    fetch_paths(train.chain(held(config).filter(|_| reads_held)).filter(is_missing))
}

fn held(config: &RunConfig) -> impl Iterator<Item = &str> {
    let paths = config.eval.iter().flat_map(|eval| eval.path.iter().chain(eval.sets.values()));
    paths.chain(config.sample.iter().map(|sample| &sample.prompts)).filter_map(|path| path.to_str())
}

fn train(data: &Data) -> impl Iterator<Item = &str> {
    data.train.iter().flat_map(|file| file.path.0.iter().map(String::as_str))
}
