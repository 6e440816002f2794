//! Frames of luma and chroma as rows of RGB, in BT.601 as the decoders of Hugging Face's processors do.

use std::sync::LazyLock;

/// Bits behind the point of what tables have.
const BITS: u32 = 16;
/// Sums that are looked up: from a half below zero to a half above; those of bytes lie within -277 and 534.
const NUM_SUMS: usize = 2048;

/// The tables hold what a byte of luma or chroma adds to a color.
struct Tables {
    luma: [i32; 256],
    red: [i32; 256],
    green: [[i32; 256]; 2],
    blue: [i32; 256],
    /// A sum, which may be negative, as a byte.
    bytes: [u8; NUM_SUMS],
}

impl Tables {
    /// `is_full`: bytes have all values, and not 16 to 235 (luma) or 240 (chroma).
    fn new(is_full: bool) -> Self {
        let (black, luma, chroma) = if is_full { (0.0, 255.0, 255.0) } else { (16.0, 219.0, 224.0) };
        let table = |middle: f64, factor: f64| {
            let value = |at: usize| ((at as f64 - middle) * factor * f64::from(1 << BITS)).round() as i32;
            std::array::from_fn(value)
        };
        let of_chroma = |factor: f64| table(128.0, factor * 255.0 / chroma);
        let byte = |at: usize| {
            let sum = if at < NUM_SUMS / 2 { at as i64 } else { at as i64 - NUM_SUMS as i64 };
            sum.clamp(0, 255) as u8
        };
        Self {
            luma: table(black, 255.0 / luma),
            red: of_chroma(1.402),
            green: [of_chroma(0.344_136), of_chroma(0.714_136)],
            blue: of_chroma(1.772),
            bytes: std::array::from_fn(byte),
        }
    }

    /// Looks up what chroma adds to red, green and blue.
    fn chroma(&self, u: u8, v: u8) -> [i32; 3] {
        let (u, v) = (usize::from(u), usize::from(v));
        [self.red[v], -self.green[0][u] - self.green[1][v], self.blue[u]]
    }

    /// Returns a pixel. Fractions are cut off, as swscale does.
    fn pixel(&self, luma: u8, chroma: [i32; 3]) -> [u8; 3] {
        let luma = self.luma[usize::from(luma)];
        let byte = |chroma: i32| self.bytes[((luma + chroma) >> BITS) as usize & (NUM_SUMS - 1)];
        let [red, green, blue] = chroma;
        [byte(red), byte(green), byte(blue)]
    }
}

/// Limited and full range.
static TABLES: LazyLock<[Tables; 2]> = LazyLock::new(|| [false, true].map(Tables::new));

/// Writes a row of pixels. `chroma` has a value of u and of v for `columns` pixels, one or two; a gray picture has none.
pub fn write_row(luma: &[u8], chroma: Option<[&[u8]; 2]>, columns: usize, is_full: bool, rgb: &mut [u8]) {
    let tables = &TABLES[usize::from(is_full)];
    let pixels = rgb.as_chunks_mut::<3>().0;
    let Some([us, vs]) = chroma else {
        let gray = tables.chroma(128, 128);
        return pixels.iter_mut().zip(luma).for_each(|(pixel, &luma)| *pixel = tables.pixel(luma, gray));
    };
    let colors = us.iter().zip(vs).map(|(&u, &v)| tables.chroma(u, v));
    if columns == 1 {
        for ((pixel, &luma), chroma) in pixels.iter_mut().zip(luma).zip(colors) {
            *pixel = tables.pixel(luma, chroma);
        }
        return;
    }
    for ((pixels, luma), chroma) in pixels.chunks_mut(2).zip(luma.chunks(2)).zip(colors) {
        // Nearly all of them are two; so it is known how many there are.
        if let ([first, second], &[left, right]) = (&mut *pixels, luma) {
            (*first, *second) = (tables.pixel(left, chroma), tables.pixel(right, chroma));
        } else if let ([last], &[luma]) = (pixels, luma) {
            *last = tables.pixel(luma, chroma);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::write_row;

    /// Computes a color by the formula, in float32.
    fn color_of(luma: u8, [u, v]: [u8; 2], is_full: bool) -> [f32; 3] {
        let (black, luma_range, chroma_range) = if is_full { (0.0, 255.0, 255.0) } else { (16.0, 219.0, 224.0) };
        let luma = (f32::from(luma) - black) * (255.0 / luma_range);
        let [u, v] = [u, v].map(|chroma| (f32::from(chroma) - 128.0) * (255.0 / chroma_range));
        [luma + 1.402 * v, luma - 0.344_136 * u - 0.714_136 * v, luma + 1.772 * u]
    }

    #[test]
    fn rows_are_those_of_the_formula() {
        let bytes: Vec<u8> = (0..=255).step_by(5).collect();
        // An odd number of pixels.
        let luma: Vec<u8> = bytes.iter().copied().chain(bytes.iter().rev().copied()).skip(1).collect();
        let check = |columns: usize, [u, v]: [u8; 2], is_full: bool| {
            let count = luma.len().div_ceil(columns);
            // Chroma of each place is another one.
            let [us, vs] = [u, v].map(|at| (0..count).map(|place| at.wrapping_add(place as u8)).collect::<Vec<u8>>());
            let mut rgb = vec![0; luma.len() * 3];
            write_row(&luma, Some([&us, &vs]), columns, is_full, &mut rgb);
            for (at, pixel) in rgb.chunks(3).enumerate() {
                let expected = color_of(luma[at], [us[at / columns], vs[at / columns]], is_full);
                for (found, expected) in pixel.iter().zip(expected) {
                    // Where the formula comes to a whole number float32 may be just below it.
                    let near = [expected - 1e-3, expected + 1e-3].map(|value| value as u8);
                    assert!(near.contains(found), "{found} {expected}: {u} {v} {columns} {is_full}");
                }
            }
        };
        for is_full in [false, true] {
            for columns in [1, 2] {
                for &u in &bytes {
                    bytes.iter().for_each(|&v| check(columns, [u, v], is_full));
                }
            }
            let mut rgb = vec![0; luma.len() * 3];
            write_row(&luma, None, 1, is_full, &mut rgb);
            for (pixel, luma) in rgb.chunks(3).zip(&luma) {
                let near = color_of(*luma, [128; 2], is_full)
                    .map(|value| [value - 1e-3, value + 1e-3].map(|value| value as u8));
                assert!(
                    pixel[0] == pixel[1] && pixel[1] == pixel[2] && near[0].contains(&pixel[0]),
                    "{luma} {pixel:?}"
                );
            }
        }
    }
}
