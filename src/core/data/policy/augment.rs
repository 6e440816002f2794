//! Random changes of training pictures, so that a policy does not learn one light and one place of a camera by heart: a crop, a
//! turn, and other colors, as openpi trains its policies and torchvision names them.

use image::RgbImage;

use crate::config::Augment;
use crate::rng::Counter;

/// Marks what these numbers are for.
const PURPOSE: u64 = 0x6175_676d;
/// The weights of red, green and blue in a gray value (ITU-R 601).
const GRAY: [f32; 3] = [0.299, 0.587, 0.114];
const CHANNELS: usize = 3;

/// A change of one picture.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Change {
    /// The share of rows and columns that is kept, and where the rest is left out: 0 at the beginning, 1 at the end.
    crop: f64,
    place: [f64; 2],
    /// Radians.
    turn: f64,
    /// Factors of brightness, contrast and saturation.
    color: [f32; 3],
    /// A part of the circle of hues.
    hue: f32,
}

/// Returns the picture that `camera` gives in the training sample `sample` of a run with this seed: the same for everyone who makes it.
pub fn augmented(picture: RgbImage, augment: &Augment, camera: &str, [seed, sample]: [u64; 2]) -> RgbImage {
    let of_camera = camera.bytes().fold(0u64, |key, byte| key.wrapping_mul(257).wrapping_add(u64::from(byte)));
    let change = Change::draw(augment, camera, Counter::new(&[seed, sample, of_camera, PURPOSE]));
    let moved = if change.keeps_places() { picture } else { change.moved(&picture) };
    change.colored(moved)
}

impl Change {
    fn draw(augment: &Augment, camera: &str, numbers: Counter) -> Self {
        let is_fixed = augment.fixed_cameras.iter().any(|part| camera.contains(part.as_str()));
        let [crop, rotate] = if is_fixed { [1.0, 0.0] } else { [augment.crop, augment.rotate] };
        let around = |index: u64, most: f64| 1.0 + most * (2.0 * numbers.unit(index) - 1.0);
        Self {
            crop,
            place: [numbers.unit(0), numbers.unit(1)],
            turn: (rotate * (2.0 * numbers.unit(2) - 1.0)).to_radians(),
            color: [
                around(3, augment.brightness) as f32,
                around(4, augment.contrast) as f32,
                around(5, augment.saturation) as f32,
            ],
            hue: (augment.hue * (2.0 * numbers.unit(6) - 1.0)) as f32,
        }
    }

    fn keeps_places(&self) -> bool {
        self.crop == 1.0 && self.turn == 0.0
    }

    /// Returns the part that is kept, as large as the whole was and turned about its middle; black where nothing was.
    fn moved(&self, picture: &RgbImage) -> RgbImage {
        let (width, height) = (f64::from(picture.width()), f64::from(picture.height()));
        let [left, top] = [width, height].map(|side| side * (1.0 - self.crop));
        let (left, top) = (left * self.place[0], top * self.place[1]);
        let (sin, cos) = self.turn.sin_cos();
        RgbImage::from_fn(picture.width(), picture.height(), |x, y| {
            // Of the middle of the new pixel the place in the old picture.
            let (x, y) = (f64::from(x) + 0.5 - width / 2.0, f64::from(y) + 0.5 - height / 2.0);
            let (x, y) = (cos * x + sin * y + width / 2.0, cos * y - sin * x + height / 2.0);
            image::Rgb(between(picture, left + x * self.crop - 0.5, top + y * self.crop - 0.5))
        })
    }

    /// Brightness, then contrast about the mean gray value, then saturation about each pixel's own, then hue.
    fn colored(&self, mut picture: RgbImage) -> RgbImage {
        let [brightness, contrast, saturation] = self.color;
        if self.color == [1.0; 3] && self.hue == 0.0 {
            return picture;
        }
        let gray = |pixel: &[f32]| pixel.iter().zip(GRAY).map(|(value, weight)| value * weight).sum::<f32>();
        let mut values: Vec<f32> =
            picture.iter().map(|&byte| (f32::from(byte) * brightness).clamp(0.0, 255.0)).collect();
        let count = (values.len() / CHANNELS).max(1);
        let mean = (values.chunks(CHANNELS).map(|pixel| f64::from(gray(pixel))).sum::<f64>() / count as f64) as f32;
        for pixel in values.chunks_mut(CHANNELS) {
            pixel.iter_mut().for_each(|value| *value = (mean + contrast * (*value - mean)).clamp(0.0, 255.0));
            let own = gray(pixel);
            pixel.iter_mut().for_each(|value| *value = (own + saturation * (*value - own)).clamp(0.0, 255.0));
            if self.hue != 0.0 {
                turn_hue(pixel, self.hue);
            }
        }
        picture.iter_mut().zip(values).for_each(|(byte, value)| *byte = value.round() as u8);
        picture
    }
}

/// Turns a color by a part of the circle of hues; its largest and its smallest value stay (HSV).
fn turn_hue(pixel: &mut [f32], part: f32) {
    let [red, green, blue] = [pixel[0], pixel[1], pixel[2]];
    let (least, most) = (red.min(green).min(blue), red.max(green).max(blue));
    let range = most - least;
    if range == 0.0 {
        return;
    }
    // In sixths of the circle.
    let hue = match most {
        most if most == red => (green - blue) / range,
        most if most == green => 2.0 + (blue - red) / range,
        _ => 4.0 + (red - green) / range,
    };
    let hue = hue + 6.0 * part;
    for (value, shift) in pixel.iter_mut().zip([5.0, 3.0, 1.0]) {
        let at = (hue + shift).rem_euclid(6.0);
        *value = most - range * at.min(4.0 - at).clamp(0.0, 1.0);
    }
}

/// Returns the color between the four pixels around a place; black outside.
fn between(picture: &RgbImage, x: f64, y: f64) -> [u8; CHANNELS] {
    let (left, top) = (x.floor(), y.floor());
    let (right_share, bottom_share) = (x - left, y - top);
    let mut color = [0.0; CHANNELS];
    for (column, row, share) in [
        (left, top, (1.0 - right_share) * (1.0 - bottom_share)),
        (left + 1.0, top, right_share * (1.0 - bottom_share)),
        (left, top + 1.0, (1.0 - right_share) * bottom_share),
        (left + 1.0, top + 1.0, right_share * bottom_share),
    ] {
        let inside = column >= 0.0 && row >= 0.0;
        let pixel = inside.then(|| picture.get_pixel_checked(column as u32, row as u32)).flatten();
        let Some(pixel) = pixel else { continue };
        color.iter_mut().zip(pixel.0).for_each(|(sum, value)| *sum += share * f64::from(value));
    }
    color.map(|value| value.round() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUES: [([f32; 3], f32, [u8; 3]); 8] = [
        ([68.0, 32.0, 130.0], -0.38, [32, 130, 41]),
        ([230.0, 241.0, 194.0], 0.29, [194, 241, 240]),
        ([48.0, 249.0, 14.0], 0.39, [60, 14, 249]),
        ([199.0, 221.0, 1.0], 0.2, [1, 221, 67]),
        ([136.0, 117.0, 52.0], 0.4, [52, 121, 136]),
        ([15.0, 11.0, 13.0], 0.15, [15, 13, 11]),
        ([4.0, 195.0, 110.0], 0.47, [195, 4, 123]),
        ([14.0, 113.0, 224.0], 0.44, [224, 49, 14]),
    ];

    fn picture() -> RgbImage {
        RgbImage::from_fn(40, 20, |x, y| image::Rgb([(6 * x) as u8, (12 * y) as u8, 90]))
    }

    fn of(augment: &Augment, camera: &str, sample: u64) -> RgbImage {
        augmented(picture(), augment, camera, [1, sample])
    }

    #[test]
    fn what_is_not_asked_for_is_left_as_it_is() {
        assert_eq!(of(&Augment::default(), "top", 3), picture());
        let turned = Augment { rotate: 30.0, crop: 0.8, ..Augment::default() };
        assert_eq!(of(&turned, "observation.images.left_wrist", 3), picture());
        assert_ne!(of(&turned, "top", 3), picture());
    }

    #[test]
    fn changes_belong_to_seed_sample_and_camera() {
        let augment = Augment { brightness: 0.3, crop: 0.9, ..Augment::default() };
        assert_eq!(of(&augment, "top", 3), of(&augment, "top", 3));
        assert_ne!(of(&augment, "top", 3), of(&augment, "top", 4));
        assert_ne!(of(&augment, "top", 3), of(&augment, "front", 3));
        assert_ne!(of(&augment, "top", 3), augmented(picture(), &augment, "top", [2, 3]));
    }

    /// The expected pictures follow the definition: a half of both sides, at the left edge and the lower one, without a turn; then a
    /// quarter turn of a square.
    #[test]
    fn parts_are_enlarged_and_turned_about_the_middle() {
        let still = Change { crop: 1.0, place: [0.0; 2], turn: 0.0, color: [1.0; 3], hue: 0.0 };
        let half = Change { crop: 0.5, place: [0.0, 1.0], ..still }.moved(&picture());
        // The middle of this pixel is at column 10.25 and row 5.25 of the part.
        let expected = [(6.0 * 9.75f64).round() as u8, (12.0 * (10.0 + 4.75f64)).round() as u8, 90];
        assert_eq!(half.get_pixel(20, 10).0.map(i32::from), expected.map(i32::from));
        let square = image::imageops::crop_imm(&picture(), 0, 0, 20, 20).to_image();
        let turned = Change { turn: std::f64::consts::FRAC_PI_2, ..still }.moved(&square);
        assert_eq!(turned, image::imageops::rotate90(&square));
    }

    #[test]
    fn colors_change_as_their_factors_say() {
        let still = Change { crop: 1.0, place: [0.0; 2], turn: 0.0, color: [1.0; 3], hue: 0.0 };
        let with = |color: [f32; 3]| Change { color, ..still }.colored(picture());
        assert_eq!(with([0.5, 1.0, 1.0]).get_pixel(20, 10).0, [60, 60, 45]);
        // Without contrast every pixel is the mean gray value, and without saturation its own.
        let flat = with([1.0, 0.0, 1.0]);
        assert!(flat.pixels().all(|pixel| pixel == flat.get_pixel(0, 0)));
        let gray = with([1.0, 1.0, 0.0]).get_pixel(20, 10).0;
        assert_eq!(gray, [(0.299f32 * 120.0 + 0.587 * 120.0 + 0.114 * 90.0).round() as u8; 3]);
    }

    /// The expected colors are those of Python's `colorsys`; a third of the circle makes red of blue, and gray stays.
    #[test]
    fn hues_are_turned() {
        let turned = |color: [f32; 3], part: f32| {
            let mut pixel = color;
            turn_hue(&mut pixel, part);
            pixel.map(|value| value.round() as u8)
        };
        assert_eq!(turned([10.0, 20.0, 240.0], 1.0 / 3.0), [240, 10, 20]);
        assert_eq!(turned([80.0, 80.0, 80.0], 0.2), [80; 3]);
        for (color, part, expected) in HUES {
            assert_eq!(turned(color, part), expected, "{color:?} by {part}");
        }
        let still = Change { crop: 1.0, place: [0.0; 2], turn: 0.0, color: [1.0; 3], hue: 0.1 };
        assert_ne!(still.colored(picture()), picture());
        assert_eq!(Change { hue: 0.0, ..still }.colored(picture()), picture());
    }
}
