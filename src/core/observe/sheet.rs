//! A sheet of pictures with what the model read in them, as PNG.

use std::path::Path;

use embedded_graphics::geometry::Point;
use embedded_graphics::mono_font::ascii::{FONT_7X13, FONT_9X15_BOLD};
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::text::Alignment;
use image::RgbImage;
use image::imageops::{FilterType, resize};

use super::canvas::Canvas;
use super::error::{ObserveError, save_png};

const COLUMNS: u32 = 4;
const CELL_WIDTH: u32 = 236;
const CELL_HEIGHT: u32 = 142;
const PICTURE_WIDTH: u32 = 220;
const PICTURE_HEIGHT: u32 = 96;
const HEADER: u32 = 40;
const INK: Rgb888 = Rgb888::new(40, 40, 40);
const CORRECT: Rgb888 = Rgb888::new(20, 130, 60);
const WRONG: Rgb888 = Rgb888::new(200, 40, 40);
const MAX_CHARS: usize = 24;

/// A picture, what it says and what was read.
pub struct Reading {
    pub picture: RgbImage,
    pub read: String,
    pub truth: String,
}

/// Writes a sheet of readings: green where a picture was read correctly; red with the truth where not.
///
/// # Errors
/// The picture cannot be written.
pub fn sheet(path: &Path, title: &str, readings: &[Reading]) -> Result<(), ObserveError> {
    save_png(&draw(title, readings).0, path)
}

fn draw(title: &str, readings: &[Reading]) -> Canvas {
    let rows = (readings.len() as u32).div_ceil(COLUMNS).max(1);
    let mut canvas = Canvas::white(COLUMNS * CELL_WIDTH, HEADER + rows * CELL_HEIGHT);
    canvas.text(title, Point::new(10, HEADER as i32 / 2), Alignment::Left, &FONT_9X15_BOLD, INK);
    for (reading, index) in readings.iter().zip(0..) {
        let (left, top) = (index % COLUMNS * CELL_WIDTH, HEADER + index / COLUMNS * CELL_HEIGHT);
        let picture = fit(&reading.picture);
        let x = left + (CELL_WIDTH - picture.width()) / 2;
        canvas.paste(&picture, x, top + (PICTURE_HEIGHT - picture.height()) / 2);
        let middle = Point::new((left + CELL_WIDTH / 2) as i32, (top + PICTURE_HEIGHT + 14) as i32);
        let correct = reading.read == reading.truth;
        let color = if correct { CORRECT } else { WRONG };
        canvas.text(&short(&reading.read), middle, Alignment::Center, &FONT_9X15_BOLD, color);
        if !correct {
            let truth = format!("is {}", short(&reading.truth));
            canvas.text(&truth, middle + Point::new(0, 16), Alignment::Center, &FONT_7X13, INK);
        }
    }
    canvas
}

/// Enlarges a picture in whole steps, or reduces it, to fit its cell.
fn fit(picture: &RgbImage) -> RgbImage {
    let (width, height) = (picture.width().max(1), picture.height().max(1));
    let scale = (PICTURE_WIDTH / width).min(PICTURE_HEIGHT / height);
    if scale >= 1 {
        return resize(picture, width * scale, height * scale, FilterType::Nearest);
    }
    let scale = (f64::from(PICTURE_WIDTH) / f64::from(width)).min(f64::from(PICTURE_HEIGHT) / f64::from(height));
    let side = |side: u32| ((f64::from(side) * scale) as u32).max(1);
    resize(picture, side(width), side(height), FilterType::Triangle)
}

/// Returns one line of bounded length: a model may read anything.
fn short(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_CHARS).collect();
    match (line.is_empty(), text.chars().nth(MAX_CHARS)) {
        (true, _) => "(nothing)".to_owned(),
        (_, Some(_)) => format!("{line}..."),
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use image::Rgb;

    use super::*;

    fn reading(width: u32, height: u32, read: &str, truth: &str) -> Reading {
        let picture = RgbImage::from_pixel(width, height, Rgb([9, 8, 7]));
        Reading { picture, read: read.into(), truth: truth.into() }
    }

    #[test]
    fn correct_is_green_and_wrong_is_red() {
        let canvas = draw("held out", &[reading(60, 30, "12", "12"), reading(1000, 2, "13", "12")]).0;
        let has = |color: Rgb888, left: u32| {
            use embedded_graphics::pixelcolor::RgbColor;
            let color = [color.r(), color.g(), color.b()];
            (left..left + CELL_WIDTH).any(|x| (HEADER..canvas.height()).any(|y| canvas.get_pixel(x, y).0 == color))
        };
        assert!(has(CORRECT, 0) && !has(WRONG, 0));
        assert!(has(WRONG, CELL_WIDTH) && !has(CORRECT, CELL_WIDTH));
        assert!(has(Rgb888::new(9, 8, 7), 0) && has(Rgb888::new(9, 8, 7), CELL_WIDTH));
    }

    #[test]
    fn any_size_and_text_fits() {
        assert_eq!(fit(&reading(60, 30, "", "").picture).dimensions(), (180, 90));
        assert_eq!(fit(&reading(2000, 10, "", "").picture).dimensions(), (220, 1));
        assert_eq!(short("a\nb"), "a b");
        assert_eq!(short(""), "(nothing)");
        assert_eq!(short(&"x".repeat(99)).len(), MAX_CHARS + 3);
        draw("none", &[]);
        draw("many", &(0..9).map(|_| reading(1, 500, "é\u{1b}[31m", "数")).collect::<Vec<_>>());
    }
}
