//! Writes a set in the layout of version 3.0.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use image::{ImageFormat, RgbImage};

use super::clips::Clips;
use super::describe::{self, Row};
use super::feature::{Dtype, Feature, Value};
use super::info::PLACES;
use super::summary::Summary;
use super::table::{Cells, TableWriter};
use crate::data::error::DataError;
use crate::text::counted;

/// Bytes of a file of rows, after which another one is begun.
const DATA_BYTES: u64 = 100 << 20;
/// Pixels of a side of a video, at least.
const MIN_SIDE: usize = 16;

/// A set that is being written.
pub struct SetWriter {
    folder: PathBuf,
    fps: u32,
    robot_type: String,
    features: Vec<Feature>,
    /// The frames of the current episode, a buffer a feature.
    frames: Vec<Buffer>,
    num_frames: usize,
    /// Statistics of the current episode and of the whole set.
    summaries: Vec<[Summary; 2]>,
    /// Statistics of the features that every set has.
    places: Vec<Summary>,
    rows: Vec<Row>,
    tasks: Vec<String>,
    data: Option<TableWriter>,
    num_files: u64,
    num_total: u64,
    clips: BTreeMap<String, Clips>,
}

/// Values of a feature in the frames of an episode.
enum Buffer {
    Numbers(Vec<f32>),
    Whole(Vec<i64>),
    Reals(Vec<f64>),
    Texts(Vec<String>),
    Pictures(Vec<Vec<u8>>),
    /// Frames of a video, which are in it already.
    Video,
}

impl SetWriter {
    /// Begins a set in `folder`, which must be new or empty, of `fps` frames a second. `features` are those of the user:
    /// `timestamp`, `frame_index`, `episode_index`, `index` and `task_index` are written too.
    ///
    /// # Errors
    /// The folder holds something or cannot be written, or a feature cannot be stored.
    pub fn create(folder: &Path, fps: u32, robot_type: &str, features: Vec<Feature>) -> Result<Self, DataError> {
        let wrong = |reason: String| DataError::file(folder, reason);
        if fps == 0 {
            return Err(wrong("a set must have more than 0 frames per second".to_owned()));
        }
        for (at, feature) in features.iter().enumerate() {
            storable(feature).map_err(|reason| wrong(format!("feature {}: {reason}", feature.key)))?;
            if PLACES.contains(&feature.key.as_str()) || features[..at].iter().any(|other| other.key == feature.key) {
                return Err(wrong(format!("feature {}: the name is reserved or used twice", feature.key)));
            }
        }
        if folder.exists()
            && std::fs::read_dir(folder).map_err(|error| DataError::read(folder, error))?.next().is_some()
        {
            return Err(wrong("is not empty: a set is written into a folder of its own".to_owned()));
        }
        std::fs::create_dir_all(folder.join("meta")).map_err(|error| DataError::write(folder, error))?;
        let videos = features.iter().filter(|feature| feature.dtype == Dtype::Video);
        let clips = videos.map(|it| (it.key.clone(), Clips::new(folder, &it.key, (it.shape[1], it.shape[0]), fps)));
        Ok(Self {
            folder: folder.to_owned(),
            fps,
            robot_type: robot_type.to_owned(),
            frames: features.iter().map(Buffer::of).collect(),
            num_frames: 0,
            summaries: features.iter().map(|it| [summary(it), summary(it)]).collect(),
            places: PLACES.iter().map(|_| Summary::of_numbers(1)).collect(),
            rows: Vec::new(),
            tasks: Vec::new(),
            data: None,
            num_files: 0,
            num_total: 0,
            clips: clips.collect(),
            features,
        })
    }

    /// Adds a frame to the current episode: a value for every feature, by its key.
    ///
    /// # Errors
    /// A value is missing, of another shape or not finite, or a file cannot be written.
    pub fn add_frame(&mut self, values: &[(&str, Value<'_>)]) -> Result<(), DataError> {
        let place = format!("frame {} of episode {}", self.num_frames, self.rows.len());
        let wrong = |key: &str, reason: String| DataError::file(&self.folder, format!("{place}: {key} {reason}"));
        if let Some((key, _)) = values.iter().find(|(key, _)| !self.features.iter().any(|it| it.key == *key)) {
            return Err(wrong(key, "is not a feature of the set".to_owned()));
        }
        // Nothing is kept of a frame that is refused.
        let mut found = Vec::with_capacity(self.features.len());
        for feature in &self.features {
            let value = values.iter().find(|(key, _)| *key == feature.key).map(|(_, value)| *value);
            let value = value.ok_or_else(|| wrong(&feature.key, "is missing".to_owned()))?;
            fits(feature, value).map_err(|reason| wrong(&feature.key, reason))?;
            found.push(value);
        }
        let is_first = self.num_frames == 0;
        for (at, value) in found.into_iter().enumerate() {
            let key = &self.features[at].key;
            match (value, &mut self.frames[at]) {
                (Value::Numbers(numbers), Buffer::Numbers(all)) => all.extend_from_slice(numbers),
                (Value::Numbers(numbers), Buffer::Whole(all)) => all.extend(numbers.iter().map(|&it| it as i64)),
                (Value::Numbers(numbers), Buffer::Reals(all)) => all.extend(numbers.iter().map(|&it| f64::from(it))),
                (Value::Whole(numbers), Buffer::Whole(all)) => all.extend_from_slice(numbers),
                (Value::Reals(numbers), Buffer::Reals(all)) => all.extend_from_slice(numbers),
                (Value::Text(text), Buffer::Texts(all)) => all.push(text.to_owned()),
                (Value::Picture(picture), Buffer::Pictures(all)) => {
                    self.summaries[at][0].add_picture(picture);
                    all.push(png(picture).map_err(|reason| wrong(key, reason))?);
                }
                (Value::Picture(picture), Buffer::Video) => {
                    self.summaries[at][0].add_picture(picture);
                    if let Some(clips) = self.clips.get_mut(key) {
                        clips.add(picture, is_first)?;
                    }
                }
                _ => return Err(wrong(key, "has the wrong type".to_owned())),
            }
        }
        self.num_frames += 1;
        Ok(())
    }

    /// Ends the current episode, in which this was the task.
    ///
    /// # Errors
    /// It has no frames, or a file cannot be written.
    pub fn end_episode(&mut self, task: &str) -> Result<(), DataError> {
        let (episode, length) = (self.rows.len(), self.num_frames);
        if length == 0 {
            return Err(DataError::file(&self.folder, format!("episode {episode} has no frames")));
        }
        let task_index = self.tasks.iter().position(|known| known == task).unwrap_or_else(|| {
            self.tasks.push(task.to_owned());
            self.tasks.len() - 1
        });
        let first = self.num_total as i64;
        let timestamps: Vec<f32> = (0..length).map(|at| (at as f64 / f64::from(self.fps)) as f32).collect();
        let whole: [Vec<i64>; 4] = [
            (0..length as i64).collect(),
            vec![episode as i64; length],
            (first..first + length as i64).collect(),
            vec![task_index as i64; length],
        ];
        let mut stats = Vec::new();
        for (at, feature) in self.features.iter().enumerate() {
            let [of_episode, of_all] = &mut self.summaries[at];
            for summary in [&mut *of_episode, &mut *of_all] {
                match &self.frames[at] {
                    Buffer::Numbers(numbers) => summary.add_numbers(numbers),
                    Buffer::Whole(numbers) => summary.add_numbers(&reals(numbers)),
                    Buffer::Reals(numbers) => summary.add_numbers(numbers),
                    Buffer::Texts(_) | Buffer::Pictures(_) | Buffer::Video => {}
                }
            }
            of_all.join(of_episode);
            let is_of_pictures = matches!(of_episode, Summary::Pictures(_));
            let own = of_episode.finish().filter(|_| feature.dtype != Dtype::String);
            stats.extend(own.map(|own| (feature.key.clone(), own, is_of_pictures)));
            *of_episode = summary(feature);
        }
        let times = timestamps.iter().map(|&time| f64::from(time)).collect();
        let places = [times].into_iter().chain(whole.iter().map(|values| reals(values)));
        for ((name, summary), values) in PLACES.iter().zip(&mut self.places).zip(places) {
            let mut own = Summary::of_numbers(1);
            own.add_numbers(&values);
            summary.add_numbers(&values);
            stats.extend(own.finish().map(|own| ((*name).to_owned(), own, false)));
        }
        let mut columns: Vec<(String, Cells)> = Vec::new();
        for (feature, buffer) in self.features.iter().zip(&mut self.frames) {
            columns.extend(buffer.take(feature).map(|cells| (feature.key.clone(), cells)));
        }
        columns.push((PLACES[0].to_owned(), Cells::Floats(timestamps)));
        let whole = PLACES[1..].iter().zip(whole);
        columns.extend(whole.map(|(name, values)| ((*name).to_owned(), Cells::Integers(values))));
        let file = self.write_rows(&columns)?;
        let mut clips = Vec::new();
        for (key, video) in &mut self.clips {
            clips.push((key.clone(), video.end_episode()?));
        }
        self.rows.push(Row { length, task: task.to_owned(), first, file, clips, stats });
        self.num_total += length as u64;
        self.num_frames = 0;
        Ok(())
    }

    /// Writes what describes the whole set; without it the folder is no set.
    ///
    /// # Errors
    /// There are no episodes, the last one was not ended, or a file cannot be written.
    pub fn finish(mut self) -> Result<(), DataError> {
        if self.num_frames > 0 || self.rows.is_empty() {
            let reason = format!(
                "has {}, and {} of one that was not finished",
                counted(self.rows.len() as u64, "episode"),
                counted(self.num_frames as u64, "frame")
            );
            return Err(DataError::file(&self.folder, reason));
        }
        if let Some(data) = self.data.take() {
            data.finish()?;
        }
        for clips in self.clips.values_mut() {
            clips.finish()?;
        }
        describe::episodes(&self.folder, &self.rows)?;
        describe::tasks(&self.folder, &self.tasks)?;
        let of_places = PLACES.iter().map(|name| (*name).to_owned()).zip(self.places.iter());
        let of_features = self.features.iter().map(|it| it.key.clone()).zip(self.summaries.iter().map(|[_, all]| all));
        describe::stats(&self.folder, of_features.chain(of_places))?;
        let sizes = (self.rows.len(), self.num_total, self.tasks.len());
        describe::info(&self.folder, (&self.robot_type, self.fps), &self.features, sizes)
    }

    /// Writes the rows of an episode; the number of their file.
    fn write_rows(&mut self, columns: &[(String, Cells)]) -> Result<u64, DataError> {
        if self.data.as_ref().is_some_and(|data| data.num_bytes() > DATA_BYTES)
            && let Some(full) = self.data.take()
        {
            full.finish()?;
        }
        let data = match &mut self.data {
            Some(data) => data,
            none => {
                let [chunk, file] = describe::place_of(self.num_files);
                let path = self.folder.join(format!("data/chunk-{chunk:03}/file-{file:03}.parquet"));
                describe::make_parent(&path)?;
                self.num_files += 1;
                none.insert(TableWriter::create(&path, columns, &[])?)
            }
        };
        data.add(columns)?;
        Ok(self.num_files - 1)
    }
}

impl Buffer {
    fn of(feature: &Feature) -> Self {
        match feature.dtype {
            Dtype::Image => Self::Pictures(Vec::new()),
            Dtype::Video => Self::Video,
            Dtype::String => Self::Texts(Vec::new()),
            Dtype::Int64 => Self::Whole(Vec::new()),
            Dtype::Float64 => Self::Reals(Vec::new()),
            _ => Self::Numbers(Vec::new()),
        }
    }

    /// Returns the column of the rows of an episode; a video has none.
    fn take(&mut self, feature: &Feature) -> Option<Cells> {
        let (width, is_one) = (feature.width(), feature.width() == 1);
        Some(match self {
            Self::Video => return None,
            Self::Texts(texts) => Cells::Texts(std::mem::take(texts)),
            Self::Pictures(files) => Cells::Pictures(std::mem::take(files)),
            Self::Whole(numbers) if is_one => Cells::Integers(std::mem::take(numbers)),
            Self::Whole(numbers) => Cells::IntegerLists(width, std::mem::take(numbers)),
            Self::Reals(numbers) if is_one => Cells::Reals(std::mem::take(numbers)),
            Self::Reals(numbers) => Cells::RealLists(width, std::mem::take(numbers)),
            Self::Numbers(numbers) => {
                let numbers = std::mem::take(numbers);
                let flags = || numbers.iter().map(|&it| it != 0.0).collect();
                match (&feature.dtype, is_one) {
                    (Dtype::Bool, true) => Cells::Flags(flags()),
                    (Dtype::Bool, false) => Cells::FlagLists(width, flags()),
                    (_, true) => Cells::Floats(numbers),
                    (_, false) => Cells::FloatLists(width, numbers),
                }
            }
        })
    }
}

fn reals(numbers: &[i64]) -> Vec<f64> {
    numbers.iter().map(|&number| number as f64).collect()
}

fn summary(feature: &Feature) -> Summary {
    match feature.dtype {
        Dtype::Image | Dtype::Video => Summary::of_pictures(),
        Dtype::String => Summary::of_numbers(0),
        _ => Summary::of_numbers(feature.width()),
    }
}

/// # Errors
/// The reason: a type or shape that is not written.
fn storable(feature: &Feature) -> Result<(), String> {
    let (dtype, shape) = (feature.dtype.name(), &feature.shape);
    let is_picture = matches!(feature.dtype, Dtype::Image | Dtype::Video);
    match &feature.dtype {
        Dtype::Int(_) | Dtype::Other(_) => Err(format!("the type {dtype} cannot be written")),
        #[cfg(not(feature = "mp4"))]
        Dtype::Video => Err("this program was built without the feature `mp4`, which writes videos".to_owned()),
        _ if is_picture && (shape.len() != 3 || shape[2] != 3 || shape.contains(&0)) => {
            Err(format!("pictures must have the shape [rows, columns, 3], found {shape:?}"))
        }
        Dtype::Video if shape[..2].iter().any(|side| side % 2 == 1 || *side < MIN_SIDE) => {
            Err(format!("pictures of {}×{}: H.264 needs even sides of {MIN_SIDE} pixels or more", shape[1], shape[0]))
        }
        _ if !is_picture && (shape.len() != 1 || shape[0] == 0) => {
            Err(format!("vectors must have the shape [numbers], found {shape:?}"))
        }
        Dtype::String if shape[0] != 1 => Err("texts must have the shape [1]".to_owned()),
        _ => Ok(()),
    }
}

/// # Errors
/// The reason: a value of another type or shape, or a number that is not finite.
fn fits(feature: &Feature, value: Value<'_>) -> Result<(), String> {
    match (value, &feature.dtype) {
        (Value::Picture(picture), Dtype::Image | Dtype::Video) => {
            let (columns, rows) = picture.dimensions();
            match [rows as usize, columns as usize] == feature.shape[..2] {
                true => Ok(()),
                false => Err(format!("is {rows}×{columns} pixels, but the feature's shape is {:?}", feature.shape)),
            }
        }
        (Value::Text(_), Dtype::String) => Ok(()),
        (Value::Numbers(numbers), _) if feature.is_numbers() => {
            are_of(feature, numbers.len(), numbers.iter().map(|&it| f64::from(it)))
        }
        (Value::Reals(numbers), Dtype::Float64) => are_of(feature, numbers.len(), numbers.iter().copied()),
        (Value::Whole(numbers), Dtype::Int64) => are_of(feature, numbers.len(), std::iter::empty()),
        _ => Err(format!("is not a value of the type {}", feature.dtype.name())),
    }
}

/// # Errors
/// The reason: another number of values, or one that is not finite.
fn are_of(feature: &Feature, count: usize, mut values: impl Iterator<Item = f64>) -> Result<(), String> {
    match values.find(|value| !value.is_finite()) {
        Some(value) => Err(format!("has {value}, which is not finite")),
        None if count != feature.width() => Err(format!("has {count} numbers, but needs {}", feature.width())),
        None => Ok(()),
    }
}

fn png(picture: &RgbImage) -> Result<Vec<u8>, String> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    picture.write_to(&mut bytes, ImageFormat::Png).map_err(|error| error.to_string())?;
    Ok(bytes.into_inner())
}
