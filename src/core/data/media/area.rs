//! Resizing as OpenCV does with `INTER_AREA` for bytes (`modules/imgproc/src/resize.cpp`): means of the pixels that a smaller picture's
//! pixel covers, and between two pixels of a larger one.

use image::RgbImage;

use super::patches::CHANNELS;

/// Bits of the weights between two pixels.
const BITS: i32 = 11;

/// A part of a row or column of pixels: the number of a pixel, and what it counts.
type Covered = Vec<(usize, f32)>;

/// Returns a picture of this size, `[height, width, 3]`.
pub fn resize_area(picture: &RgbImage, width: usize, height: usize) -> Vec<u8> {
    let (old_width, old_height) = (picture.width() as usize, picture.height() as usize);
    // As OpenCV computes them: the inverse of the inverse.
    let scale = |old: usize, new: usize| 1.0 / (new as f64 / old as f64);
    let scales = [scale(old_width, width), scale(old_height, height)];
    match () {
        () if (old_width, old_height) == (width, height) => picture.as_raw().clone(),
        () if scales.iter().any(|scale| *scale < 1.0) => between(picture, (width, height), scales),
        () if scales.iter().all(|scale| (scale - scale.round()).abs() < f64::EPSILON) => {
            whole_blocks(picture, (width, height), scales.map(|scale| scale.round() as usize))
        }
        () => covered(picture, (width, height), scales),
    }
}

/// Means of blocks of whole pixels. Sums of 2 × 2 are rounded up where they are halfway, others to even.
fn whole_blocks(picture: &RgbImage, (width, height): (usize, usize), [across, down]: [usize; 2]) -> Vec<u8> {
    let rgb = picture.as_raw();
    let row = picture.width() as usize * CHANNELS;
    let share = 1.0f32 / (across * down) as f32;
    let mean = |y: usize, x: usize, channel: usize| {
        let pixels = (0..down).flat_map(|dy| (0..across).map(move |dx| (dy, dx)));
        let at = |(dy, dx): (usize, usize)| rgb[(y * down + dy) * row + (x * across + dx) * CHANNELS + channel];
        let sum: u32 = pixels.map(|place| u32::from(at(place))).sum();
        if [across, down] == [2, 2] { ((sum + 2) >> 2) as u8 } else { byte(sum as f32 * share) }
    };
    let places = (0..height).flat_map(|y| (0..width).map(move |x| (y, x)));
    places.flat_map(|(y, x)| std::array::from_fn::<u8, CHANNELS, _>(|channel| mean(y, x, channel))).collect()
}

/// Means of all pixels that a new one covers, those at its edges in part.
fn covered(picture: &RgbImage, (width, height): (usize, usize), scales: [f64; 2]) -> Vec<u8> {
    let rgb = picture.as_raw();
    let (old_width, old_height) = (picture.width() as usize, picture.height() as usize);
    let (columns, rows) = (parts(old_width, width, scales[0]), parts(old_height, height, scales[1]));
    let mut resized = Vec::with_capacity(width * height * CHANNELS);
    for row in &rows {
        let mut sums = vec![0f32; width * CHANNELS];
        for &(y, of_row) in row {
            let line = &rgb[y * old_width * CHANNELS..][..old_width * CHANNELS];
            for (x, column) in columns.iter().enumerate() {
                for channel in 0..CHANNELS {
                    let terms = column.iter().map(|(at, of)| f32::from(line[at * CHANNELS + channel]) * of);
                    sums[x * CHANNELS + channel] += of_row * terms.fold(0f32, |sum, term| sum + term);
                }
            }
        }
        resized.extend(sums.into_iter().map(byte));
    }
    resized
}

/// Returns which of `old` pixels each of `new` ones covers, and how much of them (`computeResizeAreaTab`).
fn parts(old: usize, new: usize, scale: f64) -> Vec<Covered> {
    let part = |at: usize| {
        let (begin, end) = (at as f64 * scale, at as f64 * scale + scale);
        let width = scale.min(old as f64 - begin);
        let last = (end.floor() as usize).min(old - 1);
        let first = (begin.ceil() as usize).min(last);
        let mut covered = Covered::new();
        if first as f64 - begin > 1e-3 {
            covered.push((first - 1, ((first as f64 - begin) / width) as f32));
        }
        covered.extend((first..last).map(|pixel| (pixel, (1.0 / width) as f32)));
        if end - last as f64 > 1e-3 {
            covered.push((last, ((end - last as f64).min(1.0).min(width) / width) as f32));
        }
        covered
    };
    (0..new).map(part).collect()
}

/// Returns a larger picture: each pixel lies between two on each axis, in whole numbers as OpenCV computes them.
fn between(picture: &RgbImage, (width, height): (usize, usize), scales: [f64; 2]) -> Vec<u8> {
    let rgb = picture.as_raw();
    let (old_width, old_height) = (picture.width() as usize, picture.height() as usize);
    let (columns, rows) = (pairs(old_width, width, scales[0]), pairs(old_height, height, scales[1]));
    let line = |y: usize| {
        let line = &rgb[y * old_width * CHANNELS..][..old_width * CHANNELS];
        let at = |(first, second, [a, b]): &(usize, usize, [i32; 2])| {
            let [first, second] = [first, second].map(|pixel| &line[pixel * CHANNELS..][..CHANNELS]);
            std::array::from_fn::<i32, CHANNELS, _>(|c| i32::from(first[c]) * a + i32::from(second[c]) * b)
        };
        columns.iter().flat_map(at).collect::<Vec<i32>>()
    };
    let row = |&(first, second, [a, b]): &(usize, usize, [i32; 2])| {
        let both = |(x, y): (i32, i32)| ((((a * (x >> 4)) >> 16) + ((b * (y >> 4)) >> 16) + 2) >> 2) as u8;
        line(first).into_iter().zip(line(second)).map(both).collect::<Vec<u8>>()
    };
    rows.iter().flat_map(row).collect()
}

/// Returns the two pixels of an axis that each of `new` lies between, and their weights.
fn pairs(old: usize, new: usize, scale: f64) -> Vec<(usize, usize, [i32; 2])> {
    let inverse = new as f64 / old as f64;
    let pair = |at: usize| {
        let first = (at as f64 * scale).floor() as usize;
        let behind = ((at + 1) as f64 - (first + 1) as f64 * inverse) as f32;
        let behind = if behind <= 0.0 { 0.0 } else { behind - behind.floor() };
        let (first, behind) = if first >= old - 1 { (old - 1, 0.0) } else { (first, behind) };
        let weight = |share: f32| (share * (1 << BITS) as f32).round_ties_even() as i32;
        (first, (first + 1).min(old - 1), [weight(1.0 - behind), weight(behind)])
    };
    (0..new).map(pair).collect()
}

/// Returns the nearest byte; halves go to even ones.
fn byte(value: f32) -> u8 {
    value.round_ties_even().clamp(0.0, 255.0) as u8
}

#[cfg(test)]
#[path = "area_tests.rs"]
mod tests;
