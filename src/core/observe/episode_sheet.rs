//! A recorded episode as PNG: frames of each camera in a row, and below them the numbers over the same time.

use std::path::Path;

use embedded_graphics::geometry::Point;
use embedded_graphics::mono_font::ascii::{FONT_7X13, FONT_9X15_BOLD};
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::text::Alignment;
use image::RgbImage;
use image::imageops::{FilterType, resize};

use super::canvas::Canvas;
use super::error::{ObserveError, save_png};

/// Width of the part where time goes, and of the names beside it.
const WIDTH: u32 = 1120;
const NAMES: u32 = 170;
const HEADER: u32 = 40;
const FRAME_HEIGHT: u32 = 140;
const PANEL_HEIGHT: u32 = 64;
const GAP: u32 = 8;
const INK: Rgb888 = Rgb888::new(40, 40, 40);
const GRID: Rgb888 = Rgb888::new(228, 228, 228);
const CURVE: Rgb888 = Rgb888::new(31, 100, 180);
const MAX_CHARS: usize = 23;

/// Frames of one camera, evenly over the episode.
pub struct Strip {
    pub name: String,
    pub frames: Vec<RgbImage>,
}

/// A number of every frame of the episode.
pub struct Track {
    pub name: String,
    pub values: Vec<f32>,
}

/// Draws strips and tracks under a title.
///
/// # Errors
/// The file cannot be written.
pub fn episode_sheet(path: &Path, title: &str, strips: &[Strip], tracks: &[Track]) -> Result<(), ObserveError> {
    save_png(&draw(title, strips, tracks).0, path)
}

fn draw(title: &str, strips: &[Strip], tracks: &[Track]) -> Canvas {
    let (frames, panels) = (FRAME_HEIGHT + GAP, PANEL_HEIGHT + GAP);
    let height = HEADER + strips.len() as u32 * frames + tracks.len() as u32 * panels;
    let mut canvas = Canvas::white(NAMES + WIDTH + GAP, height);
    canvas.text(title, Point::new(GAP as i32, HEADER as i32 / 2), Alignment::Left, &FONT_9X15_BOLD, INK);
    let mut top = HEADER;
    for Strip { name, frames: pictures } in strips {
        label(&mut canvas, name, top + FRAME_HEIGHT / 2);
        let cell = WIDTH / pictures.len().max(1) as u32;
        for (picture, number) in pictures.iter().zip(0..) {
            canvas.paste(&fitted(picture, cell.saturating_sub(GAP).max(1)), NAMES + number * cell, top);
        }
        top += frames;
    }
    for track in tracks {
        label(&mut canvas, &track.name, top + PANEL_HEIGHT / 2);
        curve(&mut canvas, &track.values, top);
        top += panels;
    }
    canvas
}

fn label(canvas: &mut Canvas, name: &str, y: u32) {
    let short: String = name.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_CHARS).collect();
    canvas.text(&short, Point::new(GAP as i32, y as i32), Alignment::Left, &FONT_7X13, INK);
}

/// Draws the line of values between their lowest and highest, which are written at the edges; values that are not finite are left out.
fn curve(canvas: &mut Canvas, values: &[f32], top: u32) {
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    let (low, high) = finite().fold((f32::MAX, f32::MIN), |(low, high), value| (low.min(value), high.max(value)));
    let (left, right) = (NAMES as i32, (NAMES + WIDTH) as i32);
    let (top, bottom) = (top as i32, (top + PANEL_HEIGHT) as i32);
    for y in [top, bottom] {
        canvas.line(Point::new(left, y), Point::new(right, y), GRID, 1);
    }
    if low > high {
        return;
    }
    let range = (high - low).max(f32::EPSILON);
    let last = (values.len().max(2) - 1) as f32;
    let place = |(frame, value): (usize, &f32)| {
        let x = left as f32 + frame as f32 / last * WIDTH as f32;
        let y = bottom as f32 - (value - low) / range * PANEL_HEIGHT as f32;
        Point::new(x as i32, y as i32)
    };
    let points: Vec<Point> = values.iter().enumerate().filter(|(_, value)| value.is_finite()).map(place).collect();
    points.windows(2).for_each(|pair| canvas.line(pair[0], pair[1], CURVE, 2));
    let edge = |value: f32| format!("{value:.3}");
    for (value, y) in [(high, top + 7), (low, bottom - 7)] {
        canvas.text(&edge(value), Point::new(left - 4, y), Alignment::Right, &FONT_7X13, INK);
    }
}

/// Returns the picture as large as it fits into a cell of this width.
fn fitted(picture: &RgbImage, width: u32) -> RgbImage {
    let (own_width, own_height) = (f64::from(picture.width().max(1)), f64::from(picture.height().max(1)));
    let scale = (f64::from(width) / own_width).min(f64::from(FRAME_HEIGHT) / own_height);
    let side = |side: f64| ((side * scale) as u32).max(1);
    let filter = if scale >= 1.0 { FilterType::Nearest } else { FilterType::Triangle };
    resize(picture, side(own_width), side(own_height), filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_lie_above_the_numbers_of_their_time() {
        let red = RgbImage::from_pixel(10, 10, image::Rgb([250, 0, 0]));
        let strips = [Strip { name: "top".into(), frames: vec![red.clone(), red] }];
        let tracks = [
            Track { name: "dx".into(), values: vec![0.0, 1.0, f32::NAN, 0.0] },
            Track { name: "none".into(), values: vec![f32::NAN] },
        ];
        let canvas = draw("episode 1", &strips, &tracks);
        assert_eq!(canvas.0.dimensions(), (NAMES + WIDTH + GAP, HEADER + FRAME_HEIGHT + 2 * PANEL_HEIGHT + 3 * GAP));
        assert_eq!(canvas.0.get_pixel(NAMES + 5, HEADER + 5).0, [250, 0, 0]);
        assert_eq!(canvas.0.get_pixel(NAMES + WIDTH / 2 + 5, HEADER + 5).0, [250, 0, 0]);
        // The highest value is at a third of the time and at the upper edge of its panel.
        let top = HEADER + FRAME_HEIGHT + GAP;
        let blue = |x: u32, y: u32| canvas.0.get_pixel(x, y).0 == [31, 100, 180];
        assert!((top..top + 3).any(|y| blue(NAMES + WIDTH / 3, y)), "no peak");
        assert!(!(top..top + 10).any(|y| blue(NAMES + 5, y)));
    }
}
