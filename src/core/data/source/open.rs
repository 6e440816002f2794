//! Finds the shards of a data set, counts what is in them and tells their layout.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value as Json;

use super::energon;
use super::index::Index;
use super::layout::RecordLayout;
use super::parallel::in_parallel;
use super::paths;
use super::shard::{Container, Shard};
use super::steps;
use crate::config::{Format, Paths, TrainFile};
use crate::data::error::DataError;
use crate::data::lerobot::Set;
use crate::data::locator::is_remote;
use crate::files;

/// The data set that a config's entry stands for.
#[derive(Default)]
pub struct Found {
    pub shards: Vec<Shard>,
    /// Samples of each shard, where the set says so itself.
    pub counts: Vec<Option<u64>>,
    pub layout: Option<RecordLayout>,
    /// The LeRobot set that it is; `shards` are its files.
    pub set: Option<Arc<Set>>,
}

/// # Errors
/// Named by the path: nothing there, or it cannot be listed.
pub fn find(file: &TrainFile) -> Result<Found, DataError> {
    if let Some((set, shards)) = steps::find(file)? {
        let counts = shards.iter().map(|_| None).collect();
        return Ok(Found { shards, counts, layout: Some(RecordLayout::Steps), set: Some(set) });
    }
    let mut found = Found::default();
    for path in &file.path.0 {
        if energon::is_energon(path)
            || is_remote(path) && path.ends_with('/') && file.format == crate::config::Format::Energon
        {
            let set = energon::open(path)?;
            found.shards.extend(set.shards);
            found.counts.extend(set.counts.into_iter().map(Some));
            found.layout = found.layout.or(set.layout);
        } else if let Some((shards, counts)) = wids(path)? {
            found.shards.extend(shards);
            found.counts.extend(counts.into_iter().map(Some));
        } else {
            let shards = paths::expand(&Paths(vec![path.clone()]), file.format)?;
            found.counts.extend(shards.iter().map(|_| None));
            found.shards.extend(shards);
        }
    }
    match found.shards.is_empty() {
        true => Err(DataError::NoSource),
        false => Ok(found),
    }
}

/// Shards, and how many samples each has.
type Counted = (Vec<Shard>, Vec<u64>);

/// Returns the shards that an index of the `wids` library lists.
fn wids(path: &str) -> Result<Option<Counted>, DataError> {
    let file = Path::new(path);
    let is_small = || std::fs::metadata(file).is_ok_and(|file| file.is_file() && file.len() <= files::MAX_TEXT_BYTES);
    if !path.ends_with(".json") || is_remote(path) || !is_small() {
        return Ok(None);
    }
    let bytes = files::read(file, files::MAX_TEXT_BYTES).map_err(|error| DataError::read(file, error))?;
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(4096)]);
    if !start.trim_start().starts_with('{') || !(start.contains("\"shardlist\"") || start.contains("wids")) {
        return Ok(None);
    }
    let Ok(index) = serde_json::from_slice::<Json>(&bytes) else { return Ok(None) };
    let Some(list) = index["shardlist"].as_array() else { return Ok(None) };
    let base = index["base_path"].as_str().map(str::to_owned);
    let folder = base.unwrap_or_else(|| path[..path.rfind('/').map_or(0, |slash| slash + 1)].to_owned());
    let (mut shards, mut counts) = (Vec::new(), Vec::new());
    for shard in list {
        let (Some(url), Some(count)) = (shard["url"].as_str(), shard["nsamples"].as_u64()) else {
            return Err(DataError::file(file, "has a shard without url or nsamples"));
        };
        let name = match is_remote(url) || url.starts_with('/') {
            true => url.to_owned(),
            false => Path::new(&folder).join(url).to_string_lossy().into_owned(),
        };
        shards.push(Shard::stat(&name)?);
        counts.push(count);
    }
    Ok(Some((shards, counts)))
}

/// Counts the records of each block of each shard of a set of this format. A damaged shard of which nothing can be read has one, which is
/// bad, if others can be read.
///
/// # Errors
/// No shard can be read, or one that is far away, or that the system does not give.
pub fn count(found: &Found, format: Format, index: &mut Index) -> Result<Vec<Vec<u64>>, DataError> {
    let what = if format == Format::Plain { "lines" } else { "records that are not blank" };
    let known = |at: usize, index: &Index| match (found.counts[at], found.shards[at].container()) {
        (Some(count), Container::Tar) => Some(vec![count]),
        _ => index.get(&found.shards[at], what).cloned(),
    };
    let mut lens: Vec<Option<Vec<u64>>> = (0..found.shards.len()).map(|at| known(at, index)).collect();
    let missing: Vec<usize> = (0..lens.len()).filter(|&at| lens[at].is_none()).collect();
    let counted = in_parallel(&missing, "counting samples", |&at| found.shards[at].count(format));
    let (mut failed, mut num_failed, mut refused) = (None, 0u64, None);
    for (&at, counted) in missing.iter().zip(counted) {
        let shard = &found.shards[at];
        match counted {
            Ok(counts) => {
                index.put(shard, what, counts.clone());
                lens[at] = Some(counts);
            }
            Err(reason) => {
                refused = refused.or_else(|| shard.refused(&reason));
                num_failed += 1;
                failed.get_or_insert_with(|| DataError::file(Path::new(&shard.name), reason));
                lens[at] = Some(vec![1]);
            }
        }
    }
    // The others are not counted again.
    if let Some(refused) = refused {
        return Err(refused);
    }
    // Each that failed has one.
    let num_samples: u64 = lens.iter().flatten().flatten().sum();
    match failed {
        Some(error) if num_samples == num_failed => Err(error),
        _ => Ok(lens.into_iter().map(Option::unwrap_or_default).collect()),
    }
}
