//! Bicubic resizing of bytes. Not for the choice of a size.

use fast_image_resize::images::{Image as Buffer, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use image::RgbImage;

/// Bicubic with anti-aliasing, as Pillow and torchvision do for bytes. Returns [height, width, 3].
pub fn resize_bicubic(picture: &RgbImage, width: usize, height: usize) -> Result<Vec<u8>, String> {
    if (picture.width() as usize, picture.height() as usize) == (width, height) {
        return Ok(picture.as_raw().clone());
    }
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
