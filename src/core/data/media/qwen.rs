//! Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5, LLaVA-OneVision-1.5: transformers' `Qwen2VLImageProcessor`,
//! `Qwen2VLVideoProcessor` and `Qwen3VLVideoProcessor` with the text of the families' processors.

use image::RgbImage;

use super::clock::Clock;
use super::expansion::{Expansion, Piece, Run};
use super::markers::Markers;
use super::patches::{Cut, Frame};
use super::processor::MediaProcessor;
use super::resize::{resize_all, resize_bicubic};
use super::sampling::{Defaults, Sampling, Spread};
use super::settings::Settings;
use super::smart_resize::{smart_resize, smart_resize_frames};
use super::video::Video;
use super::words::Words;
use crate::config::{ImageLimits, VideoLimits};
use crate::data::error::DataError;
use crate::data::sample::Media;
use crate::message::Tower;

pub struct Qwen {
    image: Cut,
    image_pixels: (usize, usize),
    video: Cut,
    video_pixels: (usize, usize),
    video_cap: Option<usize>,
    sampling: Sampling,
    time: Time,
    markers: Markers,
    vision_start: String,
    vision_end: String,
    /// `None` but for models that hear videos.
    clock: Option<Clock>,
}

/// Says how a video's time is told to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// The distance of positions tells the time (Qwen2.5-VL): so many a second; `None` (Qwen2-VL): one from patch to patch.
    Positions(Option<i64>),
    /// Text between the frames tells the time (Qwen3-VL).
    Text,
}

impl Qwen {
    /// Reads the processors of pictures and of videos.
    ///
    /// # Errors
    /// A setting is wrong or not implemented, or a limit of the run does not go with it.
    pub fn open(
        (image, video): (Settings, Settings),
        limits: (&ImageLimits, &VideoLimits),
        time: Time,
        words: &Words<'_>,
    ) -> Result<Self, DataError> {
        let (image_default, video_default, patch_size) = match time {
            Time::Positions(_) => ((56 * 56, 28 * 28 * 1280), (128 * 28 * 28, 28 * 28 * 768), 14),
            Time::Text => ((56 * 56, 28 * 28 * 1280), (128 * 32 * 32, 32 * 32 * 768), 16),
        };
        let image_cut = cut(&image, 14)?;
        let video_cut = cut(&video, patch_size)?;
        let spread = match time {
            Time::Positions(_) => Spread::Parts { multiple: video_cut.temporal_patch_size },
            Time::Text => Spread::Ends,
        };
        let defaults = Defaults { fps: 2.0, num_frames: None, min_frames: 4, max_frames: 768 };
        let tokens = video.max_video_tokens.unwrap_or(if time == Time::Text { 768 } else { 128_000 });
        let placeholder = words.placeholder();
        let vision_start = words.token("vision_start_token_id", "<|vision_start|>");
        let vision_end = words.token("vision_end_token_id", "<|vision_end|>");
        let key = if words.config["video_token_index"].is_null() { "video_token_id" } else { "video_token_index" };
        let pad = words.token(key, "<|video_pad|>");
        let wrapped = |inner: &str| format!("{vision_start}{inner}{vision_end}");
        let markers =
            Markers::vision((vec![placeholder.clone()], wrapped(&placeholder)), (vec![pad.clone()], wrapped(&pad)));
        Ok(Self {
            image_pixels: image.pixels((limits.0.min_pixels, limits.0.max_pixels), image_default)?,
            video_pixels: video.pixels((limits.1.min_pixels, limits.1.max_pixels), video_default)?,
            image: image_cut,
            video_cap: video.cap_pixels_per_frame.unwrap_or(false).then_some(tokens),
            sampling: Sampling::new(&video, limits.1, spread, defaults)?,
            video: video_cut,
            time,
            markers,
            vision_start,
            vision_end,
            clock: None,
        })
    }

    /// Returns the same for a model that tells the time of videos and of their sound together.
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// Returns height and width of a video's frames.
    fn frame_size(&self, video: &Video) -> Result<(usize, usize), String> {
        let ((width, height), num_frames) = (video.dimensions(), video.frames.len());
        let temporal = self.video.temporal_patch_size;
        let factor = self.video.patch_size * self.video.merge_size;
        let (min, mut max) = self.video_pixels;
        let floor = (min as f64 * 1.05) as usize;
        match (self.time, self.video_cap) {
            (Time::Text, cap) => {
                if let Some(tokens) = cap {
                    max = (tokens * factor * factor).min(max / num_frames).max(floor) * num_frames;
                }
                smart_resize_frames(num_frames, (height, width), temporal, factor, (min, max))
            }
            (Time::Positions(_), cap) => {
                if let Some(tokens) = cap {
                    let total = ((tokens * factor * factor) as f64 * 0.9) as usize;
                    max = max.min(total * temporal / num_frames).max(floor);
                }
                smart_resize(height, width, factor, min, max)
            }
        }
    }
}

/// Reads how frames are cut into patches.
///
/// # Errors
/// A size is 0.
pub fn cut(settings: &Settings, patch_size: usize) -> Result<Cut, DataError> {
    let patch = settings.positive("patch_size", settings.patch_size, patch_size)?;
    let temporal = settings.positive("temporal_patch_size", settings.temporal_patch_size, 2)?;
    let merge = settings.positive("merge_size", settings.merge_size, 2)?;
    Ok(Cut::new(settings, patch, temporal, merge))
}

/// Returns a picture whose sides are multiples of what is merged, within a range of pixels.
///
/// # Errors
/// The reason: one side is too long beside the other, or the picture cannot be resized.
pub fn smart_image(picture: &RgbImage, cut: &Cut, (min, max): (usize, usize)) -> Result<Expansion, String> {
    let (merge, factor) = (cut.merge_size, cut.patch_size * cut.merge_size);
    let (height, width) = smart_resize(picture.height() as usize, picture.width() as usize, factor, min, max)?;
    let rgb = resize_bicubic(picture, width, height)?;
    let (grid, pixels) = cut.cut(&[Frame { rgb: &rgb, width, height }]);
    let run = Run::new(1, grid.h as usize / merge, grid.w as usize / merge);
    Ok(Expansion::plain(Media { tower: Tower::Vision, grid, num_features: run.len(), pixels }, run))
}

/// Returns the number of features that [`smart_image`] makes.
///
/// # Errors
/// The reason: one side is too long beside the other.
pub fn smart_features((width, height): (usize, usize), cut: &Cut, pixels: (usize, usize)) -> Result<usize, String> {
    let factor = cut.patch_size * cut.merge_size;
    let (height, width) = smart_resize(height, width, factor, pixels.0, pixels.1)?;
    Ok(height * width / (factor * factor))
}

impl MediaProcessor for Qwen {
    fn patch_dim(&self) -> usize {
        self.image.patch_dim()
    }

    fn num_image_features(&self, width: usize, height: usize) -> Result<usize, String> {
        smart_features((width, height), &self.image, self.image_pixels)
    }

    fn max_image_features(&self) -> usize {
        self.image_pixels.1 / (self.image.patch_size * self.image.merge_size).pow(2)
    }

    fn image(&self, picture: &RgbImage) -> Result<Expansion, String> {
        smart_image(picture, &self.image, self.image_pixels)
    }

    fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    fn video(&self, video: &Video) -> Result<Expansion, String> {
        let (height, width) = self.frame_size(video)?;
        let frames = resize_all(&video.frames, width, height)?;
        let frames: Vec<Frame<'_>> = frames.iter().map(|rgb| Frame { rgb, width, height }).collect();
        let (grid, pixels) = self.video.cut(&frames);
        let (temporal, merge) = (self.video.temporal_patch_size, self.video.merge_size);
        let run = Run::new(grid.t as usize, grid.h as usize / merge, grid.w as usize / merge);
        let media = Media { tower: Tower::Vision, grid, num_features: run.len(), pixels };
        match self.time {
            Time::Positions(_) if let Some(clock) = &self.clock => {
                Ok(Expansion { media: vec![media], pieces: clock.video(run, temporal as f64 / video.fps) })
            }
            Time::Positions(per_second) => {
                // Whole seconds, as transformers counts them.
                let seconds = (temporal as f64 / video.fps) as i64;
                let interval = per_second.map_or(1, |per_second| per_second * seconds);
                Ok(Expansion::plain(media, Run { interval, ..run }))
            }
            Time::Text => {
                let frame = Run { t: 1, ..run };
                let pieces = video.mean_times(temporal).flat_map(|time| {
                    [
                        Piece::Text(format!("<{time:.1} seconds>{}", self.vision_start)),
                        Piece::Run(frame),
                        Piece::Text(self.vision_end.clone()),
                    ]
                });
                Ok(Expansion { pieces: pieces.collect(), media: vec![media] })
            }
        }
    }

    fn clock(&self) -> Option<&Clock> {
        self.clock.as_ref()
    }

    fn markers(&self) -> &Markers {
        &self.markers
    }
}
