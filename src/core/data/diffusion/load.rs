//! Reads pictures and clips, takes frames of clips, and brings them to their size.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::latents::{Fit, LatentSpace};
use super::pictures::Frames;
use crate::config::Take;
use crate::data::animation::expect_still;
use crate::data::decoder::MediaDecoder;
use crate::data::error::DataError;
use crate::data::limits::Limits;
use crate::data::media::{self, Sampling, Spread};
use crate::data::processor::ProcessorOptions;
use crate::data::source::MediaSource;
use crate::data::tally::Tally;
use crate::message::SampleId;
use crate::rng::Counter;

/// Tells the random numbers of clips from others of the same seed and sample.
const PURPOSE: u64 = 0x636c_6970;

/// A visit of a sample: what its random numbers belong to, and how its files are read.
#[derive(Clone, Copy)]
pub struct Visit<'a> {
    pub id: SampleId,
    /// Where relative paths start.
    pub base: &'a Path,
    /// The limit of pixels of pictures and frames, where the data set has one of its own.
    pub area: Option<u64>,
    /// The pictures that the model is given are left out.
    pub drops_conditions: bool,
}

pub struct Loader {
    decoder: Arc<dyn MediaDecoder>,
    limits: Limits,
    space: LatentSpace,
    /// Limits of pixels of pictures, and of a clip's frames.
    areas: [Option<u64>; 2],
    /// Sides are multiples of so many rows and columns of pixels: of pictures, and of a clip's frames.
    units: [[usize; 2]; 2],
    /// Frames a second; infinite of a model that makes pictures only.
    rate: f64,
    max_frames: usize,
    take: Take,
    seed: u64,
    num_reduced: AtomicU64,
    num_cut: AtomicU64,
    /// Clips with fewer frames than they may have, and those of one.
    short: Tally,
    still: Tally,
}

impl Loader {
    /// `rate`: frames a second where the options do not say.
    pub fn new(options: &ProcessorOptions, decoder: Arc<dyn MediaDecoder>, space: LatentSpace, rate: f64) -> Self {
        let video = &options.video;
        let rate = if rate.is_finite() { video.fps.unwrap_or(rate) } else { rate };
        let most =
            video.frames.map_or("data.video.frames".to_owned(), |frames| format!("data.video.frames = {frames}"));
        Self {
            decoder,
            limits: Limits::from(&options.image),
            space,
            areas: [options.image.area, video.area].map(|area| area.map(|area| area.pixels())),
            units: [options.image.bucket, video.bucket].map(|side| side.map_or(space.unit(), |side| [side; 2])),
            rate,
            max_frames: video.frames.unwrap_or(usize::MAX),
            take: video.take.unwrap_or_default(),
            seed: options.flow.seed,
            num_reduced: AtomicU64::new(0),
            num_cut: AtomicU64::new(0),
            short: Tally::new(format!(
                "clips too short for {most} at {rate} frames per second, learned at their own length"
            )),
            still: Tally::new(format!(
                "clips too short for more than one frame at {rate} frames per second, learned as pictures"
            )),
        }
    }

    /// Returns the frames of a picture or clip at its own size, under the limits.
    ///
    /// # Errors
    /// Named by the file: it cannot be read, is too small or too long, or the model makes no clips.
    pub fn native(&self, source: &MediaSource, visit: Visit<'_>) -> Result<Frames, DataError> {
        self.masked(source, None, visit).map(|(frames, _)| frames)
    }

    /// Works like [`Loader::native`], with the part of a mask that lies over the frames.
    ///
    /// # Errors
    /// Fails as that function does, and if the mask is no picture of the source's size.
    pub fn masked(
        &self,
        source: &MediaSource,
        mask: Option<&MediaSource>,
        visit: Visit<'_>,
    ) -> Result<(Frames, Option<Frames>), DataError> {
        let frames = self.frames(source, visit, self.space.frames)?;
        self.count_short(source, frames.len());
        let size = frames[0].dimensions();
        let over = |mask: &MediaSource| {
            let fail = |reason: String| DataError::image(Path::new(mask.name()), reason);
            let found = self.picture(mask, visit)?;
            let (width, height) = found.dimensions();
            if (width, height) != size {
                let reason =
                    format!("is a mask of {width}×{height} pixels, but the picture or clip has {}×{}", size.0, size.1);
                return Err(fail(reason));
            }
            Frames::fitted(&[found], self.fit(source, size, visit).map_err(fail)?).map_err(fail)
        };
        let mask = mask.map(over).transpose()?;
        Ok((self.fitted(source, &frames, visit)?, mask))
    }

    /// Works like [`Loader::native`] for frames that are given: of two pictures, which are the first frame and the last, both are
    /// taken.
    ///
    /// # Errors
    /// Fails as that function does.
    pub fn given(
        &self,
        source: &MediaSource,
        visit: Visit<'_>,
        kept: Option<(usize, usize)>,
    ) -> Result<Frames, DataError> {
        let are_ends = matches!(source, MediaSource::Video(video) if video.locators.len() == 2);
        let frames = self.frames(source, visit, if are_ends { 1 } else { self.space.frames })?;
        let Some(kept) = kept else { return self.fitted(source, &frames, visit) };
        let size = (frames[0].width() as usize, frames[0].height() as usize);
        let fail = |reason: String| DataError::image(Path::new(source.name()), reason);
        Frames::fitted(&frames, Fit::cover(size, kept)).map_err(fail)
    }

    /// Returns a picture as it is.
    ///
    /// # Errors
    /// Named by the file: it cannot be read, or is a clip.
    pub fn picture(&self, source: &MediaSource, visit: Visit<'_>) -> Result<image::RgbImage, DataError> {
        Ok(self.frames(source, visit, 1)?.swap_remove(0))
    }

    /// Returns the limit of pixels of pictures.
    pub fn image_area(&self, visit: Visit<'_>) -> Option<u64> {
        visit.area.or(self.areas[0])
    }

    fn fitted(&self, source: &MediaSource, frames: &[image::RgbImage], visit: Visit<'_>) -> Result<Frames, DataError> {
        let size = (frames[0].width() as usize, frames[0].height() as usize);
        let fail = |reason: String| DataError::image(Path::new(source.name()), reason);
        let fit = self.fit(source, frames[0].dimensions(), visit).map_err(fail)?;
        if fit.resized != size {
            self.num_reduced.fetch_add(1, Ordering::Relaxed);
        } else if fit.kept != size {
            self.num_cut.fetch_add(1, Ordering::Relaxed);
        }
        Frames::fitted(frames, fit).map_err(fail)
    }

    /// Notes a clip that has fewer frames than `data.video.frames` allows.
    fn count_short(&self, source: &MediaSource, num_frames: usize) {
        let most = self.space.whole(self.max_frames);
        match source {
            MediaSource::Video(_) if num_frames == 1 && most > 1 => self.still.add(),
            MediaSource::Video(_) if num_frames < most && self.max_frames < usize::MAX => self.short.add(),
            _ => (),
        }
    }

    /// Returns the size to which the frames of a source are brought.
    fn fit(&self, source: &MediaSource, (width, height): (u32, u32), visit: Visit<'_>) -> Result<Fit, String> {
        let at = usize::from(matches!(source, MediaSource::Video(_)));
        Fit::native((width as usize, height as usize), visit.area.or(self.areas[at]), self.units[at])
    }

    /// Returns the frames that a visit takes of a source: one, and multiples of `group` more.
    fn frames(
        &self,
        source: &MediaSource,
        Visit { id, base, .. }: Visit<'_>,
        group: usize,
    ) -> Result<Vec<image::RgbImage>, DataError> {
        let fail = |reason: &str| Err(DataError::image(Path::new(source.name()), reason));
        match source {
            MediaSource::Image(locator) => {
                let bytes = locator.read(base)?;
                let wrong = |reason: String| DataError::image(Path::new(&locator.display(base)), reason);
                // A model that makes clips would learn the first frame of an animation as a still picture.
                if !self.rate.is_infinite() {
                    expect_still(&bytes).map_err(wrong)?;
                }
                Ok(vec![self.decoder.picture(&bytes, &self.limits).map_err(wrong)?])
            }
            MediaSource::Video(_) if self.rate.is_infinite() => fail("is a clip, but this model makes pictures"),
            MediaSource::Video(video) => {
                let sampling = self.sampling(id, group);
                let frames = media::load(video, base, &*self.decoder, &self.limits, &sampling)?.frames;
                match self.take == Take::Whole && frames.len() > self.max_frames {
                    true => fail("has more frames than data.video.frames, but data.video.take is whole"),
                    false => Ok(frames),
                }
            }
            MediaSource::Audio(_) | MediaSource::Context(_) => fail("is neither a picture nor a clip"),
        }
    }

    /// Returns whether visits take frames of their own of a clip.
    pub fn takes_by_visit(&self) -> bool {
        matches!(self.take, Take::Sliding | Take::Chunks)
    }

    /// Returns the frames that a visit takes of a clip.
    fn sampling(&self, id: SampleId, group: usize) -> Sampling {
        let at = Counter::new(&[self.seed, id.0, PURPOSE]).unit(0);
        let spread = Spread::Clip { take: self.take, at: (at * f64::from(u32::MAX)) as u32, group: group as u32 };
        Sampling { fps: self.rate, num_frames: None, min_frames: 1, max_frames: self.max_frames, spread }
    }

    /// Returns notes for the user about the pictures so far.
    pub fn notes(&self) -> Vec<String> {
        let [picture, clip] = self.units.map(|[rows, columns]| format!("{columns}×{rows}"));
        let units = if picture == clip { picture } else { format!("{picture} (pictures) or {clip} (clips)") };
        let count = |count: &AtomicU64| Some(count.load(Ordering::Relaxed)).filter(|count| *count > 0);
        let reduced = count(&self.num_reduced);
        let cut = count(&self.num_cut);
        let reduced = reduced.map(|count| {
            format!(
                "pictures and clips that were reduced to data.image.area, data.video.area or that of their set: {count}"
            )
        });
        let cut =
            cut.map(|count| format!("pictures and clips whose sides were cut to multiples of {units} pixels: {count}"));
        let short = [&self.short, &self.still].map(Tally::line);
        reduced.into_iter().chain(cut).chain(short.into_iter().flatten()).collect()
    }
}
