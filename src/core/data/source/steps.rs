//! Frames of the episodes of a LeRobot set as records, block by block.

use std::path::Path;
use std::sync::Arc;

use super::block::{Block, Body, Record};
use super::hub::HubPath;
use super::hub_commit::hub_cache;
use super::shard::Shard;
use crate::config::{Format, TrainFile};
use crate::data::error::DataError;
use crate::data::lerobot::{OpenBlock, Set, is_set};
use crate::data::locator::is_remote;

/// A set and its shards.
type Found = (Arc<Set>, Vec<Shard>);

/// Returns the set that an entry names, where it names one; its files, of which the first is its info.
///
/// # Errors
/// Named by the path: the set cannot be opened or lacks the episodes that are chosen, the cache lacks it, the entry has paths or
/// columns beside it, or chooses episodes of another kind of data.
pub fn find(file: &TrainFile) -> Result<Option<Found>, DataError> {
    let name = file.name();
    let may_be = matches!(file.format, Format::Auto | Format::Lerobot);
    let is_one = |path: &String| may_be && !is_remote(path) && is_set(Path::new(path));
    if !file.path.0.iter().any(is_one) {
        if file.format == Format::Lerobot || file.episodes.is_some() {
            file.path.0.iter().try_for_each(|path| expect_cached(path))?;
        }
        return match file.format == Format::Lerobot {
            true => Err(DataError::file(
                &name,
                "is not a LeRobot set: a folder, or a data set of the hub, with meta/info.json is needed",
            )),
            false if file.episodes.is_some() => Err(DataError::file(
                &name,
                "is not a LeRobot set (a folder, or a data set of the hub, with meta/info.json), and `episodes` applies \
                 only to such sets: leave it out",
            )),
            false => Ok(None),
        };
    }
    let [path] = file.path.0.as_slice() else {
        return Err(DataError::file(&name, "has a LeRobot set among its paths: give each set an entry of its own"));
    };
    if !file.columns.is_empty() {
        let reason = "is a LeRobot set, to which `columns` does not apply: `policy.cameras`, `policy.state` and \
                      `policy.action` name its features";
        return Err(DataError::file(&name, reason));
    }
    if file.max_samples.is_some() {
        let reason = "is a LeRobot set, to which `max_samples` does not apply: `episodes` selects some of its episodes";
        return Err(DataError::file(&name, reason));
    }
    let set = Set::open(Path::new(path))?;
    let set = match &file.episodes {
        Some(ranges) => set.choose(ranges)?,
        None => set,
    };
    let set = Arc::new(set);
    let shards = set.files().iter().map(|path| Shard::stat(&path.to_string_lossy())).collect::<Result<_, _>>()?;
    Ok(Some((set, shards)))
}

/// Checks that the cache has what a path of the hub names: otherwise it is not known what it is.
///
/// # Errors
/// Named by the path: the cache lacks it or a part of it.
fn expect_cached(path: &str) -> Result<(), DataError> {
    let wrong = |reason: String| DataError::file(Path::new(path), reason);
    match HubPath::parse(path).map_err(wrong)? {
        Some(hub) => hub.find(&hub_cache()).map(drop).map_err(wrong),
        None => Ok(()),
    }
}

impl Block for OpenBlock {
    fn len(&self) -> u64 {
        self.num_samples()
    }

    /// Returns 0, since a step is never cut.
    fn num_bytes(&self, _index: u64) -> u64 {
        0
    }

    fn read(&self, index: u64) -> Result<Record, String> {
        Ok(Record { body: Body::Step(self.step(index)), ..Record::default() })
    }

    fn name(&self, index: u64) -> String {
        let (episode, frame) = self.place(index);
        format!("frame {frame} of episode {episode}")
    }
}
