//! SmolVLM and Idefics 3: a picture is enlarged or reduced to a longest side, then to whole tiles, and cut into these; a small copy of
//! the whole follows. Transformers' `SmolVLMImageProcessorPil` and `SmolVLMProcessor`. A tile is one frame of the item's grid.

use std::borrow::Cow;

use image::RgbImage;
use serde_json::Value as Json;

use super::expansion::{Expansion, Piece, Run};
use super::markers::Markers;
use super::patches::{CHANNELS, Cut, Frame};
use super::processor::MediaProcessor;
use super::resize::resize_as_pillow;
use super::sampling::{Defaults, Sampling, Spread};
use super::settings::{Filter, Settings};
use super::words::Words;
use crate::config::{ImageLimits, VideoLimits};
use crate::data::error::DataError;
use crate::data::sample::Media;
use crate::message::Tower;

/// The longest side that transformers resizes to, whatever the settings say.
const MAX_SIDE: usize = 4096;

pub struct TileSplit {
    cut: Cut,
    /// Side of a tile, in pixels.
    side: usize,
    /// Rows and columns of a tile that no patch takes: the last ones.
    rest: usize,
    /// The longest side to which a picture is resized first.
    longest: usize,
    /// False if a picture becomes one tile, whatever its shape.
    splits: bool,
    /// Side of the square of features that a tile becomes.
    features_side: usize,
    filter: Filter,
    sampling: Sampling,
    markers: Markers,
    /// Stands before every tile, and behind the last.
    fake: String,
}

/// A picture's size in pixels when it is cut, and columns and rows of tiles; no tiles where it is one square.
struct Canvas {
    width: usize,
    height: usize,
    columns: usize,
    rows: usize,
}

impl TileSplit {
    /// `vision` is the tower's section of `config.json`.
    ///
    /// # Errors
    /// The settings do not go together.
    pub fn open(image: &Settings, limits: &ImageLimits, vision: &Json, words: &Words<'_>) -> Result<Self, DataError> {
        let number = |key: &str, default: u64| {
            vision[key].as_u64().or_else(|| vision[key][0].as_u64()).unwrap_or(default) as usize
        };
        let (patch, own) = (number("patch_size", 32).max(1), number("image_size", 224));
        let side = image.positive("max_image_size", image.max_image_size(), 364)?;
        if side != own {
            return Err(image.wrong(format!("max_image_size is {side}, but image_size of config.json is {own}")));
        }
        let merge = words.config["scale_factor"].as_u64().unwrap_or(2).max(1) as usize;
        let patches = side / patch;
        if patches == 0 || !patches.is_multiple_of(merge) {
            return Err(image.wrong(format!(
                "tiles of {side} pixels cannot be divided into patches of {patch} pixels with scale_factor {merge}"
            )));
        }
        let longest = image.positive("size", image.longest_edge(), 4 * 364)?;
        if longest > MAX_SIDE {
            return Err(image.wrong(format!("longest_edge of size must be at most {MAX_SIDE}, found {longest}")));
        }
        if limits.min_pixels.is_some() {
            return Err(image.wrong(
                "data.image.min_pixels does not apply: the longest side of this model's pictures is fixed".to_owned(),
            ));
        }
        // As many tiles a side as the run's limit allows.
        let longest = match limits.max_pixels {
            Some(max_pixels) => longest.min((max_pixels.isqrt() / side).max(1) * side),
            None => longest,
        };
        let placeholder = words.placeholder();
        let markers = Markers::vision((vec![placeholder.clone()], placeholder.clone()), (Vec::new(), String::new()));
        let defaults = Defaults { fps: 1.0, num_frames: None, min_frames: 1, max_frames: 1 };
        Ok(Self {
            cut: Cut::new(image, patch, 1, 1),
            side,
            rest: side % patch,
            longest,
            splits: image.do_image_splitting.unwrap_or(true),
            features_side: patches / merge,
            filter: image.filter_or(Filter::Lanczos),
            sampling: Sampling::new(image, &VideoLimits::default(), Spread::Ends, defaults)?,
            markers,
            fake: "<fake_token_around_image>".to_owned(),
        })
    }

    /// Returns the size of a picture of this size when it is cut. Sizes are computed as in Python, in float64 and rounded down.
    fn canvas(&self, width: usize, height: usize) -> Canvas {
        if !self.splits {
            return Canvas { width: self.side, height: self.side, columns: 0, rows: 0 };
        }
        let (width, height) = self.resized(width, height);
        let up = |len: usize| len.div_ceil(self.side) * self.side;
        let shape = width as f64 / height as f64;
        let (width, height) = match width >= height {
            true => (up(width), up((up(width) as f64 / shape) as usize)),
            false => (up((up(height) as f64 * shape) as usize), up(height)),
        };
        match width > self.side || height > self.side {
            true => Canvas { width, height, columns: width / self.side, rows: height / self.side },
            false => Canvas { width, height, columns: 0, rows: 0 },
        }
    }

    /// Returns the size at which the longer side has the length that is set; the shorter one is even.
    fn resized(&self, width: usize, height: usize) -> (usize, usize) {
        let (shape, longest) = (width as f64 / height as f64, self.longest);
        let even = |len: f64| (len as usize).next_multiple_of(2).max(1);
        match width >= height {
            true => (longest, even(longest as f64 / shape)),
            false => (even(longest as f64 * shape), longest),
        }
    }

    fn resize<'a>(&self, picture: &'a RgbImage, width: usize, height: usize) -> Result<Cow<'a, [u8]>, String> {
        resize_as_pillow(picture, width, height, self.filter)
    }

    /// Returns the patches' part of the tile at this row and column of a canvas of this width.
    fn tile(&self, canvas: &[u8], width: usize, (row, column): (usize, usize)) -> Vec<u8> {
        let (first, len) = (row * self.side, self.side - self.rest);
        let lines = (first..first + len).map(|y| (y * width + column * self.side) * CHANNELS);
        lines.flat_map(|begin| canvas[begin..begin + len * CHANNELS].iter().copied()).collect()
    }

    fn num_tiles(canvas: &Canvas) -> usize {
        canvas.columns * canvas.rows + 1
    }

    fn features_of_tile(&self) -> usize {
        self.features_side.pow(2)
    }

    /// Returns the pieces of text that stand for a picture of so many columns and rows of tiles.
    fn pieces(&self, columns: usize, rows: usize) -> Vec<Piece> {
        let run = || Piece::Run(Run::new(1, self.features_side, self.features_side));
        let fake = &self.fake;
        let mut pieces = Vec::with_capacity(2 * columns * rows + 3);
        let mut line = String::new();
        for row in 1..=rows {
            for column in 1..=columns {
                pieces.push(Piece::Text(format!("{line}{fake}<row_{row}_col_{column}>")));
                pieces.push(run());
                line.clear();
            }
            line.push('\n');
        }
        if rows > 0 {
            line.push('\n');
        }
        pieces.extend([Piece::Text(format!("{line}{fake}<global-img>")), run(), Piece::Text(fake.clone())]);
        pieces
    }
}

fn picture_of(rgb: Cow<'_, [u8]>, width: usize, height: usize) -> Result<RgbImage, String> {
    let len = rgb.len();
    RgbImage::from_raw(width as u32, height as u32, rgb.into_owned())
        .ok_or_else(|| format!("{len} bytes are not a picture of {width}×{height}"))
}

impl MediaProcessor for TileSplit {
    fn patch_dim(&self) -> usize {
        self.cut.patch_dim()
    }

    fn num_image_features(&self, width: usize, height: usize) -> Result<usize, String> {
        Ok(Self::num_tiles(&self.canvas(width, height)) * self.features_of_tile())
    }

    fn max_image_features(&self) -> usize {
        let tiles_a_side = if self.splits { self.longest.div_ceil(self.side) } else { 0 };
        (tiles_a_side.pow(2) + 1) * self.features_of_tile()
    }

    fn image(&self, picture: &RgbImage) -> Result<Expansion, String> {
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        let (whole_width, whole_height) = self.resized(width, height);
        let whole = picture_of(self.resize(picture, whole_width, whole_height)?, whole_width, whole_height)?;
        let Canvas { width, height, columns, rows } = self.canvas(width, height);
        let canvas = picture_of(self.resize(&whole, width, height)?, width, height)?;
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let mut tiles: Vec<Vec<u8>> = places.map(|place| self.tile(canvas.as_raw(), width, place)).collect();
        let copy = self.resize(&canvas, self.side, self.side)?;
        tiles.push(self.tile(&copy, self.side, (0, 0)));
        let len = self.side - self.rest;
        let frames: Vec<Frame<'_>> = tiles.iter().map(|rgb| Frame { rgb, width: len, height: len }).collect();
        let (grid, pixels) = self.cut.cut(&frames);
        let num_features = tiles.len() * self.features_of_tile();
        let media = vec![Media { tower: Tower::Vision, grid, num_features, pixels }];
        Ok(Expansion { media, pieces: self.pieces(columns, rows) })
    }

    fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    fn markers(&self) -> &Markers {
        &self.markers
    }
}
