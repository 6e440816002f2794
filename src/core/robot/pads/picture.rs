//! What the camera above the table sees: 32 × 32 pixels with smooth edges. Additions, products and roots only, which every machine
//! rounds in the same way, so that the bytes are the same everywhere, and in Python.

use super::scene::{AGENT_RADIUS, PAD_RADIUS, Point, Scene, distance};
use image::{Rgb, RgbImage};

/// Rows and columns of a picture.
pub const SIDE: u32 = 32;
const TABLE: [f64; 3] = [235.0, 235.0, 235.0];
/// In the order of the colors' names.
pub const PAD_COLORS: [[f64; 3]; 3] = [[214.0, 48.0, 49.0], [46.0, 160.0, 67.0], [52.0, 101.0, 220.0]];
const AGENT: [f64; 3] = [20.0, 20.0, 20.0];
/// What a camera sees that is covered.
const BLANK: u8 = 128;

/// Returns the table as the camera sees it.
pub fn picture(scene: &Scene) -> RgbImage {
    let pads = scene.layout.pads.iter().zip(PAD_COLORS).map(|(center, color)| (*center, PAD_RADIUS, color));
    let discs: Vec<_> = pads.chain([(scene.agent, AGENT_RADIUS, AGENT)]).collect();
    RgbImage::from_fn(SIDE, SIDE, |column, row| {
        let place = [column, row].map(|at| (f64::from(at) + 0.5) / f64::from(SIDE));
        let mut pixel = TABLE;
        for &(center, radius, color) in &discs {
            let covered = coverage(place, center, radius);
            for (value, top) in pixel.iter_mut().zip(color) {
                *value += (top - *value) * covered;
            }
        }
        Rgb(pixel.map(|value| (value + 0.5).floor() as u8))
    })
}

/// The part of a pixel that a disc covers: from 1 to 0 over the width of a pixel.
fn coverage(place: Point, center: Point, radius: f64) -> f64 {
    ((radius - distance(place, center)) * f64::from(SIDE) + 0.5).clamp(0.0, 1.0)
}

/// Returns the picture of a covered camera.
pub fn blank() -> RgbImage {
    RgbImage::from_pixel(SIDE, SIDE, Rgb([BLANK; 3]))
}
