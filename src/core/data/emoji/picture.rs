//! A picture without its transparency: what lies under that is not meant to be seen, and decoders of models show it.

use std::io::Cursor;

use image::{ImageFormat, Rgb, RgbImage};

/// Returns a PNG file of the picture on white.
///
/// # Errors
/// The reason: no PNG file.
pub(super) fn on_white(png: &[u8]) -> Result<Vec<u8>, String> {
    let picture = image::load_from_memory_with_format(png, ImageFormat::Png).map_err(|error| error.to_string())?;
    let picture = picture.into_rgba8();
    let flat = RgbImage::from_fn(picture.width(), picture.height(), |x, y| {
        let [r, g, b, alpha] = picture.get_pixel(x, y).0.map(u32::from);
        Rgb([r, g, b].map(|value| ((value * alpha + 255 * (255 - alpha) + 127) / 255) as u8))
    });
    let mut file = Cursor::new(Vec::new());
    flat.write_to(&mut file, ImageFormat::Png).map_err(|error| error.to_string())?;
    Ok(file.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{Rgba, RgbaImage};

    #[test]
    fn what_is_seen_through_is_white() {
        let mut picture = RgbaImage::from_pixel(3, 1, Rgba([200, 0, 100, 255]));
        picture.put_pixel(1, 0, Rgba([200, 0, 100, 0]));
        picture.put_pixel(2, 0, Rgba([200, 0, 100, 51]));
        let mut file = Cursor::new(Vec::new());
        picture.write_to(&mut file, ImageFormat::Png).unwrap();
        let flat = image::load_from_memory(&on_white(file.get_ref()).unwrap()).unwrap().into_rgb8();
        assert_eq!(flat.into_raw(), [200, 0, 100, 255, 255, 255, 244, 204, 224]);
        assert!(on_white(b"GIF89a").is_err());
    }
}
