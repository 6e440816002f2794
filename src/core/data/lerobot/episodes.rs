//! The episodes of a set: how long each is, in which rows of which file, and where in which videos.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::columns::{Columns, MAX_ROWS};
use super::info::{Info, Version};
use super::jsonl::for_each_line;
use crate::data::error::DataError;

/// The file of episodes of version 2.
const EPISODES: &str = "meta/episodes.jsonl";
/// Episodes that a set may have: 16 million.
const MAX_EPISODES: usize = 1 << 24;

/// One episode.
#[derive(Clone, Debug, PartialEq)]
pub struct Episode {
    /// Frames of it.
    pub length: usize,
    /// The file of its rows, by its place in [`Episodes::files`].
    pub file: usize,
    /// The number of its first row in that file.
    pub row: usize,
    /// The place of the episode in the video of each feature that is one, in the order of the info.
    pub clips: Vec<VideoPlace>,
}

/// The place of an episode in a video.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VideoPlace {
    /// The file, by its place in [`Episodes::videos`].
    pub file: usize,
    /// The time of the episode's first frame, in seconds.
    pub from: f64,
}

/// All episodes, in order, and the files that they are in; paths are below the set's folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Episodes {
    pub list: Vec<Episode>,
    pub files: Vec<PathBuf>,
    pub videos: Vec<PathBuf>,
    /// The files that say all this.
    pub described: Vec<PathBuf>,
}

/// Paths, each with its number.
#[derive(Default)]
struct Paths {
    numbers: BTreeMap<PathBuf, usize>,
    list: Vec<PathBuf>,
}

impl Paths {
    fn number(&mut self, path: PathBuf) -> usize {
        *self.numbers.entry(path.clone()).or_insert_with(|| {
            self.list.push(path);
            self.list.len() - 1
        })
    }
}

impl Episodes {
    /// Reads the episodes of the set in `folder`.
    ///
    /// # Errors
    /// Named by the file: missing or wrong; episodes that do not add up to what the info says.
    pub fn read(folder: &Path, info: &Info) -> Result<Self, DataError> {
        if info.num_episodes > MAX_EPISODES {
            let reason = format!("`total_episodes` is {}, more than {MAX_EPISODES}", info.num_episodes);
            return Err(DataError::file(&folder.join(super::names::INFO), reason));
        }
        let episodes = match info.version {
            Version::V30 => of_rows(folder, info)?,
            Version::V20 | Version::V21 => of_lines(folder, info)?,
        };
        let num_frames: u64 = episodes.list.iter().map(|episode| episode.length as u64).sum();
        if (episodes.list.len(), num_frames) != (info.num_episodes, info.num_frames) {
            let reason = format!(
                "says {} episodes with {} frames, but the files of episodes have {} with {num_frames}",
                info.num_episodes,
                info.num_frames,
                episodes.list.len()
            );
            return Err(DataError::file(&folder.join(super::names::INFO), reason));
        }
        Ok(episodes)
    }
}

/// Reads `meta/episodes.jsonl`, where each episode has files of its own.
fn of_lines(folder: &Path, info: &Info) -> Result<Episodes, DataError> {
    let path = folder.join(EPISODES);
    let mut episodes = Episodes { described: vec![EPISODES.into()], ..Episodes::default() };
    for_each_line(&path, |line| {
        let index = line["episode_index"].as_u64().ok_or("has no `episode_index`")?;
        let length = line["length"].as_u64().and_then(|length| usize::try_from(length).ok());
        let length = length
            .filter(|length| (1..=MAX_ROWS).contains(length))
            .ok_or_else(|| format!("`length` must be a whole number from 1 to {MAX_ROWS}, found {}", line["length"]))?;
        if index != episodes.list.len() as u64 || episodes.list.len() == MAX_EPISODES {
            return Err(format!("expected episode {}, found {index}", episodes.list.len()));
        }
        let numbers = info.of_episode(index);
        let mut clips = Vec::new();
        for key in info.videos() {
            clips.push(VideoPlace { file: episodes.videos.len(), from: 0.0 });
            episodes.videos.push(info.video_file(&numbers, key)?);
        }
        episodes.list.push(Episode { length, file: episodes.files.len(), row: 0, clips });
        episodes.files.push(info.data_file(&numbers)?);
        Ok(())
    })?;
    Ok(episodes)
}

/// Reads the Parquet files below `meta/episodes`, a row an episode.
fn of_rows(folder: &Path, info: &Info) -> Result<Episodes, DataError> {
    let (mut files, mut videos) = (Paths::default(), Paths::default());
    let mut list: Vec<Episode> = Vec::new();
    // The row of the whole set that each file of rows begins with.
    let mut begins: Vec<i64> = Vec::new();
    let paths = parquet_files(&folder.join("meta/episodes"))?;
    let described = paths.iter().filter_map(|path| path.strip_prefix(folder).ok()).map(Path::to_owned).collect();
    for path in paths {
        let columns = Columns::open(&path)?;
        let wrong = |reason: String| DataError::file(&path, reason);
        let [index, length, from, to] =
            ["episode_index", "length", "dataset_from_index", "dataset_to_index"].map(|key| columns.integers(key, 1));
        let (index, length, from, to) = (index?, length?, from?, to?);
        let places = |key: &str| {
            let numbers = ["chunk_index", "file_index"].map(|name| columns.integers(&format!("{key}/{name}"), 1));
            let [chunks, files] = numbers;
            Ok::<_, DataError>((chunks?, files?))
        };
        let data = places("data")?;
        let mut clips = Vec::new();
        for key in info.videos() {
            clips.push((
                key,
                places(&format!("videos/{key}"))?,
                columns.reals(&format!("videos/{key}/from_timestamp"), 1)?,
            ));
        }
        let numbers = |(chunks, files): &(Vec<i64>, Vec<i64>), row: usize| {
            let number = |value: i64| {
                u64::try_from(value).map_err(|_| wrong(format!("row {}: the number of a file is {value}", row + 1)))
            };
            Ok::<_, DataError>([("chunk_index", number(chunks[row])?), ("file_index", number(files[row])?)])
        };
        for row in 0..columns.num_rows() {
            let at = list.len();
            if index[row] != at as i64 {
                return Err(wrong(format!("expected episode {at}, found {}", index[row])));
            }
            let frames = usize::try_from(length[row]).ok().filter(|&frames| frames > 0);
            let frames = frames.filter(|_| to[row].checked_sub(from[row]) == Some(length[row]));
            let frames = frames.ok_or_else(|| {
                wrong(format!(
                    "episode {at}: `length` is {}, but its rows are {} to {}",
                    length[row], from[row], to[row]
                ))
            })?;
            if frames > MAX_ROWS {
                return Err(wrong(format!("episode {at} has {frames} frames, more than {MAX_ROWS}")));
            }
            let data_file = info.data_file(&numbers(&data, row)?).map_err(wrong)?;
            let file = files.number(data_file);
            if file == begins.len() {
                begins.push(from[row]);
            }
            let first = from[row].checked_sub(begins[file]).and_then(|first| usize::try_from(first).ok());
            let first = first.ok_or_else(|| wrong(format!("episode {at} is out of order in its file")))?;
            let mut placed = Vec::with_capacity(clips.len());
            for (key, place, times) in &clips {
                let video = info.video_file(&numbers(place, row)?, key).map_err(wrong)?;
                if !(times[row].is_finite() && times[row] >= 0.0) {
                    return Err(wrong(format!(
                        "episode {at}: videos/{key}/from_timestamp must be 0 or more, found {}",
                        times[row]
                    )));
                }
                placed.push(VideoPlace { file: videos.number(video), from: times[row] });
            }
            list.push(Episode { length: frames, file, row: first, clips: placed });
            if list.len() > MAX_EPISODES {
                return Err(wrong(format!("has more than {MAX_EPISODES} episodes")));
            }
        }
    }
    Ok(Episodes { list, files: files.list, videos: videos.list, described })
}

/// Lists `chunk-*/file-*.parquet` below a folder, by name.
///
/// # Errors
/// The folder cannot be listed, or has none.
fn parquet_files(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let list = |folder: &Path| -> Result<Vec<PathBuf>, DataError> {
        let read = |error| DataError::read(folder, error);
        let entries = std::fs::read_dir(folder).map_err(read)?;
        let mut paths = entries.map(|entry| entry.map(|it| it.path())).collect::<Result<Vec<_>, _>>().map_err(read)?;
        paths.sort();
        Ok(paths)
    };
    let mut found = Vec::new();
    for chunk in list(folder)?.into_iter().filter(|path| path.is_dir()) {
        let is_rows = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "parquet");
        found.extend(list(&chunk)?.into_iter().filter(is_rows));
    }
    match found.is_empty() {
        true => Err(DataError::file(folder, "has no chunk-*/*.parquet, which describe the episodes")),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Three such lengths are more than a number of 64 bits holds.
    #[test]
    fn lengths_that_no_file_holds_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let info = json!({
            "codebase_version": "v2.1", "fps": 10, "total_episodes": 3, "total_frames": 3, "features": {},
            "data_path": "data/{episode_index:06d}.parquet",
        });
        std::fs::create_dir(folder.path().join("meta")).unwrap();
        std::fs::write(folder.path().join("meta/info.json"), info.to_string()).unwrap();
        let read = |length: i64| {
            let lines = (0..3).map(|at| json!({ "episode_index": at, "length": length }).to_string() + "\n");
            std::fs::write(folder.path().join(EPISODES), lines.collect::<String>()).unwrap();
            Episodes::read(folder.path(), &Info::read(folder.path()).unwrap()).map_err(|error| error.to_string())
        };
        assert_eq!(read(1).unwrap().list.len(), 3);
        for length in [i64::MAX, 0, -1] {
            let error = read(length).unwrap_err();
            assert!(
                error.contains(&format!("line 1: `length` must be a whole number from 1 to 16777216, found {length}")),
                "{error}"
            );
        }
    }
}
