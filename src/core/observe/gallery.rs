//! A sheet of the pictures and clips that a model has made, each with its prompt, as one picture.

use embedded_graphics::geometry::Point;
use embedded_graphics::mono_font::ascii::{FONT_7X13, FONT_9X15_BOLD};
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::text::Alignment;
use image::RgbImage;
use image::imageops::{FilterType, resize};
use std::io::Cursor;
use std::path::Path;

use super::canvas::Canvas;
use super::error::{ObserveError, save_png};

const HEADER: u32 = 36;
const LINE: u32 = 16;
const GAP: u32 = 10;
/// Pixels of a row of the sheet, about, and of one picture's longer side.
const SHEET_WIDTH: u32 = 1200;
const MAX_SIDE: u32 = 480;
/// Small pictures are enlarged to about this height.
const MIN_HEIGHT: u32 = 96;
/// Pixels of a letter under a picture.
const LETTER: u32 = 7;
const INK: Rgb888 = Rgb888::new(40, 40, 40);

/// A picture, or a strip of frames, and the text under it.
pub struct Exhibit {
    pub picture: RgbImage,
    pub text: String,
}

/// Exhibits in rows, under a title.
pub struct Gallery(RgbImage);

impl Gallery {
    /// Draws the sheet: in rows and columns, each picture above its prompt.
    pub fn new(title: &str, exhibits: &[Exhibit]) -> Self {
        let pictures: Vec<RgbImage> = exhibits.iter().map(|exhibit| fit(&exhibit.picture)).collect();
        let width = pictures.iter().map(RgbImage::width).max().unwrap_or(1).max(24 * LETTER) + GAP;
        let height = pictures.iter().map(RgbImage::height).max().unwrap_or(1) + LINE + GAP;
        let columns = (SHEET_WIDTH / width).clamp(1, (exhibits.len() as u32).max(1));
        let rows = (exhibits.len() as u32).div_ceil(columns);
        let mut canvas = Canvas::white((columns * width).max(40 * LETTER) + GAP, HEADER + rows * height + GAP);
        canvas.text(title, Point::new(GAP as i32, HEADER as i32 / 2), Alignment::Left, &FONT_9X15_BOLD, INK);
        for ((exhibit, picture), index) in exhibits.iter().zip(&pictures).zip(0..) {
            let (left, top) = (GAP + index % columns * width, HEADER + index / columns * height);
            canvas.paste(picture, left, top);
            let at = Point::new(left as i32, (top + height - GAP - LINE / 2) as i32);
            let text = one_line(&exhibit.text, ((width - GAP) / LETTER) as usize);
            canvas.text(&text, at, Alignment::Left, &FONT_7X13, INK);
        }
        Self(canvas.0)
    }

    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), ObserveError> {
        save_png(&self.0, path)
    }

    /// Returns width and height in pixels.
    pub fn size(&self) -> (u32, u32) {
        self.0.dimensions()
    }

    /// Returns the sheet as PNG.
    ///
    /// # Errors
    /// It cannot be encoded, which is not to be expected.
    pub fn png(&self) -> Result<Vec<u8>, ObserveError> {
        let mut bytes = Cursor::new(Vec::new());
        let written = self.0.write_to(&mut bytes, image::ImageFormat::Png);
        written.map_err(|source| ObserveError::Picture { path: "a sheet in memory".into(), source })?;
        Ok(bytes.into_inner())
    }
}

/// Enlarges a picture in whole steps where it is small, and reduces it where it is large.
fn fit(picture: &RgbImage) -> RgbImage {
    let (width, height) = (picture.width().max(1), picture.height().max(1));
    let most = if width > 2 * height { SHEET_WIDTH - 2 * GAP } else { MAX_SIDE };
    let scale = (MIN_HEIGHT / height).min(most / width);
    if scale > 1 {
        return resize(picture, width * scale, height * scale, FilterType::Nearest);
    }
    let scale = (f64::from(most) / f64::from(width.max(height))).min(1.0);
    if scale == 1.0 {
        return picture.clone();
    }
    let side = |side: u32| ((f64::from(side) * scale) as u32).max(1);
    resize(picture, side(width), side(height), FilterType::Triangle)
}

fn one_line(text: &str, most: usize) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(most).collect();
    if text.chars().nth(most).is_none() {
        line
    } else {
        line.chars().take(most.saturating_sub(3)).collect::<String>() + "..."
    }
}

#[cfg(test)]
mod tests {
    use image::Rgb;

    use super::*;

    fn exhibit(width: u32, height: u32) -> Exhibit {
        Exhibit { picture: RgbImage::from_pixel(width, height, Rgb([9, 8, 7])), text: "a prompt\nof lines".repeat(9) }
    }

    #[test]
    fn every_picture_is_on_the_sheet_whatever_its_size() {
        assert_eq!(fit(&exhibit(24, 8).picture).dimensions(), (288, 96));
        assert_eq!(fit(&exhibit(1024, 1024).picture).dimensions(), (480, 480));
        assert_eq!(fit(&exhibit(3000, 10).picture).dimensions(), (1180, 3));
        for (count, width, height) in [(0, 1, 1), (1, 24, 8), (9, 24, 8), (3, 1024, 512), (2, 4000, 480)] {
            let exhibits: Vec<Exhibit> = (0..count).map(|_| exhibit(width, height)).collect();
            let gallery = Gallery::new("after 10 steps", &exhibits);
            let area: usize = exhibits.iter().map(|it| fit(&it.picture).len() / 3).sum();
            let found = gallery.0.pixels().filter(|pixel| pixel.0 == [9, 8, 7]).count();
            assert_eq!(found, area, "{count} of {width} x {height}");
            let read = image::load_from_memory(&gallery.png().unwrap()).unwrap();
            assert_eq!((read.width(), read.height()), gallery.size());
        }
        assert_eq!(one_line("abc\u{1b}def", 6), "abc...");
    }
}
