//! MiniCPM-V 4.6: a small copy of a picture, and where the picture is large equal slices of it behind the copy, of its own shape as
//! far as patches allow. Transformers' `MiniCPMV4_6ImageProcessor`, `MiniCPMV4_6VideoProcessor` and `MiniCPMV4_6Processor`. The
//! copy is an item of one frame, and the slices are the frames of another one.

use image::RgbImage;

use super::expansion::{Expansion, Piece, Run};
use super::markers::Markers;
use super::patches::{CHANNELS, Cut, Frame};
use super::processor::MediaProcessor;
use super::resize::resize_bicubic;
use super::sampling::{Defaults, Sampling, Spread};
use super::settings::Settings;
use super::slice_plan::{BLOCK, Plan};
use super::video::Video;
use super::words::Words;
use crate::config::{ImageLimits, VideoLimits};
use crate::data::error::DataError;
use crate::data::sample::Media;
use crate::message::Tower;

pub struct Slices {
    cut: Cut,
    image: Plan,
    video: Plan,
    sampling: Sampling,
    markers: Markers,
    words: SliceWords,
}

/// Holds the special tokens, each as begin and end.
struct SliceWords {
    /// `None`: pictures have no number.
    number: Option<[String; 2]>,
    picture: [String; 2],
    slice: [String; 2],
}

impl Slices {
    /// `vision` is the tower's section of `config.json`; `names` are what `tokenizer_config.json` calls special tokens.
    ///
    /// # Errors
    /// The settings do not go together.
    pub fn open(
        (image, video): (Settings, Settings),
        limits: (&ImageLimits, &VideoLimits),
        vision: &serde_json::Value,
        names: impl Fn(&str, &str) -> String,
        words: &Words<'_>,
    ) -> Result<Self, DataError> {
        let own = vision["patch_size"].as_u64().or_else(|| vision["patch_size"][0].as_u64()).unwrap_or(16) as usize;
        let of_config = words.config["downsample_mode"].as_str().unwrap_or("16x");
        let plan = |settings: &Settings, max_pixels: Option<usize>| {
            let patch = settings.positive("patch_size", settings.patch_size, 14)?;
            if patch != own {
                return Err(settings.wrong(format!("patch_size is {patch}, but config.json says {own}")));
            }
            let mode = settings.downsample_mode.as_deref().unwrap_or("16x");
            if mode != of_config {
                return Err(settings.wrong(format!("downsample_mode is {mode:?}, but config.json says {of_config:?}")));
            }
            if settings.stack_frames.is_some_and(|frames| frames != 1) {
                return Err(settings.wrong("stack_frames must be 1".to_owned()));
            }
            let side = settings.positive("scale_resolution", settings.scale_resolution, 448)?;
            let most = settings.positive("max_slice_nums", settings.max_slice_nums, 9)?;
            let most = if settings.slice_mode == Some(false) { 1 } else { most };
            let max_slices = max_pixels.map_or(most, |pixels| most.min((pixels / (side * side)).max(1)));
            Ok(Plan { max_slices, side, patch, merge: if mode == "4x" { 2 } else { BLOCK } })
        };
        if limits.0.min_pixels.is_some() || limits.1.min_pixels.is_some() {
            let reason = "data.image.min_pixels and data.video.min_pixels do not apply: pictures are enlarged only \
                          to scale_resolution";
            return Err(image.wrong(reason.to_owned()));
        }
        if limits.1.fps.is_some_and(|fps| fps != 1.0) || limits.1.min_frames.is_some() {
            return Err(video.wrong(
                "data.video.fps and min_frames do not apply: this model takes one frame per second, and max_frames \
                 of a long video"
                    .to_owned(),
            ));
        }
        let defaults = Defaults { fps: 1.0, num_frames: None, min_frames: 1, max_frames: 128 };
        let mut sampled = video.clone();
        (sampled.max_frames, sampled.min_frames) = (video.max_num_frames, None);
        (sampled.fps, sampled.num_frames) = (None, None);
        let (placeholder, shown) = (words.placeholder(), words.token("video_token_id", "<|video_pad|>"));
        let around = |name: &str, begin: &str, end: &str| {
            [names(&format!("{name}_start_token"), begin), names(&format!("{name}_end_token"), end)]
        };
        let numbered = image.use_image_id.unwrap_or(true);
        Ok(Self {
            image: plan(&image, limits.0.max_pixels)?,
            video: plan(&video, limits.1.max_pixels)?,
            cut: Cut::new(&image, own, 1, 1),
            sampling: Sampling::new(&sampled, limits.1, Spread::Seconds, defaults)?,
            markers: Markers::vision(
                (vec![placeholder.clone()], format!("{placeholder}\n")),
                (vec![shown.clone()], format!("{shown}\n")),
            ),
            words: SliceWords {
                number: numbered.then(|| around("image_id", "<image_id>", "</image_id>")),
                picture: around("image", "<image>", "</image>"),
                slice: around("slice", "<slice>", "</slice>"),
            },
        })
    }

    /// Adds the copy and the slices of one picture to `media`, and the text that stands for them to `pieces`.
    fn expand(
        &self,
        plan: &Plan,
        picture: &RgbImage,
        media: &mut Vec<Media>,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), String> {
        let sizes = plan.sizes(picture.width() as usize, picture.height() as usize)?;
        let ([begin, end], (height, width)) = (&self.words.picture, sizes.copy);
        let copy = resize_bicubic(picture, width, height)?;
        let run = self.push(plan, &[Frame { rgb: &copy, width, height }], media);
        pieces.extend([Piece::Text(begin.clone()), Piece::Run(run), Piece::Text(end.clone())]);
        let Some(([rows, columns], (height, width))) = sizes.slices else { return Ok(()) };
        let canvas = resize_bicubic(picture, columns * width, rows * height)?;
        let line = width * CHANNELS;
        let slice = |row: usize, column: usize| {
            let lines = (row * height..(row + 1) * height).map(|y| (y * columns + column) * line);
            lines.flat_map(|begin| canvas[begin..begin + line].iter().copied()).collect::<Vec<u8>>()
        };
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let slices: Vec<Vec<u8>> = places.map(|(row, column)| slice(row, column)).collect();
        let frames: Vec<Frame<'_>> = slices.iter().map(|rgb| Frame { rgb, width, height }).collect();
        let run = self.push(plan, &frames, media);
        let [begin, end] = &self.words.slice;
        for number in 0..rows * columns {
            let line = if number > 0 && number % columns == 0 { "\n" } else { "" };
            pieces.extend([
                Piece::Text(format!("{line}{begin}")),
                Piece::Run(Run { t: 1, ..run }),
                Piece::Text(end.clone()),
            ]);
        }
        Ok(())
    }

    fn push(&self, plan: &Plan, frames: &[Frame<'_>], media: &mut Vec<Media>) -> Run {
        let (grid, pixels) = self.cut.cut(frames);
        let run = Run::new(frames.len(), grid.h as usize / plan.merge, grid.w as usize / plan.merge);
        media.push(Media { tower: Tower::Vision, grid, num_features: run.len(), pixels });
        run
    }

    /// Returns the number of a picture or a video among those of its kind in the text.
    fn numbered(&self) -> Vec<Piece> {
        let Some([begin, end]) = &self.words.number else { return Vec::new() };
        vec![Piece::Text(begin.clone()), Piece::Number(0), Piece::Text(end.clone())]
    }
}

impl MediaProcessor for Slices {
    fn patch_dim(&self) -> usize {
        self.cut.patch_dim()
    }

    fn num_image_features(&self, width: usize, height: usize) -> Result<usize, String> {
        Ok(self.image.num_features(self.image.sizes(width, height)?))
    }

    fn max_image_features(&self) -> usize {
        let Plan { max_slices, side, patch, merge } = self.image;
        // Rounding adds half a block a side at most, of sides that are not elongated.
        let features_a_side = side.div_ceil(patch * merge) + BLOCK / merge;
        (max_slices + 1) * features_a_side.pow(2)
    }

    fn image(&self, picture: &RgbImage) -> Result<Expansion, String> {
        let (mut media, mut pieces) = (Vec::new(), self.numbered());
        self.expand(&self.image, picture, &mut media, &mut pieces)?;
        Ok(Expansion { media, pieces })
    }

    fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Frames are pictures one after another, without a number of their own.
    fn video(&self, video: &Video) -> Result<Expansion, String> {
        let (mut media, mut pieces) = (Vec::new(), self.numbered());
        for frame in &video.frames {
            self.expand(&self.video, frame, &mut media, &mut pieces)?;
        }
        Ok(Expansion { media, pieces })
    }

    fn markers(&self) -> &Markers {
        &self.markers
    }
}
