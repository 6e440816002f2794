//! The picture of the camera above the table: 32 × 32 pixels with smooth edges. It uses only additions, products and roots, which every
//! machine rounds in the same way, so that the bytes are the same everywhere, and in Python.

use super::scene::{AGENT_RADIUS, PAD_RADIUS, Point, Scene, distance};
use image::{Rgb, RgbImage};

/// Rows and columns of a picture.
pub const SIDE: u32 = 32;
const TABLE: [f64; 3] = [235.0, 235.0, 235.0];
/// The colors of the pads, in the order of the colors' names.
pub const PAD_COLORS: [[f64; 3]; 3] = [[214.0, 48.0, 49.0], [46.0, 160.0, 67.0], [52.0, 101.0, 220.0]];
const AGENT: [f64; 3] = [20.0, 20.0, 20.0];
/// The value of every pixel of a camera that is covered.
const BLANK: u8 = 128;

/// Returns the table as the camera sees it.
pub fn picture(scene: &Scene) -> RgbImage {
    let mut pixels = vec![TABLE; (SIDE * SIDE) as usize];
    for (&center, color) in scene.layout.pads.iter().zip(PAD_COLORS) {
        draw(&mut pixels, center, PAD_RADIUS, color);
    }
    draw(&mut pixels, scene.agent, AGENT_RADIUS, AGENT);
    let values = pixels.into_iter().flatten().map(|value| (value + 0.5).floor() as u8).collect();
    RgbImage::from_raw(SIDE, SIDE, values).expect("three values a pixel")
}

/// Draws a disc: only pixels whose centers it could cover are looked at, all others have a coverage of 0.
fn draw(pixels: &mut [[f64; 3]], center: Point, radius: f64, color: [f64; 3]) {
    let side = f64::from(SIDE);
    let reach = radius * side + 1.0;
    let [columns, rows] = center.map(|at| {
        let first = (at * side - reach).max(0.0) as u32;
        first..((at * side + reach).max(0.0) as u32 + 1).min(SIDE)
    });
    for row in rows {
        for column in columns.clone() {
            let place = [column, row].map(|at| (f64::from(at) + 0.5) / side);
            let covered = coverage(place, center, radius);
            let pixel = &mut pixels[(row * SIDE + column) as usize];
            for (value, top) in pixel.iter_mut().zip(color) {
                *value += (top - *value) * covered;
            }
        }
    }
}

/// Returns the part of a pixel that a disc covers: from 1 to 0 over the width of a pixel.
fn coverage(place: Point, center: Point, radius: f64) -> f64 {
    ((radius - distance(place, center)) * f64::from(SIDE) + 0.5).clamp(0.0, 1.0)
}

/// Returns the picture of a covered camera.
pub fn blank() -> RgbImage {
    RgbImage::from_pixel(SIDE, SIDE, Rgb([BLANK; 3]))
}
