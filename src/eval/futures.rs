//! Clips that a model has made of a first frame and a prompt, beside the true ones.

use image::{RgbImage, imageops};
use std::collections::BTreeMap;

/// A clip that was made, and the true one of its prompt, frame by frame; they begin with the same frame.
pub struct Made {
    pub frames: Vec<RgbImage>,
    pub truth: Vec<RgbImage>,
}

/// The frames of a strip of `count` of them, side by side.
pub fn frames(strip: &RgbImage, count: usize) -> Vec<RgbImage> {
    let width = strip.width() / count.max(1) as u32;
    let frame = |at: usize| imageops::crop_imm(strip, width * at as u32, 0, width, strip.height()).to_image();
    (0..count).map(frame).collect()
}

/// A line of how near clips are to the true ones behind the first frame, and one of how often they are nearer to their own than to
/// those of other prompts that begin with the same frame. Prompts count there whose futures differ.
pub fn compare(clips: &[Made]) -> Vec<String> {
    if clips.is_empty() {
        return Vec::new();
    }
    let mean = |of: &dyn Fn(&Made) -> f64| clips.iter().map(of).sum::<f64>() / clips.len() as f64;
    let still = |clip: &Made| vec![clip.truth[0].clone(); clip.truth.len()];
    let mut lines = vec![format!(
        "clips against the true ones, behind the first frame: {:.1} dB over {}; the first frame repeated: {:.1} dB",
        mean(&|clip| decibels(&clip.frames, &clip.truth)),
        clips.len(),
        mean(&|clip| decibels(&still(clip), &clip.truth)),
    )];
    let mut groups: BTreeMap<&[u8], Vec<&Made>> = BTreeMap::new();
    for clip in clips {
        groups.entry(clip.truth[0].as_raw()).or_default().push(clip);
    }
    let is_same = |one: &Made, other: &Made| one.truth == other.truth;
    let differ = |group: &&Vec<&Made>| {
        let mut pairs = group.iter().enumerate().flat_map(|(at, one)| group[at + 1..].iter().map(move |it| (one, it)));
        group.len() > 1 && pairs.all(|(one, other)| !is_same(one, other))
    };
    let judged: Vec<&Vec<&Made>> = groups.values().filter(differ).collect();
    let nearest_is_own = |clip: &Made, group: &[&Made]| {
        let nearest = group
            .iter()
            .min_by(|one, other| error(&clip.frames, &one.truth).total_cmp(&error(&clip.frames, &other.truth)));
        nearest.is_some_and(|nearest| is_same(nearest, clip))
    };
    let count: usize = judged.iter().map(|group| group.len()).sum();
    if count > 0 {
        let right = judged.iter().flat_map(|group| group.iter().filter(|clip| nearest_is_own(clip, group))).count();
        let [share, chance] = [right, judged.len()].map(|part| 100.0 * part as f64 / count as f64);
        lines.push(format!(
            "  nearest to their own future of those with the same first frame: {right} of {count} ({share:.1} %; chance \
             {chance:.0} %)"
        ));
    }
    lines
}

/// The peak signal-to-noise ratio behind the first frame.
fn decibels(one: &[RgbImage], other: &[RgbImage]) -> f64 {
    10.0 * (65025.0 / error(one, other).max(1e-6)).log10()
}

/// The mean square difference of bytes behind the first frame.
fn error(one: &[RgbImage], other: &[RgbImage]) -> f64 {
    let bytes =
        |frames: &[RgbImage]| frames.iter().skip(1).flat_map(|frame| frame.as_raw().clone()).collect::<Vec<u8>>();
    let (one, other) = (bytes(one), bytes(other));
    let squares = one.iter().zip(&other).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2));
    squares.sum::<f64>() / one.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clip(values: [u8; 3]) -> Vec<RgbImage> {
        let row = values.iter().flat_map(|value| [*value, 0]).flat_map(|value| [value; 3]).collect();
        frames(&RgbImage::from_raw(6, 1, row).unwrap(), 3)
    }

    fn made(values: [u8; 3], truth: [u8; 3]) -> Made {
        Made { frames: clip(values), truth: clip(truth) }
    }

    #[test]
    fn clips_are_told_apart_from_other_futures_of_their_first_frame() {
        let (left, right) = ([9, 50, 100], [9, 150, 200]);
        let lines = compare(&[made([9, 60, 100], left), made([9, 60, 110], right)]);
        assert!(lines[1].contains("1 of 2 (50.0 %; chance 50 %)"), "{lines:?}");
        // One alone is told from nothing, nor are two prompts with one future.
        assert_eq!(compare(&[made(left, left)]).len(), 1);
        assert_eq!(compare(&[made(left, left), made(right, left)]).len(), 1);
        // Two pixels of each frame, one of which is off by 10 in one of two frames: 25 on average.
        let lines = compare(&[made([9, 60, 100], left)]);
        assert!(lines[0].contains("34.2 dB over 1; the first frame repeated: 14.2 dB"), "{lines:?}");
    }
}
