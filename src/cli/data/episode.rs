//! `loongforge data inspect SET --sheet FILE`: an episode of a LeRobot set as a picture.

use anyhow::Result;
use loongforge_core::data::lerobot::{Feature, Set, Step};
use loongforge_core::data::{Limits, MediaDecoder};
use loongforge_core::observe::{Strip, Track, episode_sheet};
use loongforge_core::robot::{ACTION, STATE};
use std::path::Path;
use std::sync::Arc;

/// Frames of a camera on the sheet, and numbers of a feature.
const NUM_FRAMES: usize = 8;
const MAX_NUMBERS: usize = 32;

/// Draws an episode of the set in `folder` into the PNG `sheet`; returns what was drawn, in a line.
///
/// # Errors
/// The folder is no set or has no such episode, a file of it is damaged, or the sheet cannot be written.
pub fn draw(folder: &Path, episode: usize, decoder: &dyn MediaDecoder, sheet: &Path) -> Result<String> {
    let set = Arc::new(Set::open(folder)?);
    let first = set.step(episode, 0)?;
    let length = set.episodes()[episode].length;
    let shown = NUM_FRAMES.min(length);
    // The first and the last frame, and others evenly between them.
    let places: Vec<i64> = (0..shown).map(|at| (at * (length - 1) / (shown - 1).max(1)) as i64).collect();
    let mut strips = Vec::new();
    for camera in set.info().cameras() {
        let frames = first.pictures(&camera.key, &places, decoder, &Limits::NONE)?;
        strips.push(Strip { name: camera.key.clone(), frames });
    }
    let (mut tracks, mut left_out) = (Vec::new(), 0);
    for key in [ACTION, STATE] {
        let Some(feature) = set.info().feature(key).filter(|feature| feature.is_numbers()) else { continue };
        left_out += feature.width().saturating_sub(MAX_NUMBERS);
        tracks.extend(numbers(&first, feature, length)?);
    }
    let title = format!("episode {episode}: {} ({length} frames, {} a second)", first.task()?, set.info().fps);
    episode_sheet(sheet, &title, &strips, &tracks)?;
    let more = if left_out > 0 { format!("; {left_out} more numbers are not drawn") } else { String::new() };
    Ok(format!("{}: {title}{more}", sheet.display()))
}

/// Returns a track for each of the feature's first numbers.
fn numbers(first: &Step, feature: &Feature, length: usize) -> Result<Vec<Track>> {
    let all: Vec<i64> = (0..length as i64).collect();
    let (values, width) = (first.window(&feature.key, &all)?.values, feature.width());
    let name = |at: usize| feature.names.get(at).cloned().unwrap_or_else(|| at.to_string());
    let track = |at: usize| Track {
        name: format!("{} {}", feature.key.rsplit('.').next().unwrap_or_default(), name(at)),
        values: values.iter().skip(at).step_by(width).copied().collect(),
    };
    Ok((0..width.min(MAX_NUMBERS)).map(track).collect())
}
