//! ERNIE-4.5-VL: transformers' `Ernie4_5_VLMoeImageProcessor` and `Ernie4_5_VLMoeVideoProcessor`, but for the
//! timestamps that the latter draws on frames with a font of the model's.

use image::RgbImage;

use super::expansion::{Expansion, Run};
use super::markers::Markers;
use super::patches::{Cut, Frame};
use super::processor::MediaProcessor;
use super::qwen::{smart_features, smart_image};
use super::resize::resize_all;
use super::sampling::{Defaults, Sampling, Spread};
use super::settings::Settings;
use super::smart_resize::smart_resize;
use super::video::Video;
use super::words::Words;
use crate::config::{ImageLimits, VideoLimits};
use crate::data::error::DataError;
use crate::data::sample::Media;
use crate::message::Tower;

pub struct Ernie {
    /// A patch is of one frame; two frames of a video are merged by the model.
    cut: Cut,
    image_pixels: (usize, usize),
    video_pixels: (usize, usize),
    temporal_merge: usize,
    draws: bool,
    sampling: Sampling,
    markers: Markers,
}

impl Ernie {
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
        let temporal_merge = match video.temporal_patch_size.unwrap_or(2) {
            // What a folder without a video processor says of pictures.
            1 | 2 => 2,
            other => return Err(video.wrong(format!("temporal_patch_size is {other}; only 2 is supported"))),
        };
        let placeholder = words.placeholder();
        let video_token = words.token("video_token_id", "<|video@placeholder|>");
        let image_start = words.token("image_start_token_id", "<|IMAGE_START|>");
        let image_end = words.token("image_end_token_id", "<|IMAGE_END|>");
        let video_start = words.token("video_start_token_id", "<|VIDEO_START|>");
        let video_end = words.token("video_end_token_id", "<|VIDEO_END|>");
        let defaults = Defaults { fps: 2.0, num_frames: None, min_frames: 16, max_frames: 180 };
        Ok(Self {
            cut: Cut::new(&image, patch, 1, merge),
            image_pixels: image.pixels((limits.0.min_pixels, limits.0.max_pixels), (56 * 56, 28 * 28 * 6177))?,
            video_pixels: video.pixels((limits.1.min_pixels, limits.1.max_pixels), (299 * 28 * 28, 1196 * 28 * 28))?,
            temporal_merge,
            draws: video.draw_on_frames.unwrap_or(true),
            sampling: Sampling::new(&video, limits.1, Spread::Fractional, defaults)?,
            markers: Markers::vision(
                (
                    vec![placeholder.clone(), "<|image@placeholder|>".to_owned()],
                    format!("{image_start}{placeholder}{image_end}"),
                ),
                (
                    vec![video_token.clone(), "<|video@placeholder|>".to_owned()],
                    format!("{video_start}{video_token}{video_end}"),
                ),
            ),
        })
    }
}

impl MediaProcessor for Ernie {
    fn patch_dim(&self) -> usize {
        self.cut.patch_dim()
    }

    fn num_image_features(&self, width: usize, height: usize) -> Result<usize, String> {
        smart_features((width, height), &self.cut, self.image_pixels)
    }

    fn max_image_features(&self) -> usize {
        self.image_pixels.1 / (self.cut.patch_size * self.cut.merge_size).pow(2)
    }

    fn image(&self, picture: &RgbImage) -> Result<Expansion, String> {
        smart_image(picture, &self.cut, self.image_pixels)
    }

    fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    fn video(&self, video: &Video) -> Result<Expansion, String> {
        if self.draws {
            return Err("this model's processor draws the time on every frame, which is not supported: set \
                        draw_on_frames to false in video_preprocessor_config.json to train without"
                .to_owned());
        }
        let ((width, height), factor) = (video.dimensions(), self.cut.patch_size * self.cut.merge_size);
        let (height, width) = smart_resize(height, width, factor, self.video_pixels.0, self.video_pixels.1)?;
        let mut frames = resize_all(&video.frames, width, height)?;
        if frames.len() % self.temporal_merge != 0 {
            frames.extend(frames.last().cloned());
        }
        let frames: Vec<Frame<'_>> = frames.iter().map(|rgb| Frame { rgb, width, height }).collect();
        let (grid, pixels) = self.cut.cut(&frames);
        let merge = self.cut.merge_size;
        let run = Run::new(grid.t as usize / self.temporal_merge, grid.h as usize / merge, grid.w as usize / merge);
        Ok(Expansion::plain(Media { tower: Tower::Vision, grid, num_features: run.len(), pixels }, run))
    }

    fn markers(&self) -> &Markers {
        &self.markers
    }
}
