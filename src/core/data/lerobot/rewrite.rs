//! Sets made anew: their statistics, or all of them in the layout of version 3.0.

use std::path::Path;
use std::sync::Arc;

use image::RgbImage;
use serde_json::{Map, Value as Json};

use super::describe::{of_feature, write_json};
use super::feature::{Dtype, Feature, Value};
use super::modality::MODALITY;
use super::running::Running;
use super::set::Set;
use super::stats::STATS;
use super::step::Step;
use super::writer::SetWriter;
use crate::data::decoder::MediaDecoder;
use crate::data::error::DataError;
use crate::data::limits::Limits;

/// Tells of which features there are statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Computed {
    /// Keys of the features whose statistics were computed.
    pub keys: Vec<String>,
    /// Says of each other feature of numbers which of them is not finite.
    pub left_out: Vec<String>,
}

/// Computes the statistics of all features of numbers over all frames and writes them into `meta/stats.json`; those of pictures, and of
/// features with numbers that are not finite, stay as they are.
///
/// # Errors
/// Named by the file: it cannot be read or written; there are statistics that cannot be read.
pub fn write_stats(set: &Arc<Set>) -> Result<Computed, DataError> {
    let features: Vec<&Feature> = set.info().features.iter().filter(|feature| feature.is_numbers()).collect();
    let mut running: Vec<Result<Running, String>> = features.iter().map(|it| Ok(Running::new(it.width()))).collect();
    for_each_step(set, |step| {
        for (feature, running) in features.iter().zip(&mut running) {
            let Ok(sums) = running else { continue };
            let numbers = step.numbers(&feature.key)?;
            match numbers.iter().find(|number| !number.is_finite()) {
                None => sums.add(&numbers),
                Some(number) => {
                    let (key, frame, episode) = (&feature.key, step.frame(), step.episode());
                    *running = Err(format!("{key} has {number} in frame {frame} of episode {episode}"));
                }
            }
        }
        Ok(())
    })?;
    let mut all = Map::new();
    match set.stats() {
        Ok(stats) => {
            let is_camera = |key: &String| set.info().cameras().any(|feature| feature.key == *key);
            all.extend(stats.0.iter().map(|(key, stats)| (key.clone(), of_feature(stats, is_camera(key)))));
        }
        // Those of pictures would be lost with the file.
        Err(error) if set.folder().join(STATS).exists() => return Err(error),
        Err(_) => {}
    }
    let mut computed = Computed::default();
    for (feature, running) in features.iter().zip(running) {
        match running {
            Ok(running) => {
                all.extend(running.finish().map(|stats| (feature.key.clone(), of_feature(&stats, false))));
                computed.keys.push(feature.key.clone());
            }
            Err(reason) => computed.left_out.push(reason),
        }
    }
    write_json(&set.folder().join(STATS), &Json::Object(all))?;
    Ok(computed)
}

/// Writes a set as one of version 3.0 into `folder`, with pictures as PNG or as H.264. `progress` is told of every frame.
///
/// # Errors
/// Named by the file: it cannot be read, decoded or written; a feature that is not written; frames at another rate than the set's.
pub fn rewrite(
    set: &Arc<Set>,
    folder: &Path,
    as_video: bool,
    (decoder, limits): (&dyn MediaDecoder, &Limits),
    mut progress: impl FnMut(),
) -> Result<(), DataError> {
    let fps = set.info().fps;
    if fps.fract() != 0.0 || fps > f64::from(u32::MAX) {
        return Err(DataError::file(
            set.folder(),
            format!("has {fps} frames per second, but must have a whole number"),
        ));
    }
    let features: Vec<Feature> =
        set.info().features.iter().cloned().map(|feature| stored_as(feature, as_video)).collect();
    expect_writable(set)?;
    let is_there = folder.exists();
    let writer = SetWriter::create(folder, fps as u32, &set.info().robot_type, features.clone())?;
    let written = fill(writer, set, &features, (decoder, limits), &mut progress).and_then(|()| {
        // It goes by features, which are the same.
        let from = set.folder().join(MODALITY);
        match from.is_file() {
            true => {
                std::fs::copy(&from, folder.join(MODALITY)).map(|_| ()).map_err(|error| DataError::read(&from, error))
            }
            false => Ok(()),
        }
    });
    if written.is_err() {
        // The folder was empty: what is in it is of this set, and would be in the way of the next attempt.
        clear(folder, is_there);
    }
    written
}

/// Writes all frames with `writer`.
fn fill(
    mut writer: SetWriter,
    set: &Arc<Set>,
    features: &[Feature],
    (decoder, limits): (&dyn MediaDecoder, &Limits),
    progress: &mut impl FnMut(),
) -> Result<(), DataError> {
    let mut last: Option<(usize, String)> = None;
    for_each_step(set, |step| {
        let task = step.task()?;
        if let Some((_, before)) = last.take_if(|(episode, _)| *episode != step.episode()) {
            writer.end_episode(&before)?;
        }
        let values = features.iter().map(|feature| Owned::of(step, feature, decoder, limits));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        let named = features.iter().zip(&values).map(|(feature, value)| (feature.key.as_str(), value.value()));
        writer.add_frame(&named.collect::<Vec<_>>())?;
        last = Some((step.episode(), task.to_owned()));
        progress();
        Ok(())
    })?;
    if let Some((_, task)) = last {
        writer.end_episode(&task)?;
    }
    writer.finish()
}

/// A value that was read of a frame, with all its digits.
enum Owned {
    Numbers(Vec<f32>),
    Whole(Vec<i64>),
    Reals(Vec<f64>),
    Text(String),
    Picture(RgbImage),
}

impl Owned {
    /// `feature` is as it is written.
    fn of(step: &Step, feature: &Feature, decoder: &dyn MediaDecoder, limits: &Limits) -> Result<Self, DataError> {
        Ok(match feature.dtype {
            Dtype::Image | Dtype::Video => {
                Self::Picture(step.pictures(&feature.key, &[0], decoder, limits)?.swap_remove(0))
            }
            Dtype::String => Self::Text(step.text(&feature.key)?),
            Dtype::Int64 => Self::Whole(step.whole(feature)?),
            Dtype::Float64 => Self::Reals(step.reals(feature)?),
            _ => Self::Numbers(step.numbers(&feature.key)?),
        })
    }

    fn value(&self) -> Value<'_> {
        match self {
            Self::Numbers(numbers) => Value::Numbers(numbers),
            Self::Whole(numbers) => Value::Whole(numbers),
            Self::Reals(numbers) => Value::Reals(numbers),
            Self::Text(text) => Value::Text(text),
            Self::Picture(picture) => Value::Picture(picture),
        }
    }
}

/// Checks all frames before the first picture is decoded, which takes much longer.
///
/// # Errors
/// An episode has several tasks, of which a set that is written here has one; or a frame comes at another time than the set's rate says,
/// at which frames are written.
fn expect_writable(set: &Arc<Set>) -> Result<(), DataError> {
    let mut last: Option<(usize, String)> = None;
    for_each_step(set, |step| {
        step.expect_rate()?;
        let task = step.task()?;
        match last.as_ref().filter(|(episode, before)| *episode == step.episode() && before != task) {
            Some((episode, _)) => {
                let reason = format!("episode {episode} has several tasks, which cannot be written");
                return Err(DataError::file(set.folder(), reason));
            }
            None => last = Some((step.episode(), task.to_owned())),
        }
        Ok(())
    })
}

/// Removes what is in a folder, and the folder itself unless it was there before.
fn clear(folder: &Path, is_there: bool) {
    // Why it was not written is said; what cannot be removed is seen by the next attempt.
    if !is_there {
        let _ = std::fs::remove_dir_all(folder);
        return;
    }
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let _ = match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => std::fs::remove_dir_all(entry.path()),
            false => std::fs::remove_file(entry.path()),
        };
    }
}

/// Returns the feature as it is written: whole numbers of every type as int64, pictures as is asked.
fn stored_as(feature: Feature, as_video: bool) -> Feature {
    let dtype = match feature.dtype {
        Dtype::Image | Dtype::Video if as_video => Dtype::Video,
        Dtype::Image | Dtype::Video => Dtype::Image,
        Dtype::Int(_) => Dtype::Int64,
        other => other,
    };
    Feature { dtype, ..feature }
}

fn for_each_step(set: &Arc<Set>, mut take: impl FnMut(&Step) -> Result<(), DataError>) -> Result<(), DataError> {
    for number in 0..set.blocks(0).len() {
        let block = set.open_block(number, 0)?;
        for at in 0..block.num_samples() {
            let step = block.step(at);
            // What is wrong with a frame names neither it nor its set.
            take(&step).map_err(|error| match error {
                DataError::Line(reason) => DataError::file(
                    set.folder(),
                    format!("frame {} of episode {}: {reason}", step.frame(), step.episode()),
                ),
                other => other,
            })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::table::{Cells, TableWriter};
    use super::*;
    use crate::data::in_process::InProcess;

    #[test]
    fn frames_at_another_rate_than_their_set_are_not_converted() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
        let mut writer = SetWriter::create(&from, 10, "arm", vec![Feature::vector("action", &["x"])]).unwrap();
        for at in [0.0, 1.0] {
            writer.add_frame(&[("action", Value::Numbers(&[at]))]).unwrap();
        }
        writer.end_episode("go").unwrap();
        writer.finish().unwrap();
        // How many frames were read in vain, which may be hours of decoding, is returned with the result.
        let convert = || {
            let (set, mut num_frames) = (Arc::new(Set::open(&from).unwrap()), 0);
            let written = rewrite(&set, &to, false, (&InProcess, &Limits::NONE), || num_frames += 1);
            (written.map_err(|error| error.to_string()), num_frames)
        };
        let info = from.join("meta/info.json");
        let text = std::fs::read(&info).unwrap();
        let mut slower: Json = serde_json::from_slice(&text).unwrap();
        slower["fps"] = 5.into();
        std::fs::write(&info, slower.to_string()).unwrap();
        let (written, num_frames) = convert();
        let error = written.unwrap_err();
        assert_eq!(num_frames, 0, "{error}");
        assert!(error.contains("frame 1 of episode 0: frame 1 comes 0.1000 s after the one before it"), "{error}");
        assert!(error.contains("it should be 0.2000 s") && !to.exists(), "{error}");
        std::fs::write(&info, &text).unwrap();
        assert_eq!(convert(), (Ok(()), 2));
    }

    #[test]
    fn numbers_that_are_not_finite_have_no_statistics() {
        let folder = tempfile::tempdir().unwrap();
        let features = ["action", "observation.state"].map(|key| Feature::vector(key, &["x", "y"]));
        let mut writer = SetWriter::create(folder.path(), 10, "arm", features.to_vec()).unwrap();
        for at in [0.0, 1.0, 2.0] {
            let numbers = [at, 0.5];
            let values = ["action", "observation.state"].map(|key| (key, Value::Numbers(&numbers)));
            writer.add_frame(&values).unwrap();
        }
        writer.end_episode("go").unwrap();
        writer.finish().unwrap();
        // Other programs write what the writer refuses.
        let whole = |values: [i64; 3]| Cells::Integers(values.to_vec());
        let columns = [
            ("action", Cells::FloatLists(2, vec![0.0, 0.5, f32::NAN, 0.5, 2.0, 0.5])),
            ("observation.state", Cells::FloatLists(2, vec![4.0, 0.5, 5.0, 0.5, 6.0, 0.5])),
            ("timestamp", Cells::Floats(vec![0.0, 0.1, 0.2])),
            ("frame_index", whole([0, 1, 2])),
            ("episode_index", whole([0; 3])),
            ("index", whole([0, 1, 2])),
            ("task_index", whole([0; 3])),
        ];
        let columns = columns.map(|(name, cells)| (name.to_owned(), cells));
        let path = folder.path().join("data/chunk-000/file-000.parquet");
        let mut table = TableWriter::create(&path, &columns, &[]).unwrap();
        table.add(&columns).unwrap();
        table.finish().unwrap();
        let set = Arc::new(Set::open(folder.path()).unwrap());
        let Computed { keys, left_out } = write_stats(&set).unwrap();
        assert_eq!(keys, ["observation.state"]);
        assert_eq!(left_out, ["action has NaN in frame 1 of episode 0"]);
        let mean = |key: &str| set.stats().unwrap().get(key, "mean").unwrap().to_vec();
        assert_eq!((mean("observation.state"), mean("action")), (vec![5.0, 0.5], vec![1.0, 0.5]));
    }
}
