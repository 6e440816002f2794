//! Reads everything and decodes everything, so that training finds nothing new.

use std::path::Path;

use super::input::Inputs;
use super::ordered::for_each_ordered;
use super::record::LIMITS;
use super::sound;
use crate::data::decoder::MediaDecoder;
use crate::data::error::{BadSample, DataError};
use crate::data::in_process::read_rgb_with;
use crate::data::lerobot::Dtype;
use crate::data::locator::Locator;
use crate::data::maker::SampleMaker;
use crate::data::media::{self, Sampling, Spread, VideoSource, in_folder, is_clip};
use crate::data::source::Content;
use crate::data::source::MediaSource;
use crate::message::SampleId;

/// Frames of a compressed clip that are decoded.
const CLIP_FRAMES: usize = 16;

/// Calls `take` after each sample, in order, with the sample where it cannot be used or is too long. With a maker
/// samples are made as a run makes them: template, tokens, lengths and pictures; without one, pictures are decoded.
///
/// # Errors
/// Whatever `take` returns.
pub fn verify<E>(
    inputs: &Inputs,
    maker: Option<&dyn SampleMaker>,
    jobs: usize,
    mut take: impl FnMut(u64, Option<BadSample>) -> Result<(), E>,
) -> Result<(), E> {
    let work = |index| {
        let (content, base) = inputs.read(index)?;
        if let Content::Step(step) = &content {
            let expected = step.expect_rate().and_then(|()| step.expect_videos(LIMITS));
            // The first frame of an episode stands for the others.
            let expected = expected.and_then(|()| match step.frame() {
                0 => step.expect_sizes(inputs.decoder(), LIMITS),
                _ => Ok(()),
            });
            expected.map_err(|error| inputs.bad(index, error.to_string()))?;
        }
        let checked = match maker {
            Some(maker) => maker.make(SampleId(index), &content, base).map(drop),
            None => check(&content, base, inputs.decoder()),
        };
        checked.map_err(|error| inputs.refused(index, &error))
    };
    for_each_ordered(jobs, 0..inputs.len(), work, |index, result: Result<(), BadSample>| take(index, result.err()))
}

fn check(content: &Content, base: &Path, decoder: &dyn MediaDecoder) -> Result<(), DataError> {
    if let Content::Step(step) = content {
        for feature in &step.set().info().features {
            match feature.dtype {
                Dtype::Image | Dtype::Video => drop(step.pictures(&feature.key, &[0], decoder, LIMITS)?),
                _ if feature.is_numbers() => finite(&feature.key, &step.numbers(&feature.key)?)?,
                _ => {}
            }
        }
        step.task()?;
    }
    for source in content.media() {
        match source {
            MediaSource::Image(locator) => drop(read_rgb_with(decoder, locator, base, LIMITS)?),
            MediaSource::Video(video) => check_video(video, base, decoder)?,
            MediaSource::Audio(audio) => drop(sound::decode(audio, base, decoder)?),
            MediaSource::Context(_) => {}
        }
    }
    Ok(())
}

/// Numbers that a model could not learn from.
fn finite(key: &str, values: &[f32]) -> Result<(), DataError> {
    match values.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(DataError::Line(format!("{key} has {value}, which is not finite"))),
        None => Ok(()),
    }
}

/// Checks one frame after the other: all of them together need not fit the memory.
fn check_video(video: &VideoSource, base: &Path, decoder: &dyn MediaDecoder) -> Result<(), DataError> {
    match video.locators.as_slice() {
        [Locator::File(name)] if base.join(name).is_dir() => {
            let folder = base.join(name);
            let frames = in_folder(&folder)?;
            if frames.is_empty() {
                return Err(DataError::image(&folder, "the video has no frames"));
            }
            frames.iter().try_for_each(|frame| read_rgb_with(decoder, frame, &folder, LIMITS).map(drop))
        }
        [one] if is_clip(one) => {
            let sampling =
                Sampling { fps: 2.0, num_frames: None, min_frames: 1, max_frames: CLIP_FRAMES, spread: Spread::Ends };
            media::load(video, base, decoder, LIMITS, &sampling).map(drop)
        }
        frames => frames.iter().try_for_each(|frame| read_rgb_with(decoder, frame, base, LIMITS).map(drop)),
    }
}
