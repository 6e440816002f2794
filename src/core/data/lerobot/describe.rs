//! The files that describe a whole set: its info, episodes, tasks and statistics.

use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::feature::{Dtype, Feature};
use super::info::{PLACES, Version};
use super::names::INFO;
use super::stats::{FeatureStats, STATS};
use super::summary::Summary;
use super::table::{Cells, TableWriter};
use crate::data::error::DataError;
use crate::files::replace_shared;

/// Files of a folder.
const CHUNK: u64 = 1000;

/// The place of an episode in the videos of a camera.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Placed {
    pub file: u64,
    /// Seconds from the begin of the video to that of the episode and to its end.
    pub from: f64,
    pub to: f64,
}

/// An episode that was written.
pub struct Row {
    pub length: usize,
    pub task: String,
    /// The number of its first row in the whole set.
    pub first: i64,
    /// The number of its file of rows.
    pub file: u64,
    pub clips: Vec<(String, Placed)>,
    /// Statistics by feature, and whether that is pictures.
    pub stats: Vec<(String, FeatureStats, bool)>,
}

/// Returns the folder and the number in it of a file.
pub fn place_of(file: u64) -> [u64; 2] {
    [file / CHUNK, file % CHUNK]
}

/// # Errors
/// Named by the file: its folder cannot be made.
pub fn make_parent(path: &Path) -> Result<(), DataError> {
    let parent = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(|error| DataError::write(parent, error))
}

/// Writes a row an episode.
///
/// # Errors
/// Named by the file: it cannot be written.
pub fn episodes(folder: &Path, rows: &[Row]) -> Result<(), DataError> {
    let whole =
        |value: &dyn Fn(usize, &Row) -> i64| Cells::Integers((0..).zip(rows).map(|(at, row)| value(at, row)).collect());
    let mut columns = vec![
        ("episode_index".to_owned(), whole(&|at, _| at as i64)),
        ("tasks".to_owned(), Cells::TextLists(rows.iter().map(|row| vec![row.task.clone()]).collect())),
        ("length".to_owned(), whole(&|_, row| row.length as i64)),
        ("data/chunk_index".to_owned(), whole(&|_, row| place_of(row.file)[0] as i64)),
        ("data/file_index".to_owned(), whole(&|_, row| place_of(row.file)[1] as i64)),
        ("dataset_from_index".to_owned(), whole(&|_, row| row.first)),
        ("dataset_to_index".to_owned(), whole(&|_, row| row.first + row.length as i64)),
    ];
    let keys = rows.first().map_or(Vec::new(), |row| row.clips.iter().map(|(key, _)| key.clone()).collect());
    for (at, key) in keys.iter().enumerate() {
        let time = |value: fn(&Placed) -> f64| Cells::Reals(rows.iter().map(|row| value(&row.clips[at].1)).collect());
        columns.push((format!("videos/{key}/chunk_index"), whole(&|_, row| place_of(row.clips[at].1.file)[0] as i64)));
        columns.push((format!("videos/{key}/file_index"), whole(&|_, row| place_of(row.clips[at].1.file)[1] as i64)));
        columns.push((format!("videos/{key}/from_timestamp"), time(|placed| placed.from)));
        columns.push((format!("videos/{key}/to_timestamp"), time(|placed| placed.to)));
    }
    let first = rows.first().map_or([].as_slice(), |row| row.stats.as_slice());
    for (at, (key, stats, is_of_pictures)) in first.iter().enumerate() {
        for name in stats.keys() {
            let width = stats[name].len();
            let values = rows.iter().filter_map(|row| row.stats.get(at)?.1.get(name)).flatten().copied();
            let cells = match name.as_str() {
                "count" => Cells::IntegerLists(1, values.map(|value| value as i64).collect()),
                _ if *is_of_pictures => Cells::NestedLists(width, values.collect()),
                _ => Cells::RealLists(width, values.collect()),
            };
            columns.push((format!("stats/{key}/{name}"), cells));
        }
    }
    columns.push(("meta/episodes/chunk_index".to_owned(), whole(&|_, _| 0)));
    columns.push(("meta/episodes/file_index".to_owned(), whole(&|_, _| 0)));
    let path = folder.join("meta/episodes/chunk-000/file-000.parquet");
    write(&path, &columns, &[])
}

/// Writes the texts of tasks, which are the index of a pandas table.
///
/// # Errors
/// Named by the file: it cannot be written.
pub fn tasks(folder: &Path, tasks: &[String]) -> Result<(), DataError> {
    let column = |name: &str, kind: &str, numpy: &str| json!({ "name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy, "metadata": null });
    let note = json!({
        "index_columns": ["task"],
        "column_indexes": [{ "name": null, "field_name": null, "pandas_type": "unicode", "numpy_type": "object", "metadata": { "encoding": "UTF-8" } }],
        "columns": [column("task_index", "int64", "int64"), column("task", "unicode", "object")],
        "creator": { "library": "loongforge", "version": env!("CARGO_PKG_VERSION") },
        "pandas_version": "2.0.0",
    });
    let columns = [
        ("task_index".to_owned(), Cells::Integers((0..tasks.len() as i64).collect())),
        ("task".to_owned(), Cells::Texts(tasks.to_vec())),
    ];
    write(&folder.join("meta/tasks.parquet"), &columns, &[("pandas", note.to_string())])
}

/// Writes the statistics of the whole set.
///
/// # Errors
/// Named by the file: it cannot be written.
pub fn stats<'a>(folder: &Path, summaries: impl Iterator<Item = (String, &'a Summary)>) -> Result<(), DataError> {
    let mut features = Map::new();
    for (key, summary) in summaries {
        let Some(stats) = summary.finish().filter(|stats| stats.get("min").is_some_and(|min| !min.is_empty())) else {
            continue;
        };
        let is_of_pictures = matches!(summary, Summary::Pictures(_));
        features.insert(key, of_feature(&stats, is_of_pictures));
    }
    write_json(&folder.join(STATS), &Json::Object(features))
}

/// Returns the statistics of a feature as lerobot writes them: those of pictures as `[channels, 1, 1]`.
pub fn of_feature(stats: &FeatureStats, is_of_pictures: bool) -> Json {
    let value = |(name, values): (&String, &Vec<f64>)| {
        let value = match name.as_str() {
            "count" => values.iter().map(|&value| json!(value as i64)).collect(),
            _ if is_of_pictures => values.iter().map(|&value| json!([[value]])).collect(),
            _ => json!(values),
        };
        (name.clone(), value)
    };
    Json::Object(stats.iter().map(value).collect())
}

/// Writes the info: episodes, frames and tasks of the set, and its features.
///
/// # Errors
/// Named by the file: it cannot be written.
pub fn info(
    folder: &Path,
    (robot_type, fps): (&str, u32),
    features: &[Feature],
    (num_episodes, num_frames, num_tasks): (usize, u64, usize),
) -> Result<(), DataError> {
    let mut described = Map::new();
    for feature in features {
        let names = if feature.names.is_empty() { Json::Null } else { json!(feature.names) };
        let mut own = json!({ "dtype": feature.dtype.name(), "shape": feature.shape, "names": names });
        if feature.dtype == Dtype::Video {
            own["info"] = json!({
                "video.height": feature.shape[0], "video.width": feature.shape[1], "video.codec": "h264",
                "video.pix_fmt": "yuv420p", "video.is_depth_map": false, "video.fps": fps, "video.channels": 3,
                "has_audio": false,
            });
        }
        described.insert(feature.key.clone(), own);
    }
    for name in PLACES {
        let dtype = if name == PLACES[0] { "float32" } else { "int64" };
        described.insert(name.to_owned(), json!({ "dtype": dtype, "shape": [1], "names": null }));
    }
    let has_videos = features.iter().any(|feature| feature.dtype == Dtype::Video);
    let video_path = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4";
    let info = json!({
        "codebase_version": Version::V30.name(),
        "robot_type": robot_type,
        "total_episodes": num_episodes,
        "total_frames": num_frames,
        "total_tasks": num_tasks,
        "chunks_size": CHUNK,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": fps,
        "splits": { "train": format!("0:{num_episodes}") },
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": if has_videos { json!(video_path) } else { Json::Null },
        "features": described,
    });
    write_json(&folder.join(INFO), &info)
}

fn write(path: &Path, columns: &[(String, Cells)], notes: &[(&str, String)]) -> Result<(), DataError> {
    make_parent(path)?;
    let mut table = TableWriter::create(path, columns, notes)?;
    table.add(columns)?;
    table.finish()
}

/// Writes a file of JSON in one piece.
///
/// # Errors
/// Named by the file: it cannot be written.
pub fn write_json(path: &Path, json: &Json) -> Result<(), DataError> {
    make_parent(path)?;
    let text = serde_json::to_string_pretty(json).map_err(|error| DataError::file(path, error))?;
    replace_shared(path, text.as_bytes(), 0o644).map_err(|error| DataError::write(path, error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn others_can_read_what_describes_a_set() {
        let dir = tempfile::tempdir().unwrap();
        let (usual, info) = (dir.path().join("usual.json"), dir.path().join("meta/info.json"));
        std::fs::write(&usual, "{}").unwrap();
        write_json(&info, &serde_json::json!({"fps": 10})).unwrap();
        let [usual, info] = [usual, info].map(|path| path.metadata().unwrap().permissions().mode());
        assert_eq!(info & 0o777, usual & 0o644);
    }
}
