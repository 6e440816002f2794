//! Numbers of three digits in figures or words, and their pictures: 8 rows of 24 pixels, light ink on black.

use std::fs;
use std::path::Path;

use image::{GrayImage, Luma};
use serde_json::{Value as Json, json};

use super::folder::{Composed, write_file, write_lines};
use super::model::{qwen_image, write_model};
use crate::data::digits::{SIDE, Scan, Scans, png};
use crate::data::error::DataError;
use crate::data::new_folder::NewFolder;
use crate::rng::{Rng, another, permute};

/// The digits in words.
pub(super) const WORDS: [&str; 10] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
/// Digits of a number.
const PLACES: usize = 3;
const NUM_NUMBERS: u64 = 1000;
/// The value of ink in a scan.
const INK: u32 = 16;

/// Describes the samples to make. The same values give the same bytes.
#[derive(Clone, Copy, Debug)]
pub struct DiffusionDigits {
    pub seed: u64,
    pub num_train: usize,
    pub num_held_out: usize,
    /// Numbers that are in no training sample.
    pub num_unseen: u64,
    /// The number of unseen numbers that held-out samples have, in turn.
    pub num_asked: u64,
}

impl Default for DiffusionDigits {
    fn default() -> Self {
        Self { seed: 1, num_train: 12_000, num_held_out: 400, num_unseen: 100, num_asked: 40 }
    }
}

/// Writes `train.jsonl`, `held_out.jsonl`, the control `shuffled_captions.jsonl`, their pictures and `model/` (without weights)
/// into `dir`, which must be new or empty. Held-out samples have numbers and scans that are not trained on; in the control
/// each has the caption of another sample. A sample's `answer` is its number in figures.
///
/// # Errors
/// `dir` holds something or cannot be written.
pub fn compose_digits(dir: &Path, settings: &DiffusionDigits) -> Result<Composed, DataError> {
    let (new, write) = (NewFolder::begin(dir)?, |error| DataError::write(dir, error));
    let to = new.path();
    let (scans, seed) = (Scans::load(), settings.seed);
    let numbers = |range: std::ops::Range<u64>| -> Vec<u64> {
        range.map(|index| permute(index, NUM_NUMBERS, &[seed, 7])).collect()
    };
    let (unseen, seen) = (numbers(0..settings.num_unseen), numbers(settings.num_unseen..NUM_NUMBERS));
    let any = |_: usize, rng: &mut Rng| seen[rng.below(seen.len() as u64) as usize];
    let train = draw(to, "train", &scans.train, any, seed, settings.num_train).map_err(write)?;
    write_lines(&to.join("train.jsonl"), train.iter().map(|drawn| drawn.line(&drawn.number))).map_err(write)?;
    let in_turn = |index: usize, _: &mut Rng| unseen[index % settings.num_asked as usize];
    let held_out = draw(to, "held_out", &scans.held_out, in_turn, seed, settings.num_held_out).map_err(write)?;
    write_lines(&to.join("held_out.jsonl"), held_out.iter().map(|drawn| drawn.line(&drawn.number))).map_err(write)?;
    let other = |at: usize| &held_out[another(at, held_out.len(), &[seed, 3])].number;
    let shuffled = held_out.iter().enumerate().map(|(at, drawn)| drawn.line(other(at)));
    write_lines(&to.join("shuffled_captions.jsonl"), shuffled).map_err(write)?;
    fs::write(to.join("ATTRIBUTION.md"), include_str!("../digits/ATTRIBUTION.md")).map_err(write)?;
    write_model(&to.join("model"), &qwen_image(), "QwenImagePipeline", 1.0, &WORDS)?;
    new.publish("train.jsonl")?;
    Ok(Composed { num_train: settings.num_train, num_held_out: settings.num_held_out })
}

/// A picture and its number.
struct Drawn {
    file: String,
    number: String,
}

impl Drawn {
    /// Returns the record with the caption of a number: a visit takes the figures or the words.
    fn line(&self, said: &str) -> Json {
        let words: Vec<&str> = said.bytes().map(|figure| WORDS[usize::from(figure - b'0')]).collect();
        json!({"image": self.file, "prompt": [said, words.join(" ")], "answer": self.number})
    }
}

fn draw(
    dir: &Path,
    part: &str,
    scans: &[Vec<Scan>; 10],
    number: impl Fn(usize, &mut Rng) -> u64,
    seed: u64,
    count: usize,
) -> std::io::Result<Vec<Drawn>> {
    let draw = |index: usize| {
        let mut rng = Rng::new(&[seed, part.len() as u64, index as u64]);
        let number = format!("{:03}", number(index, &mut rng));
        let mut picture = GrayImage::new((PLACES * SIDE) as u32, SIDE as u32);
        for (place, figure) in number.bytes().enumerate() {
            let scans = &scans[usize::from(figure - b'0')];
            let scan = &scans[rng.below(scans.len() as u64) as usize];
            stamp(&mut picture, scan, ((place * SIDE) as u32, 0));
        }
        let file = write_file(dir, part, index, "png", &png(&picture))?;
        Ok(Drawn { file, number })
    };
    (0..count).map(draw).collect()
}

/// Draws a scan as light ink at a column and a row.
pub(super) fn stamp(picture: &mut GrayImage, scan: &Scan, (left, top): (u32, u32)) {
    for (at, &value) in (0u32..).zip(scan) {
        let (x, y) = (at % SIDE as u32, at / SIDE as u32);
        picture.put_pixel(left + x, top + y, Luma([(u32::from(value) * 255 / INK) as u8]));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn held_out_numbers_are_never_trained_and_controls_have_other_captions() {
        let folder = tempfile::tempdir().unwrap();
        let settings =
            DiffusionDigits { num_train: 300, num_held_out: 40, num_asked: 20, ..DiffusionDigits::default() };
        compose_digits(folder.path(), &settings).unwrap();
        let lines = |name: &str| -> Vec<Json> {
            let text = fs::read_to_string(folder.path().join(name)).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        let (train, held_out, control) =
            (lines("train.jsonl"), lines("held_out.jsonl"), lines("shuffled_captions.jsonl"));
        assert_eq!((train.len(), held_out.len(), control.len()), (300, 40, 40));
        let answers = |lines: &[Json]| -> BTreeSet<String> {
            lines.iter().map(|line| line["answer"].as_str().unwrap().to_owned()).collect()
        };
        assert!(answers(&train).is_disjoint(&answers(&held_out)));
        for (own, other) in held_out.iter().zip(&control) {
            assert_eq!((&own["prompt"][0], &own["image"]), (&own["answer"], &other["image"]));
            assert_eq!(own["answer"], other["answer"]);
            assert_ne!(own["image"], json!(null));
        }
        // Each of 20 numbers twice: 40 samples of those that are asked for in turn.
        assert_eq!((answers(&held_out).len(), &held_out[0]["answer"]), (20, &held_out[20]["answer"]));
        let moved = held_out.iter().zip(&control).filter(|(own, other)| own["prompt"] != other["prompt"]).count();
        assert!(moved >= 38, "{moved}");
        let picture = image::open(folder.path().join(train[0]["image"].as_str().unwrap())).unwrap().to_luma8();
        assert_eq!(picture.dimensions(), (24, 8));
        assert!(picture.pixels().any(|pixel| pixel.0[0] == 255) && picture.pixels().any(|pixel| pixel.0[0] == 0));
        assert!(compose_digits(folder.path(), &settings).unwrap_err().to_string().contains("new folder"));
    }
}
