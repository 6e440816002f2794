//! RGB pictures to normalized patches, as Hugging Face's `Qwen2VLImageProcessor` (transformers 5) makes them
//! for Qwen2-VL, Qwen2.5-VL and Qwen3-VL. Not for decoding files.

use std::path::Path;

use fast_image_resize::images::{Image as Buffer, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use image::RgbImage;
use serde::Deserialize;

use super::decode::MAX_ASPECT_RATIO;
use super::error::DataError;
use super::sample::Image;
use crate::config::ImageLimits;
use crate::message::Grid;

const CHANNELS: usize = 3;
/// PIL's number for bicubic, the only filter these models are trained with.
const BICUBIC: u8 = 3;

/// How pictures become patches; the names are those of `preprocessor_config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageProcessor {
    /// Side of a patch, in pixels.
    pub patch_size: usize,
    /// Side of the square of patches that becomes one token.
    pub merge_size: usize,
    /// Frames of a patch: a still picture is repeated.
    pub temporal_patch_size: usize,
    pub min_pixels: usize,
    pub max_pixels: usize,
    pub image_mean: [f32; CHANNELS],
    pub image_std: [f32; CHANNELS],
    /// Factor before normalization: 1/255.
    pub rescale_factor: f32,
}

#[derive(Deserialize)]
#[serde(default)]
struct Raw {
    patch_size: usize,
    merge_size: usize,
    temporal_patch_size: usize,
    size: RawSize,
    min_pixels: Option<usize>,
    max_pixels: Option<usize>,
    image_mean: [f32; CHANNELS],
    image_std: [f32; CHANNELS],
    rescale_factor: f32,
    resample: u8,
    do_resize: bool,
    do_rescale: bool,
    do_normalize: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawSize {
    shortest_edge: Option<usize>,
    longest_edge: Option<usize>,
    min_pixels: Option<usize>,
    max_pixels: Option<usize>,
}

impl Default for Raw {
    fn default() -> Self {
        Self {
            patch_size: 14,
            merge_size: 2,
            temporal_patch_size: 2,
            size: RawSize::default(),
            min_pixels: None,
            max_pixels: None,
            image_mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
            image_std: [0.268_629_54, 0.261_302_6, 0.275_777_1],
            rescale_factor: 1.0 / 255.0,
            resample: BICUBIC,
            do_resize: true,
            do_rescale: true,
            do_normalize: true,
        }
    }
}

impl ImageProcessor {
    /// From a model folder's `preprocessor_config.json`; `limits` overrides its numbers of pixels.
    pub fn open(path: &Path, limits: &ImageLimits) -> Result<Self, DataError> {
        let bytes = std::fs::read(path).map_err(|error| DataError::read(path, error))?;
        let raw: Raw = serde_json::from_slice(&bytes).map_err(|error| DataError::file(path, error))?;
        if raw.resample != BICUBIC || !(raw.do_resize && raw.do_rescale && raw.do_normalize) {
            return Err(DataError::file(path, "only do_resize, do_rescale, do_normalize and resample: 3 are known"));
        }
        let positive = |name: &str, value: usize| match value {
            0 => Err(DataError::file(path, format!("{name} is 0"))),
            value => Ok(value),
        };
        let RawSize { shortest_edge, longest_edge, min_pixels, max_pixels } = raw.size;
        let min_pixels = limits.min_pixels.or(raw.min_pixels).or(shortest_edge).or(min_pixels).unwrap_or(56 * 56);
        let max_pixels = limits.max_pixels.or(raw.max_pixels).or(longest_edge).or(max_pixels).unwrap_or(28 * 28 * 1280);
        if min_pixels > max_pixels {
            return Err(DataError::file(path, format!("min_pixels {min_pixels} above max_pixels {max_pixels}")));
        }
        Ok(Self {
            patch_size: positive("patch_size", raw.patch_size)?,
            merge_size: positive("merge_size", raw.merge_size)?,
            temporal_patch_size: positive("temporal_patch_size", raw.temporal_patch_size)?,
            min_pixels: positive("min_pixels", min_pixels)?,
            max_pixels,
            image_mean: raw.image_mean,
            image_std: raw.image_std,
            rescale_factor: raw.rescale_factor,
        })
    }

    /// Numbers of one patch: channels × frames × rows × columns.
    pub fn patch_dim(&self) -> usize {
        CHANNELS * self.temporal_patch_size * self.patch_size * self.patch_size
    }

    /// Tokens that a picture of this grid takes.
    pub fn num_tokens(&self, grid: Grid) -> usize {
        grid.num_patches() / (self.merge_size * self.merge_size)
    }

    /// Tokens that a picture of this size takes.
    pub fn num_tokens_of_size(&self, width: usize, height: usize) -> Result<usize, String> {
        let factor = self.patch_size * self.merge_size;
        let (height, width) = smart_resize(height, width, factor, self.min_pixels, self.max_pixels)?;
        Ok(height * width / (factor * factor))
    }

    /// The most tokens that one picture can take, but for elongated ones.
    pub fn max_image_tokens(&self) -> usize {
        self.max_pixels / (self.patch_size * self.merge_size).pow(2)
    }

    /// Resizes, normalizes and cuts into patches, in the order in which the model merges them.
    pub fn process(&self, picture: &RgbImage) -> Result<Image, String> {
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        let factor = self.patch_size * self.merge_size;
        let (new_height, new_width) = smart_resize(height, width, factor, self.min_pixels, self.max_pixels)?;
        let resized = resize_bicubic(picture, new_width, new_height)?;
        let grid = Grid { t: 1, h: (new_height / self.patch_size) as u32, w: (new_width / self.patch_size) as u32 };
        Ok(Image { grid, pixels: self.patchify(&resized, new_width, grid) })
    }

    /// `rgb`: [height, width, 3]. Returns [patches, channels × frames × rows × columns].
    fn patchify(&self, rgb: &[u8], width: usize, grid: Grid) -> Vec<f32> {
        let Self { patch_size: patch, merge_size: merge, .. } = *self;
        // As transformers fuses the two steps: (x - mean/factor) / (std/factor), in float32.
        let mean = self.image_mean.map(|mean| mean * (1.0 / self.rescale_factor));
        let std = self.image_std.map(|std| std * (1.0 / self.rescale_factor));
        let table: [[f32; 256]; CHANNELS] =
            std::array::from_fn(|c| std::array::from_fn(|value| (value as f32 - mean[c]) / std[c]));
        let mut pixels = Vec::with_capacity(grid.num_patches() * self.patch_dim());
        let (rows, columns) = (grid.h as usize / merge, grid.w as usize / merge);
        for (block_row, block_column) in (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))) {
            for (inner_row, inner_column) in (0..merge).flat_map(|r| (0..merge).map(move |c| (r, c))) {
                let top = (block_row * merge + inner_row) * patch;
                let left = (block_column * merge + inner_column) * patch;
                for (channel, table) in table.iter().enumerate() {
                    let begin = pixels.len();
                    for y in top..top + patch {
                        let row = &rgb[(y * width + left) * CHANNELS..][..patch * CHANNELS];
                        pixels.extend(row.iter().skip(channel).step_by(CHANNELS).map(|&v| table[usize::from(v)]));
                    }
                    let end = pixels.len();
                    for _ in 1..self.temporal_patch_size {
                        pixels.extend_from_within(begin..end);
                    }
                }
            }
        }
        pixels
    }
}

/// Height and width that are multiples of `factor`, within the range of pixels, near the same shape.
/// `smart_resize` of transformers; Python rounds halves to even.
pub fn smart_resize(
    height: usize,
    width: usize,
    factor: usize,
    min_pixels: usize,
    max_pixels: usize,
) -> Result<(usize, usize), String> {
    let (h, w, f) = (height as f64, width as f64, factor as f64);
    if h.max(w) / h.min(w) > MAX_ASPECT_RATIO {
        return Err(format!("is {width}×{height} pixels, an aspect ratio above {MAX_ASPECT_RATIO}"));
    }
    let (mut h_bar, mut w_bar) = ((h / f).round_ties_even() * f, (w / f).round_ties_even() * f);
    if h_bar * w_bar > max_pixels as f64 {
        let beta = (h * w / max_pixels as f64).sqrt();
        h_bar = f.max((h / beta / f).floor() * f);
        w_bar = f.max((w / beta / f).floor() * f);
    } else if h_bar * w_bar < min_pixels as f64 {
        let beta = (min_pixels as f64 / (h * w)).sqrt();
        h_bar = (h * beta / f).ceil() * f;
        w_bar = (w * beta / f).ceil() * f;
    }
    // A side that rounds to nothing while the other keeps the product in range.
    Ok((h_bar.max(f) as usize, w_bar.max(f) as usize))
}

/// Bicubic with anti-aliasing, as Pillow and torchvision do for bytes. Returns [height, width, 3].
fn resize_bicubic(picture: &RgbImage, width: usize, height: usize) -> Result<Vec<u8>, String> {
    // Two calls, so that rows come first as there: each pass rounds and clips to bytes, so the order shows.
    let rows = resize_once(picture.as_raw(), picture.width(), picture.height(), width as u32, picture.height())?;
    resize_once(&rows, width as u32, picture.height(), width as u32, height as u32)
}

fn resize_once(rgb: &[u8], width: u32, height: u32, new_width: u32, new_height: u32) -> Result<Vec<u8>, String> {
    let source = ImageRef::new(width, height, rgb, PixelType::U8x3).map_err(|error| error.to_string())?;
    let mut target = Buffer::new(new_width, new_height, PixelType::U8x3);
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom));
    Resizer::new().resize(&source, &mut target, &options).map_err(|error| error.to_string())?;
    Ok(target.into_vec())
}

#[cfg(test)]
mod tests {
    use image::Rgb;

    use super::*;

    fn processor() -> ImageProcessor {
        let file = tempfile::NamedTempFile::new().unwrap();
        let json = r#"{"patch_size": 8, "size": {"shortest_edge": 256, "longest_edge": 4096}}"#;
        std::fs::write(file.path(), json).unwrap();
        ImageProcessor::open(file.path(), &ImageLimits::default()).unwrap()
    }

    #[derive(Deserialize)]
    struct Golden {
        width: u32,
        height: u32,
        seed: u32,
        grid: [u32; 3],
        len: usize,
        sum: f64,
        stride: usize,
        values: Vec<f32>,
    }

    #[test]
    fn equal_to_transformers() {
        let goldens: Vec<Golden> = serde_json::from_str(include_str!("goldens/pixels.json")).unwrap();
        for golden in goldens {
            let Golden { width, height, seed, .. } = golden;
            let picture = RgbImage::from_fn(width, height, |x, y| {
                Rgb([(x * 7 + y * seed) as u8, (x * y + 31 * seed) as u8, (((x / 5 + y / 3) % 2) * 200 + 20) as u8])
            });
            let image = processor().process(&picture).unwrap();
            assert_eq!([image.grid.t, image.grid.h, image.grid.w], golden.grid);
            assert_eq!(image.pixels.len(), golden.len);
            // One step of a byte is 1/255/0.26: rounding in the two resizers may differ by one step, seldom.
            let step = 1.0 / 255.0 / 0.26;
            let mut differ = 0;
            for (ours, theirs) in image.pixels.iter().step_by(golden.stride).zip(&golden.values) {
                let error = (ours - theirs).abs();
                assert!(error < step * 1.1, "{width}×{height}: {ours} {theirs}");
                differ += usize::from(error > 1e-5);
            }
            assert!(differ * 100 <= golden.values.len(), "{width}×{height}: {differ} of {}", golden.values.len());
            let sum: f64 = image.pixels.iter().map(|&value| f64::from(value)).sum();
            assert!((sum - golden.sum).abs() / golden.len as f64 <= 1e-4, "{sum} {}", golden.sum);
        }
    }

    #[test]
    fn smart_resize_is_that_of_transformers() {
        let goldens: Vec<[usize; 7]> = serde_json::from_str(include_str!("goldens/smart_resize.json")).unwrap();
        for [height, width, factor, min, max, new_height, new_width] in goldens {
            let size = smart_resize(height, width, factor, min, max).unwrap_or((0, 0));
            // A side that rounds to 0 fails in transformers later; here it is one patch.
            let expected = if new_height * new_width == 0 { size } else { (new_height, new_width) };
            assert_eq!(size, expected, "{height}×{width}");
        }
        assert!(smart_resize(1, 201, 16, 256, 4096).unwrap_err().contains("aspect ratio"));
    }

    #[test]
    fn configuration_mistakes_name_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = |json: &str, limits: &ImageLimits| {
            std::fs::write(file.path(), json).unwrap();
            ImageProcessor::open(file.path(), limits).map_err(|error| error.to_string())
        };
        let limits = ImageLimits { max_pixels: Some(1000), min_pixels: Some(10), ..Default::default() };
        let processor = open(r#"{"min_pixels": 5, "max_pixels": 9}"#, &limits).unwrap();
        assert_eq!((processor.min_pixels, processor.max_pixels, processor.patch_size), (10, 1000, 14));
        for (json, part) in [
            (r#"{"patch_size": 0}"#, "patch_size is 0"),
            (r#"{"resample": 2}"#, "resample: 3"),
            (r#"{"size": {"shortest_edge": 9, "longest_edge": 3}}"#, "above max_pixels 3"),
            ("{", "EOF"),
        ] {
            let error = open(json, &ImageLimits::default()).unwrap_err();
            assert!(error.contains(part) && error.contains(file.path().to_str().unwrap()), "{error}");
        }
    }
}
