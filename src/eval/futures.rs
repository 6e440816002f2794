//! Clips that a model has made of a first frame and a prompt, beside the true ones.

use crate::eval::aligned::aligned;
use image::{RgbImage, imageops};
use loongforge_core::text::plural;
use std::collections::BTreeMap;

/// A clip that was made, and the true one of its prompt, frame by frame; they begin with the same frame.
pub struct Made {
    pub prompt: String,
    pub frames: Vec<RgbImage>,
    pub truth: Vec<RgbImage>,
}

/// Returns the frames of a strip of `count` of them, side by side.
pub fn frames(strip: &RgbImage, count: usize) -> Vec<RgbImage> {
    let width = strip.width() / count.max(1) as u32;
    let frame = |at: usize| imageops::crop_imm(strip, width * at as u32, 0, width, strip.height()).to_image();
    (0..count).map(frame).collect()
}

/// Returns a table of how near clips are to the true ones behind the first frame, and of how often they are nearer to their own than to
/// those of other prompts with the same first frame; below it the same of clips that were made of another of these prompts, and of the
/// first frame repeated. Clips are judged whose first frame has several prompts, all with different futures; where there are none of
/// these, the table has the nearness alone.
pub fn compare(clips: &[Made]) -> Vec<String> {
    if clips.is_empty() {
        return Vec::new();
    }
    let judged = judged(clips);
    let still = |clip: &Made| vec![clip.truth[0].clone(); clip.truth.len()];
    if judged.is_empty() {
        let mean = |of: &dyn Fn(&Made) -> f64| clips.iter().map(of).sum::<f64>() / clips.len() as f64;
        return vec![format!(
            "{} {} against the true ones, PSNR of later frames: {:.1} dB; the first frame repeated: {:.1} dB",
            clips.len(),
            plural("clip", clips.len() as u64),
            mean(&|clip| decibels(&clip.frames, &clip.truth)),
            mean(&|clip| decibels(&still(clip), &clip.truth)),
        )];
    }
    let count = judged.len();
    let row = |name: &str, frames: &dyn Fn(&Judged<'_>) -> Vec<RgbImage>| {
        let right = judged.iter().filter(|it| it.nearest_is_own(&frames(it))).count();
        let nearness = judged.iter().map(|it| decibels(&frames(it), &it.clip.truth)).sum::<f64>() / count as f64;
        let share = 100.0 * right as f64 / count as f64;
        vec![name.to_owned(), format!("{right} ({share:.1} %)"), format!("{nearness:.1} dB")]
    };
    let chance = judged.iter().map(|it| 1.0 / it.futures.len() as f64).sum::<f64>() / count as f64;
    let title = |text: &str| text.to_owned();
    let table = [
        vec![
            format!("{count} clips beside the futures of their first frame"),
            title("nearest to its own"),
            title("PSNR of later frames"),
        ],
        row("  clips that were made", &|it| it.clip.frames.clone()),
        row("  control: made of another prompt", &|it| it.of_another.frames.clone()),
        row("  control: the first frame repeated", &|it| still(it.clip)),
        vec![title("  chance"), format!("{:.1} %", 100.0 * chance), String::new()],
    ];
    aligned(&table)
}

/// A clip that can be told from those of other prompts.
struct Judged<'a> {
    clip: &'a Made,
    /// The true clips of all prompts with its first frame.
    futures: Vec<&'a [RgbImage]>,
    /// The clip that was made of the next of these prompts.
    of_another: &'a Made,
}

impl Judged<'_> {
    fn nearest_is_own(&self, frames: &[RgbImage]) -> bool {
        let nearest = self.futures.iter().min_by(|one, other| error(frames, one).total_cmp(&error(frames, other)));
        nearest.is_some_and(|nearest| *nearest == self.clip.truth)
    }
}

fn judged(clips: &[Made]) -> Vec<Judged<'_>> {
    let mut groups: BTreeMap<&[u8], BTreeMap<&str, Vec<&Made>>> = BTreeMap::new();
    for clip in clips {
        groups.entry(clip.truth[0].as_raw()).or_default().entry(&clip.prompt).or_default().push(clip);
    }
    let mut judged = Vec::new();
    for prompts in groups.values() {
        let group: Vec<&Vec<&Made>> = prompts.values().collect();
        let futures: Vec<&[RgbImage]> = group.iter().map(|of_prompt| of_prompt[0].truth.as_slice()).collect();
        let mut pairs = (0..futures.len()).flat_map(|at| (0..at).map(move |before| (at, before)));
        if futures.len() < 2 || pairs.any(|(at, before)| futures[at] == futures[before]) {
            continue;
        }
        for (at, of_prompt) in group.iter().enumerate() {
            let of_another = group[(at + 1) % group.len()][0];
            judged.extend(of_prompt.iter().map(|clip| Judged { clip, futures: futures.clone(), of_another }));
        }
    }
    judged
}

/// Returns the peak signal-to-noise ratio behind the first frame.
fn decibels(one: &[RgbImage], other: &[RgbImage]) -> f64 {
    10.0 * (65025.0 / error(one, other).max(1e-6)).log10()
}

/// Returns the mean square difference of bytes behind the first frame.
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

    fn made(prompt: &str, values: [u8; 3], truth: [u8; 3]) -> Made {
        Made { prompt: prompt.to_owned(), frames: clip(values), truth: clip(truth) }
    }

    #[test]
    fn clips_are_told_apart_from_other_futures_of_their_first_frame() {
        let (left, right) = ([9, 50, 100], [9, 150, 200]);
        let clips = [made("left", [9, 160, 190], left), made("right", [9, 140, 190], right), made("left", left, left)];
        let lines = compare(&clips);
        assert!(lines[0].starts_with("3 clips"), "{lines:?}");
        for (line, expected) in lines[1..].iter().zip(["2 (66.7 %)", "1 (33.3 %)", "2 (66.7 %)", "50.0 %"]) {
            assert!(line.contains(expected), "{line}");
        }
        // One prompt is told from nothing, nor are two with one future. Two pixels of each frame, one of which is off by 10
        // in one of two frames: 25 on average.
        let lines = compare(&[made("left", [9, 60, 100], left)]);
        assert!(lines.len() == 1 && lines[0].starts_with("1 clip against"), "{lines:?}");
        assert!(lines[0].contains("34.2 dB; the first frame repeated: 14.2 dB"), "{lines:?}");
        assert_eq!(compare(&[made("left", left, left), made("right", right, left)]).len(), 1);
    }
}
