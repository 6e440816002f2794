//! A picture as a reader is shown it: laid out like the pictures that the reader has learned from.

use image::{Rgb, RgbImage, imageops};
use loongforge_core::config::{FrameSize, SampleReader};

/// Returns the part of the picture that is read, enlarged, on its paper.
pub fn laid_out(picture: &RgbImage, settings: &SampleReader) -> RgbImage {
    let part = settings.window.map_or_else(|| picture.clone(), |window| lit(picture, window));
    let factor = settings.enlarge as u32;
    let (width, height) = (part.width() * factor, part.height() * factor);
    let mut shown = imageops::resize(&part, width, height, imageops::FilterType::Triangle);
    if settings.ink_on_paper {
        imageops::invert(&mut shown);
    }
    let Some(paper) = settings.paper else { return shown };
    let blank = if settings.ink_on_paper { 255 } else { 0 };
    let mut page = RgbImage::from_pixel(paper.columns.max(width), paper.rows.max(height), Rgb([blank; 3]));
    imageops::replace(&mut page, &shown, 0, 0);
    page
}

/// Returns the window around the center of mass of a picture's light.
fn lit(picture: &RgbImage, window: FrameSize) -> RgbImage {
    let (width, height) = picture.dimensions();
    let (columns, rows) = (window.columns.min(width), window.rows.min(height));
    let light = |x: u32, y: u32| picture.get_pixel(x, y).0.map(f64::from).iter().sum::<f64>();
    let (mut sum, mut at) = (0.0, [0.0, 0.0]);
    for (x, y) in (0..height).flat_map(|y| (0..width).map(move |x| (x, y))) {
        let light = light(x, y);
        sum += light;
        at = [at[0] + light * f64::from(x), at[1] + light * f64::from(y)];
    }
    let start = |moment: f64, side: u32, all: u32| {
        let middle = if sum > 0.0 { moment / sum } else { f64::from(all - 1) / 2.0 };
        ((middle - f64::from(side - 1) / 2.0).round().max(0.0) as u32).min(all - side)
    };
    imageops::crop_imm(picture, start(at[0], columns, width), start(at[1], rows, height), columns, rows).to_image()
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{DynamicImage, GrayImage};
    use serde_json::json;

    fn gray(rows: &[&[u8]]) -> RgbImage {
        let (width, height) = (rows[0].len() as u32, rows.len() as u32);
        DynamicImage::ImageLuma8(GrayImage::from_raw(width, height, rows.concat()).unwrap()).into_rgb8()
    }

    fn shown(picture: &RgbImage, settings: serde_json::Value) -> RgbImage {
        let mut all = json!({ "load": "reader" });
        settings.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
        laid_out(picture, &serde_json::from_value(all).unwrap())
    }

    #[test]
    fn a_picture_is_cut_around_its_light_enlarged_and_laid_on_paper() {
        let picture = gray(&[&[0, 0, 0, 0], &[0, 0, 0, 80], &[0, 0, 0, 40]]);
        assert_eq!(shown(&picture, json!({})), picture);
        assert_eq!(shown(&picture, json!({ "window": "2x2" })), gray(&[&[0, 80], &[0, 40]]));
        assert_eq!(shown(&picture, json!({ "window": "9x1" })), gray(&[&[0], &[80], &[40]]));
        // Without light the middle is shown.
        assert_eq!(shown(&gray(&[&[0, 0, 0]]), json!({ "window": "1x1" })), gray(&[&[0]]));
        // Between two pixels there is a quarter of the other.
        let row = gray(&[&[0, 80]]);
        assert_eq!(shown(&row, json!({ "enlarge": 2 })), gray(&[&[0, 20, 60, 80], &[0, 20, 60, 80]]));
        let on_paper = shown(&row, json!({ "ink_on_paper": true, "paper": "2x3" }));
        assert_eq!(on_paper, gray(&[&[255, 175, 255], &[255, 255, 255]]));
        assert_eq!(shown(&row, json!({ "paper": "1x1" })), row);
    }
}
