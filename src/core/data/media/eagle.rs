//! Eagle 3 (`Eagle3_VLProcessor` and `fetch_image` of NVIDIA's GR00T N1.6): a picture is resized to sides that whole blocks of patches
//! fill, and stands in the text behind its number, which counts from 1.

use image::RgbImage;
use serde_json::Value as Json;

use super::expansion::{Expansion, Piece, Run};
use super::markers::Markers;
use super::patches::{Cut, Frame};
use super::processor::MediaProcessor;
use super::resize::resize_as_pillow;
use super::sampling::{Defaults, Sampling, Spread};
use super::settings::{Filter, Settings};
use super::smart_resize::expect_aspect;
use super::words::Words;
use crate::config::{ImageLimits, VideoLimits};
use crate::data::error::DataError;
use crate::data::sample::Media;
use crate::message::Tower;

/// Pixels of a picture, in blocks of patches: at least and at most.
const BLOCKS: (usize, usize) = (4, 4096);
/// The longest side, in patches (`IMAGE_MAX_SIZE`).
const MAX_SIDE: usize = 500;
/// The side of a patch, and patches of a side that become one feature, at most.
const MAX_PATCH: usize = 512;
const MAX_MERGE: usize = 16;
/// Pictures of a text at most: each has a marker of its own in a rendered template.
const MAX_PICTURES: usize = 256;

pub struct Eagle {
    cut: Cut,
    /// Patches of a side that become one feature.
    merge: usize,
    pixels: (usize, usize),
    sampling: Sampling,
    markers: Markers,
}

impl Eagle {
    /// `config` is the model's, `vision` the section of its tower.
    ///
    /// # Errors
    /// A setting is wrong or not implemented, or a limit of the run does not go with it.
    pub fn open(
        image: &Settings,
        limits: &ImageLimits,
        (config, vision): (&Json, &Json),
        words: &Words<'_>,
    ) -> Result<Self, DataError> {
        let patch = vision["patch_size"].as_u64().unwrap_or(14) as usize;
        let patch = image.positive("patch_size", Some(patch), patch)?;
        let ratio = config["downsample_ratio"].as_f64().unwrap_or(0.5);
        let merge = image.positive("downsample_ratio", Some((1.0 / ratio).round() as usize), 2)?;
        if patch > MAX_PATCH || merge > MAX_MERGE {
            let most = format!("patch_size must be at most {MAX_PATCH}, and downsample_ratio at least 1 / {MAX_MERGE}");
            return Err(
                image.wrong(format!("config.json says patch_size {patch} and downsample_ratio {ratio}: {most}"))
            );
        }
        let block = (patch * merge).pow(2);
        // The reference's range is fixed: its preprocessor config has no say in it.
        let range = (BLOCKS.0 * block, BLOCKS.1 * block);
        let limits = (limits.min_pixels.or(Some(range.0)), limits.max_pixels.or(Some(range.1)));
        let placeholder = words.placeholder();
        let defaults = Defaults { fps: 1.0, num_frames: None, min_frames: 1, max_frames: 1 };
        let marker = |number: usize| format!("<image-{number}>");
        Ok(Self {
            cut: Cut::new(image, patch, 1, 1).with_channels_last(),
            merge,
            pixels: image.pixels(limits, range)?,
            sampling: Sampling::new(image, &VideoLimits::default(), Spread::Ends, defaults)?,
            markers: Markers::vision(
                ((1..=MAX_PICTURES).map(marker).chain([placeholder.clone()]).collect(), placeholder),
                (Vec::new(), String::new()),
            ),
        })
    }

    /// Returns height and width after resizing: `smart_resize` of the reference, which rounds before it compares with the range.
    fn size(&self, (width, height): (usize, usize)) -> Result<(usize, usize), String> {
        let (h, w) = (height as f64, width as f64);
        expect_aspect(width, height)?;
        let factor = (self.cut.patch_size * self.merge) as f64;
        let longest = (MAX_SIDE * self.cut.patch_size) as f64;
        let side = |of: f64| ((of / factor).round_ties_even() * factor).max(factor).min(longest);
        let (mut rows, mut columns) = (side(h), side(w));
        let (min, max) = (self.pixels.0 as f64, self.pixels.1 as f64);
        if rows * columns > max {
            let beta = (rows * columns / max).sqrt();
            (rows, columns) = ((rows / beta / factor).floor() * factor, (columns / beta / factor).floor() * factor);
        } else if rows * columns < min {
            let beta = (min / (h * w)).sqrt();
            (rows, columns) = ((h * beta / factor).ceil() * factor, (w * beta / factor).ceil() * factor);
        }
        // A side that rounds to nothing fails in the reference; here it is one block.
        Ok((rows.max(factor) as usize, columns.max(factor) as usize))
    }
}

impl MediaProcessor for Eagle {
    fn patch_dim(&self) -> usize {
        self.cut.patch_dim()
    }

    fn num_image_features(&self, width: usize, height: usize) -> Result<usize, String> {
        let (rows, columns) = self.size((width, height))?;
        Ok(rows * columns / (self.cut.patch_size * self.merge).pow(2))
    }

    fn max_image_features(&self) -> usize {
        self.pixels.1 / (self.cut.patch_size * self.merge).pow(2)
    }

    fn image(&self, picture: &RgbImage) -> Result<Expansion, String> {
        let (height, width) = self.size((picture.width() as usize, picture.height() as usize))?;
        let rgb = resize_as_pillow(picture, width, height, Filter::Bicubic)?;
        let (grid, pixels) = self.cut.cut(&[Frame { rgb: &rgb, width, height }]);
        let run = Run::new(1, grid.h as usize / self.merge, grid.w as usize / self.merge);
        let text = |words: &str| Piece::Text(words.to_owned());
        Ok(Expansion {
            media: vec![Media { tower: Tower::Vision, grid, num_features: run.len(), pixels }],
            pieces: vec![text("<image "), Piece::Number(1), text("><img>"), Piece::Run(run), text("</img>")],
        })
    }

    fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    fn markers(&self) -> &Markers {
        &self.markers
    }
}
