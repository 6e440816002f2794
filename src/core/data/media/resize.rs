//! Resizing of bytes. The size is chosen elsewhere.

use std::borrow::Cow;

use fast_image_resize::images::{Image as Buffer, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use image::RgbImage;

use super::patches::CHANNELS;
use super::settings::Filter;

/// Resizes a picture bicubically with anti-aliasing, as torchvision does for bytes: widths first. Returns [height, width, 3]: the picture
/// itself where it has that size.
///
/// # Errors
/// The reason: the resizer does not take these sizes.
pub fn resize_bicubic(picture: &RgbImage, width: usize, height: usize) -> Result<Cow<'_, [u8]>, String> {
    resize(picture, width, height, FilterType::CatmullRom)
}

/// Works like [`resize_bicubic`] with another filter.
///
/// # Errors
/// Fails as [`resize_bicubic`] does.
pub fn resize_bilinear(picture: &RgbImage, width: usize, height: usize) -> Result<Cow<'_, [u8]>, String> {
    resize(picture, width, height, FilterType::Bilinear)
}

/// Resizes with anti-aliasing as Pillow 13 does. Heights come first where they lose more than twice as many pixels as widths do; up
/// to Pillow 12 never.
///
/// # Errors
/// Fails as [`resize_bicubic`] does.
pub fn resize_as_pillow(
    picture: &RgbImage,
    width: usize,
    height: usize,
    filter: Filter,
) -> Result<Cow<'_, [u8]>, String> {
    let filter = match filter {
        Filter::Lanczos => FilterType::Lanczos3,
        Filter::Bilinear => FilterType::Bilinear,
        Filter::Bicubic => FilterType::CatmullRom,
    };
    let (old_width, old_height) = picture.dimensions();
    let lost = |old: u32, new: usize| i64::from(old) - new as i64;
    if lost(old_height, height) <= 2 * lost(old_width, width).max(0) {
        return resize(picture, width, height, filter);
    }
    let lower = (old_width, height as u32);
    let columns = resize_once(picture.as_raw(), (old_width, old_height), lower, filter)?;
    match old_width as usize == width {
        true => Ok(columns.into()),
        false => Ok(resize_once(&columns, lower, (width as u32, height as u32), filter)?.into()),
    }
}

/// Returns the middle of a picture `[height, width, 3]` of the first size, which is at least as large as the second.
pub fn middle(rgb: &[u8], (width, height): (usize, usize), (cut_width, cut_height): (usize, usize)) -> Vec<u8> {
    let (left, top) = ((width - cut_width) / 2, (height - cut_height) / 2);
    let rows = rgb.chunks(width * CHANNELS).skip(top).take(cut_height);
    rows.flat_map(|row| &row[left * CHANNELS..(left + cut_width) * CHANNELS]).copied().collect()
}

fn resize(picture: &RgbImage, width: usize, height: usize, filter: FilterType) -> Result<Cow<'_, [u8]>, String> {
    let (old_width, old_height) = (picture.width(), picture.height());
    // Two calls, so that rows come first as there: each pass rounds and clips to bytes, so the order shows.
    let rows = match old_width as usize == width {
        true => Cow::Borrowed(picture.as_raw().as_slice()),
        false => resize_once(picture.as_raw(), (old_width, old_height), (width as u32, old_height), filter)?.into(),
    };
    match old_height as usize == height {
        true => Ok(rows),
        false => Ok(resize_once(&rows, (width as u32, old_height), (width as u32, height as u32), filter)?.into()),
    }
}

/// Resizes all frames to one size.
///
/// # Errors
/// Fails as [`resize_bicubic`] does.
pub fn resize_all(frames: &[RgbImage], width: usize, height: usize) -> Result<Vec<Cow<'_, [u8]>>, String> {
    frames.iter().map(|frame| resize_bicubic(frame, width, height)).collect()
}

fn resize_once(rgb: &[u8], size: (u32, u32), new_size: (u32, u32), filter: FilterType) -> Result<Vec<u8>, String> {
    let source = ImageRef::new(size.0, size.1, rgb, PixelType::U8x3).map_err(|error| error.to_string())?;
    let mut target = Buffer::new(new_size.0, new_size.1, PixelType::U8x3);
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter));
    Resizer::new().resize(&source, &mut target, &options).map_err(|error| error.to_string())?;
    Ok(target.into_vec())
}
