//! Kimi-K2.5: pictures keep their size up to a limit and are padded with black to whole patches (NaViT); a video is
//! encoded in chunks of a few frames. Transformers' `Kimi_K25ImageProcessor`, `Kimi_K25VideoProcessor` and
//! `Kimi_K25Processor`.

use image::RgbImage;

use super::expansion::{Expansion, Piece, Run};
use super::markers::Markers;
use super::patches::{CHANNELS, Cut, Frame};
use super::processor::MediaProcessor;
use super::resize::resize_bicubic;
use super::sampling::{Defaults, Sampling, Spread};
use super::settings::Settings;
use super::video::Video;
use super::words::Words;
use crate::config::{ImageLimits, VideoLimits};
use crate::data::error::DataError;
use crate::data::sample::Media;
use crate::message::Tower;

/// The format of times in published settings.
const TIMES: &str = "hh:mm:ss.fff";

pub struct Kimi {
    cut: Cut,
    /// Patches of a side that become one feature.
    merge: usize,
    max_patches: usize,
    max_side: usize,
    video_max_patches: usize,
    /// Frames of a video that are encoded together.
    chunk: usize,
    /// A message about the setting of videos that is not supported, if there is one.
    refused: Option<String>,
    sampling: Sampling,
    markers: Markers,
}

/// Height and width after resizing, and after padding.
type Sizes = ((usize, usize), (usize, usize));

impl Kimi {
    /// Reads the processors of pictures and of videos.
    ///
    /// # Errors
    /// A setting is wrong or not implemented, or a limit of the run does not go with it.
    pub fn open(
        (image, video): (Settings, Settings),
        limits: (&ImageLimits, &VideoLimits),
        words: &Words<'_>,
    ) -> Result<Self, DataError> {
        let patch = image.positive("patch_size", image.patch_size, 14)?;
        let merge = image.positive("merge_size", image.merge_size, 2)?;
        if let Some(found) = image.fixed_output_tokens {
            return Err(image.wrong(format!("fixed_output_tokens is {found}; only null is supported")));
        }
        let patches = |pixels: Option<usize>| pixels.map(|pixels| (pixels / (patch * patch)).max(1));
        let max_patches = patches(limits.0.max_pixels).or(image.max_patches);
        let video_max_patches = patches(limits.1.max_pixels).or(video.in_patch_limit_each_frame).or(video.max_patches);
        let defaults = Defaults { fps: 2.0, num_frames: None, min_frames: 1, max_frames: 4096 };
        let placeholder = words.placeholder();
        let video_token = "<|kimi_k25_video_placeholder|>".to_owned();
        Ok(Self {
            max_patches: image.positive("max_patches", max_patches, 16384)?,
            max_side: image.positive("size.max_height", image.max_side_patches(), 512)?,
            video_max_patches: video.positive("max_patches", video_max_patches, 4096)?,
            chunk: video.positive("temporal_patch_size", video.temporal_patch_size, 4)?,
            refused: refused(&video),
            sampling: Sampling::new(&video, limits.1, Spread::Whole { middle: false }, defaults)?,
            cut: Cut::new(&image, patch, 1, 1),
            merge,
            markers: Markers::vision(
                (
                    vec![placeholder.clone()],
                    format!("<|media_begin|>image<|media_content|>{placeholder}<|media_end|>\n"),
                ),
                (vec![video_token.clone()], video_token),
            ),
        })
    }

    /// Computes the sizes as `navit_resize` of transformers does.
    fn sizes(&self, (width, height): (usize, usize), max_patches: usize) -> Sizes {
        let patch = self.cut.patch_size;
        let count = ((height / patch).max(1) * (width / patch).max(1)) as f64;
        let max_pixels = self.max_side * patch;
        let scale = (max_patches as f64 / count)
            .sqrt()
            .min(max_pixels as f64 / height as f64)
            .min(max_pixels as f64 / width as f64)
            .min(1.0);
        let scaled = |side: usize| ((side as f64 * scale) as usize).clamp(1, max_pixels);
        let padded = |side: usize| side.next_multiple_of(self.merge * patch);
        let (height, width) = (scaled(height), scaled(width));
        ((height, width), (padded(height), padded(width)))
    }

    fn media(&self, frames: &[RgbImage], ((height, width), padded): Sizes) -> Result<(Media, Run), String> {
        let (padded_height, padded_width) = padded;
        let mut padded = Vec::with_capacity(frames.len());
        for frame in frames {
            let rgb = resize_bicubic(frame, width, height)?;
            let mut canvas = vec![0; padded_height * padded_width * CHANNELS];
            for (from, to) in rgb.chunks(width * CHANNELS).zip(canvas.chunks_mut(padded_width * CHANNELS)) {
                to[..from.len()].copy_from_slice(from);
            }
            padded.push(canvas);
        }
        let frame = |rgb| Frame { rgb, width: padded_width, height: padded_height };
        let frames: Vec<Frame<'_>> = padded.iter().map(|rgb| frame(rgb)).collect();
        let (grid, pixels) = self.cut.cut(&frames);
        // The frames of an item become one.
        let run = Run::new(1, grid.h as usize / self.merge, grid.w as usize / self.merge);
        Ok((Media { tower: Tower::Vision, grid, num_features: run.len(), pixels }, run))
    }
}

/// Returns a message about the setting of videos that is not supported, if `settings` have one.
fn refused(settings: &Settings) -> Option<String> {
    if let Some(limit) = settings.in_patch_limit_video {
        return Some(format!("in_patch_limit_video of the preprocessor config is {limit}; only null is supported"));
    }
    let mode = settings.timestamp_mode.as_deref().filter(|mode| *mode != TIMES)?;
    Some(format!("timestamp_mode of the preprocessor config is {mode:?}; only {TIMES:?} is supported"))
}

/// Formats a time as `00:01:02.500`.
fn clock(seconds: f64) -> String {
    let whole = seconds as u64;
    let (hours, minutes, rest) = (whole / 3600 % 24, whole / 60 % 60, whole % 60);
    format!("{hours:02}:{minutes:02}:{rest:02}.{:03}", (seconds % 1.0 * 1000.0) as u64)
}

impl MediaProcessor for Kimi {
    fn patch_dim(&self) -> usize {
        self.cut.patch_dim()
    }

    fn num_image_features(&self, width: usize, height: usize) -> Result<usize, String> {
        let (_, (height, width)) = self.sizes((width, height), self.max_patches);
        let factor = self.merge * self.cut.patch_size;
        Ok(height * width / (factor * factor))
    }

    fn max_image_features(&self) -> usize {
        // Padding adds less than a row and a column.
        self.max_patches / (self.merge * self.merge) + 2 * self.max_side
    }

    fn image(&self, picture: &RgbImage) -> Result<Expansion, String> {
        let sizes = self.sizes((picture.width() as usize, picture.height() as usize), self.max_patches);
        let (media, run) = self.media(std::slice::from_ref(picture), sizes)?;
        Ok(Expansion::plain(media, run))
    }

    fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    fn video(&self, video: &Video) -> Result<Expansion, String> {
        if let Some(reason) = &self.refused {
            return Err(reason.clone());
        }
        let sizes = self.sizes(video.dimensions(), self.video_max_patches);
        let (mut media, mut pieces) = (Vec::new(), Vec::new());
        for (frames, times) in video.frames.chunks(self.chunk).zip(video.times.chunks(self.chunk)) {
            let (item, run) = self.media(frames, sizes)?;
            media.push(item);
            pieces.push(Piece::Text(format!("{}<|media_begin|>video<|media_content|>", clock(times[0]))));
            pieces.push(Piece::Run(run));
            pieces.push(Piece::Text("<|media_end|>".to_owned()));
        }
        Ok(Expansion { media, pieces })
    }

    fn markers(&self) -> &Markers {
        &self.markers
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Settings, refused};

    #[test]
    fn videos_of_other_settings_are_refused() {
        let of = |cfg: Value| refused(&Settings::parse(json!({"media_proc_cfg": cfg}), "a".into()).unwrap());
        assert_eq!(of(json!({"in_patch_limit_video": null, "timestamp_mode": "hh:mm:ss.fff"})), None);
        assert!(of(json!({"in_patch_limit_video": 4096})).unwrap().starts_with("in_patch_limit_video of the"));
        assert!(of(json!({"timestamp_mode": "mm:ss"})).unwrap().contains("is \"mm:ss\"; only"));
    }

    #[test]
    fn a_time_is_written_as_on_a_clock() {
        assert_eq!(super::clock(3725.5), "01:02:05.500");
        assert_eq!(super::clock(0.0), "00:00:00.000");
    }
}
