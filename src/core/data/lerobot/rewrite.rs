//! Sets made anew: their statistics, or all of them in the layout of version 3.0.

use std::path::Path;
use std::sync::Arc;

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

/// Computes the statistics of all features of numbers over all frames and writes them into `meta/stats.json`; those of pictures
/// stay as they are. Returns the keys of these features.
///
/// # Errors
/// Named by the file: it cannot be read or written.
pub fn write_stats(set: &Arc<Set>) -> Result<Vec<String>, DataError> {
    let features: Vec<&Feature> = set.info().features.iter().filter(|feature| feature.is_numbers()).collect();
    let mut running: Vec<Running> = features.iter().map(|feature| Running::new(feature.width())).collect();
    for_each_step(set, |step| {
        for (feature, running) in features.iter().zip(&mut running) {
            running.add(&step.numbers(&feature.key)?);
        }
        Ok(())
    })?;
    let mut all = Map::new();
    if let Ok(stats) = set.stats() {
        let is_camera = |key: &String| set.info().cameras().any(|feature| feature.key == *key);
        all.extend(stats.0.iter().map(|(key, stats)| (key.clone(), of_feature(stats, is_camera(key)))));
    }
    for (feature, running) in features.iter().zip(&running) {
        all.extend(running.finish().map(|stats| (feature.key.clone(), of_feature(&stats, false))));
    }
    write_json(&set.folder().join(STATS), &Json::Object(all))?;
    Ok(features.into_iter().map(|feature| feature.key.clone()).collect())
}

/// Writes a set as one of version 3.0 into `folder`, with pictures as PNG or as H.264. `progress` is told of every frame.
///
/// # Errors
/// Named by the file: it cannot be read, decoded or written; a feature that is not written.
pub fn rewrite(
    set: &Arc<Set>,
    folder: &Path,
    as_video: bool,
    (decoder, limits): (&dyn MediaDecoder, &Limits),
    mut progress: impl FnMut(),
) -> Result<(), DataError> {
    let fps = set.info().fps;
    if fps.fract() != 0.0 || fps > f64::from(u32::MAX) {
        return Err(DataError::file(set.folder(), format!("{fps} frames a second: a whole number is needed")));
    }
    let features: Vec<Feature> =
        set.info().features.iter().cloned().map(|feature| stored_as(feature, as_video)).collect();
    let mut writer = SetWriter::create(folder, fps as u32, &set.info().robot_type, features.clone())?;
    let mut last: Option<(usize, String)> = None;
    for_each_step(set, |step| {
        let task = step.task()?;
        match last.take() {
            Some((episode, before)) if episode != step.episode() => writer.end_episode(&before)?,
            Some((episode, before)) if before != task => {
                let reason = format!("episode {episode} has several tasks, which are not written");
                return Err(DataError::file(set.folder(), reason));
            }
            _ => {}
        }
        let (mut numbers, mut pictures) = (Vec::new(), Vec::new());
        for feature in &features {
            match feature.dtype {
                Dtype::Image | Dtype::Video => {
                    pictures.push(step.pictures(&feature.key, &[0], decoder, limits)?.swap_remove(0));
                }
                _ => numbers.push(step.numbers(&feature.key)?),
            }
        }
        let (mut numbers, mut pictures) = (numbers.iter(), pictures.iter());
        let value = |feature: &Feature| match feature.dtype {
            Dtype::Image | Dtype::Video => pictures.next().map(Value::Picture),
            _ => numbers.next().map(|values| Value::Numbers(values)),
        };
        let values: Vec<_> = features.iter().map(value).collect();
        let named: Vec<(&str, Value<'_>)> =
            features.iter().zip(values).filter_map(|(feature, value)| Some((feature.key.as_str(), value?))).collect();
        writer.add_frame(&named)?;
        last = Some((step.episode(), task.to_owned()));
        progress();
        Ok(())
    })?;
    if let Some((_, task)) = last {
        writer.end_episode(&task)?;
    }
    writer.finish()?;
    // It goes by features, which are the same.
    let from = set.folder().join(MODALITY);
    match from.is_file() {
        true => std::fs::copy(&from, folder.join(MODALITY)).map(|_| ()).map_err(|error| DataError::read(&from, error)),
        false => Ok(()),
    }
}

/// The feature as it is written: whole numbers of every type as int64, pictures as is asked.
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
        (0..block.num_samples()).try_for_each(|at| take(&block.step(at)))?;
    }
    Ok(())
}
