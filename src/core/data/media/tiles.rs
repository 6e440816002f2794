//! InternVL: a picture is cut into square tiles, as many as fit its shape best, with a small copy of the whole.
//! Transformers' `GotOcr2ImageProcessor`, `InternVLVideoProcessor` and `InternVLProcessor`, and `dynamic_preprocess` of
//! the original. A tile is one frame of the item's grid.

use std::borrow::Cow;

use image::RgbImage;

use super::expansion::{Expansion, Piece, Run};
use super::markers::Markers;
use super::patches::{CHANNELS, Cut, Frame};
use super::processor::MediaProcessor;
use super::resize::{middle, resize_bicubic, resize_bilinear};
use super::sampling::{Defaults, Sampling, Spread};
use super::settings::Settings;
use super::video::Video;
use super::words::Words;
use crate::config::{ImageLimits, VideoLimits};
use crate::data::error::DataError;
use crate::data::limits::MAX_ASPECT_RATIO;
use crate::data::sample::Media;
use crate::message::Tower;

pub struct Tiles {
    cut: Cut,
    /// Side of a tile, in pixels.
    side: usize,
    /// Rows and columns of a resized picture that no patch takes: the last ones.
    rest: usize,
    min_tiles: usize,
    max_tiles: usize,
    /// True if a small copy of the whole follows several tiles.
    thumbnail: bool,
    /// Side of the square of features that a tile becomes.
    features_side: usize,
    /// Features of a tile beside those.
    num_more: usize,
    /// The length to which a picture's shorter side is resized, where its middle is the tile.
    shorter: Option<usize>,
    is_bilinear: bool,
    sampling: Sampling,
    markers: Markers,
    begin: String,
    end: String,
}

/// The settings of tiles in `config.json`.
pub struct TileConfig {
    pub side: Option<usize>,
    /// The length to which a picture's shorter side is resized, where its middle is the one tile.
    pub shorter: Option<usize>,
    pub patch_size: usize,
    /// Factor by which a tile's side in patches shrinks.
    pub downsample_ratio: f64,
    pub min_tiles: Option<usize>,
    pub max_tiles: Option<usize>,
    pub thumbnail: bool,
    /// True if a side need not be a multiple of a patch's.
    pub has_rest: bool,
    /// Features of a tile beside those of its patches: of a class token.
    pub num_more: usize,
    /// Stands before and behind a picture's features.
    pub around: [String; 2],
    /// Stands for a picture in a rendered template; `None`: the token that a feature replaces.
    pub marker: Option<String>,
    /// True if a video's frames are tiles.
    pub takes_videos: bool,
}

impl Tiles {
    /// Reads the processors of pictures and of videos; `config` has the sizes that the model itself says.
    ///
    /// # Errors
    /// A setting is wrong or not implemented, or a limit of the run does not go with it.
    pub fn open(
        (image, video): (Settings, Settings),
        limits: (&ImageLimits, &VideoLimits),
        config: &TileConfig,
        words: &Words<'_>,
    ) -> Result<Self, DataError> {
        let side = image.positive("size", config.side.or(image.side()?), 448)?;
        let patch = config.patch_size.max(1);
        let rest = if config.has_rest { side % patch } else { 0 };
        let side = side - rest;
        let features_side = (side / patch) as f64 * config.downsample_ratio;
        let whole = (features_side - features_side.round()).abs() < 1e-9;
        let features_side = features_side.round();
        if !side.is_multiple_of(patch) || features_side < 1.0 || !whole {
            let ratio = config.downsample_ratio;
            return Err(image.wrong(format!(
                "tiles of {side} pixels cannot be divided into patches of {patch} pixels with downsample_ratio {ratio}"
            )));
        }
        let min_tiles = image.positive("min_patches", image.min_patches.or(config.min_tiles), 1)?;
        let mut max_tiles = image.positive("max_patches", image.max_patches.or(config.max_tiles), 12)?;
        if let Some(max_pixels) = limits.0.max_pixels {
            max_tiles = max_tiles.min((max_pixels / (side * side)).max(1));
        }
        if min_tiles > max_tiles {
            return Err(image.wrong(format!("min_patches ({min_tiles}) must not exceed max_patches ({max_tiles})")));
        }
        let defaults = Defaults { fps: 2.0, num_frames: Some(8), min_frames: 1, max_frames: 64 };
        let marker = config.marker.clone().unwrap_or_else(|| words.placeholder());
        let videos = match config.takes_videos {
            true => (vec!["<video>".to_owned()], "<video>\n".to_owned()),
            false => (Vec::new(), String::new()),
        };
        let markers = Markers::vision((vec![marker.clone()], format!("{marker}\n")), videos);
        Ok(Self {
            cut: Cut::new(&image, patch, 1, 1),
            side,
            rest,
            min_tiles,
            max_tiles,
            thumbnail: config.thumbnail,
            features_side: features_side as usize,
            num_more: config.num_more,
            shorter: config.shorter,
            is_bilinear: image.is_bilinear(),
            sampling: Sampling::new(&video, limits.1, Spread::Whole { middle: true }, defaults)?,
            markers,
            begin: config.around[0].clone(),
            end: config.around[1].clone(),
        })
    }

    /// Columns and rows of tiles whose shape is nearest to the picture's; among equals the most tiles that the picture
    /// fills half at least.
    fn canvas(&self, width: usize, height: usize) -> (usize, usize) {
        let (shape, area) = (width as f64 / height as f64, (width * height) as f64);
        let max = self.max_tiles;
        let mut grids: Vec<(usize, usize)> = (1..=max).flat_map(|w| (1..=max).map(move |h| (w, h))).collect();
        grids.retain(|(w, h)| (self.min_tiles..=max).contains(&(w * h)));
        grids.sort_by_key(|(w, h)| w * h);
        let (mut best, mut best_difference) = ((1, 1), f64::INFINITY);
        for (w, h) in grids {
            let difference = (shape - w as f64 / h as f64).abs();
            if difference < best_difference {
                (best, best_difference) = ((w, h), difference);
            } else if difference == best_difference && area > 0.5 * (self.side * self.side) as f64 * (w * h) as f64 {
                best = (w, h);
            }
        }
        best
    }

    fn resize<'a>(&self, picture: &'a RgbImage, width: usize, height: usize) -> Result<Cow<'a, [u8]>, String> {
        let resize = if self.is_bilinear { resize_bilinear } else { resize_bicubic };
        let (whole_width, whole_height) = (width + self.rest, height + self.rest);
        let resized = match self.shorter {
            None => resize(picture, whole_width, whole_height)?,
            Some(shorter) => {
                let size @ (width, height) = with_shorter(picture, shorter)?;
                middle(&resize(picture, width, height)?, size, (whole_width, whole_height)).into()
            }
        };
        if self.rest == 0 {
            return Ok(resized);
        }
        let rows = resized.chunks((width + self.rest) * CHANNELS).take(height);
        Ok(rows.flat_map(|row| &row[..width * CHANNELS]).copied().collect::<Vec<u8>>().into())
    }

    fn num_tiles(&self, width: usize, height: usize) -> usize {
        let (columns, rows) = self.canvas(width, height);
        columns * rows + usize::from(self.thumbnail && columns * rows > 1)
    }

    fn features_of_tile(&self) -> usize {
        self.features_side.pow(2) + self.num_more
    }

    fn media(&self, tiles: &[Cow<'_, [u8]>]) -> Media {
        let side = self.side;
        let frames: Vec<Frame<'_>> = tiles.iter().map(|rgb| Frame { rgb, width: side, height: side }).collect();
        let (grid, pixels) = self.cut.cut(&frames);
        Media { tower: Tower::Vision, grid, num_features: tiles.len() * self.features_of_tile(), pixels }
    }
}

/// Returns the size of a picture of the same shape whose shorter side has this length; the longer one is rounded down.
///
/// # Errors
/// The picture is so long that it would not fit into memory.
fn with_shorter(picture: &RgbImage, shorter: usize) -> Result<(usize, usize), String> {
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let (short, long) = (width.min(height).max(1), width.max(height));
    if long as f64 > MAX_ASPECT_RATIO * short as f64 {
        return Err(format!("a picture of {width}×{height} is more than {MAX_ASPECT_RATIO} times as long as wide"));
    }
    let longer = shorter * long / short;
    Ok(if width <= height { (shorter, longer) } else { (longer, shorter) })
}

impl MediaProcessor for Tiles {
    fn patch_dim(&self) -> usize {
        self.cut.patch_dim()
    }

    fn num_image_features(&self, width: usize, height: usize) -> Result<usize, String> {
        Ok(self.num_tiles(width, height) * self.features_of_tile())
    }

    fn max_image_features(&self) -> usize {
        (self.max_tiles + 1) * self.features_of_tile()
    }

    fn image(&self, picture: &RgbImage) -> Result<Expansion, String> {
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        let (columns, rows) = self.canvas(width, height);
        let canvas = self.resize(picture, columns * self.side, rows * self.side)?;
        let line = self.side * CHANNELS;
        let tile = |row: usize, column: usize| {
            let lines = (row * self.side..(row + 1) * self.side).map(|y| (y * columns + column) * line);
            lines.flat_map(|begin| canvas[begin..begin + line].iter().copied()).collect::<Vec<u8>>()
        };
        let mut tiles: Vec<Cow<'_, [u8]>> = (0..rows)
            .flat_map(|row| (0..columns).map(move |column| (row, column)))
            .map(|(r, c)| tile(r, c).into())
            .collect();
        if self.thumbnail && tiles.len() > 1 {
            tiles.push(self.resize(picture, self.side, self.side)?);
        }
        let run = match self.num_more {
            0 => Run::new(tiles.len(), self.features_side, self.features_side),
            // Not a square of places any more.
            _ => Run::new(tiles.len(), 1, self.features_of_tile()),
        };
        let pieces = vec![Piece::Text(self.begin.clone()), Piece::Run(run), Piece::Text(self.end.clone())];
        Ok(Expansion { media: vec![self.media(&tiles)], pieces })
    }

    fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// A frame is one tile.
    fn video(&self, video: &Video) -> Result<Expansion, String> {
        let tiles: Vec<_> =
            video.frames.iter().map(|it| self.resize(it, self.side, self.side)).collect::<Result<_, _>>()?;
        let mut pieces = Vec::with_capacity(3 * tiles.len());
        for number in 1..=tiles.len() {
            let line = if number > 1 { "\n" } else { "" };
            pieces.push(Piece::Text(format!("{line}Frame{number}: {}", self.begin)));
            pieces.push(Piece::Run(Run::new(1, self.features_side, self.features_side)));
            pieces.push(Piece::Text(self.end.clone()));
        }
        Ok(Expansion { media: vec![self.media(&tiles)], pieces })
    }

    fn markers(&self) -> &Markers {
        &self.markers
    }
}
