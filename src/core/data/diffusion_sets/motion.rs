//! Clips of a digit that moves: 5 frames of 12 by 12 pixels, light ink on black. The first frame and a word determine the rest;
//! the last frame is the first one again.

use std::fs;
use std::path::Path;

use image::codecs::gif::GifEncoder;
use image::{Delay, DynamicImage, Frame, GrayImage};
use serde_json::{Value as Json, json};

use super::digits::stamp;
use super::folder::{Composed, write_file, write_lines};
use super::model::{wan, write_model};
use crate::data::digits::{SIDE, Scan, Scans};
use crate::data::error::DataError;
use crate::data::new_folder::NewFolder;
use crate::rng::Rng;

/// The direction in which the digit goes.
pub(super) const WORDS: [&str; 4] = ["left", "right", "up", "down"];
/// Rows and columns of a frame.
const FRAME: i64 = 12;
const NUM_FRAMES: usize = 5;
/// Pixels a frame.
const STEP: i64 = 2;
/// Hundredths of a second a frame; data.video.fps is 100 over this.
const DELAY: u32 = 10;
/// The last place of a digit along an axis: there is a wall.
const WALL: i64 = FRAME - SIDE as i64;
/// The place where a digit begins along rows and along columns: between the walls, where every word leads elsewhere, and on the grid of
/// the model's patches. Off that grid a tiny model takes several times as long to learn the same motion.
const START: i64 = STEP;

/// Describes the samples to make. The same values give the same bytes.
#[derive(Clone, Copy, Debug)]
pub struct DiffusionMotion {
    pub seed: u64,
    pub num_train: usize,
    pub num_held_out: usize,
}

impl Default for DiffusionMotion {
    fn default() -> Self {
        Self { seed: 1, num_train: 12_000, num_held_out: 200 }
    }
}

/// Writes `train.jsonl`, `held_out.jsonl`, the control `wrong_word.jsonl`, their clips and `model/` (without weights) into
/// `dir`, which must be new or empty. Held-out clips come in fours that begin with the same frame, one for each word, and whose
/// futures all differ; in the control each clip has the opposite word. A sample's `answer` is its digit.
///
/// # Errors
/// `dir` holds something or cannot be written.
pub fn compose_motion(dir: &Path, settings: &DiffusionMotion) -> Result<Composed, DataError> {
    let (new, write) = (NewFolder::begin(dir)?, |error| DataError::write(dir, error));
    let to = new.path();
    let (scans, seed) = (Scans::load(), settings.seed);
    let train = Film { part: "train", scans: &scans.train, every_word: false };
    let train = train.shoot(to, seed, settings.num_train).map_err(write)?;
    write_lines(&to.join("train.jsonl"), train.iter().map(|filmed| filmed.line(filmed.word))).map_err(write)?;
    let held_out = Film { part: "held_out", scans: &scans.held_out, every_word: true };
    let held_out = held_out.shoot(to, seed, settings.num_held_out).map_err(write)?;
    write_lines(&to.join("held_out.jsonl"), held_out.iter().map(|filmed| filmed.line(filmed.word))).map_err(write)?;
    // Left and right, up and down are neighbors in the list.
    let wrong = held_out.iter().map(|filmed| filmed.line(filmed.word ^ 1));
    write_lines(&to.join("wrong_word.jsonl"), wrong).map_err(write)?;
    fs::write(to.join("ATTRIBUTION.md"), include_str!("../digits/ATTRIBUTION.md")).map_err(write)?;
    write_model(&to.join("model"), &wan(), "WanImageToVideoPipeline", 3.0, &WORDS)?;
    new.publish("train.jsonl")?;
    Ok(Composed { num_train: settings.num_train, num_held_out: settings.num_held_out })
}

/// A clip, its digit and the place of its word.
struct Filmed {
    file: String,
    digit: usize,
    word: usize,
}

impl Filmed {
    fn line(&self, word: usize) -> Json {
        json!({"video": self.file, "prompt": WORDS[word], "answer": self.digit.to_string()})
    }
}

/// Describes one clip.
struct Film<'a> {
    part: &'static str,
    scans: &'a [Vec<Scan>; 10],
    /// Four clips, one for each word, begin with the same frame.
    every_word: bool,
}

impl Film<'_> {
    fn shoot(&self, dir: &Path, seed: u64, count: usize) -> std::io::Result<Vec<Filmed>> {
        let Self { part, scans, every_word } = *self;
        let film = |index: usize| {
            let first = if every_word { index / WORDS.len() } else { index };
            let mut rng = Rng::new(&[seed, part.len() as u64, first as u64]);
            let digit = rng.below(10) as usize;
            let scan = &scans[digit][rng.below(scans[digit].len() as u64) as usize];
            let word = rng.below(WORDS.len() as u64) as usize;
            let word = if every_word { index % WORDS.len() } else { word };
            let frames: Vec<GrayImage> = path((START, START), word)
                .map(|(x, y)| {
                    let mut frame = GrayImage::new(FRAME as u32, FRAME as u32);
                    stamp(&mut frame, scan, (x as u32, y as u32));
                    frame
                })
                .collect();
            let file = write_file(dir, part, index, "gif", &gif(&frames))?;
            Ok(Filmed { file, digit, word })
        };
        (0..count).map(film).collect()
    }
}

/// Returns the places of a digit in every frame.
fn path((x, y): (i64, i64), word: usize) -> impl Iterator<Item = (i64, i64)> {
    let away = if word.is_multiple_of(2) { -STEP } else { STEP };
    (0..NUM_FRAMES as i64).map(move |frame| match word {
        0 | 1 => (bounced(x + frame * away), y),
        _ => (x, bounced(y + frame * away)),
    })
}

/// The place between two walls of what would be at `at` without them.
fn bounced(at: i64) -> i64 {
    let round = at.rem_euclid(2 * WALL);
    round.min(2 * WALL - round)
}

/// Returns an animation without loss: its frames have few shades.
fn gif(frames: &[GrayImage]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = GifEncoder::new(&mut bytes);
    let frame = |frame: &GrayImage| {
        let colors = DynamicImage::ImageLuma8(frame.clone()).into_rgba8();
        Frame::from_parts(colors, 0, 0, Delay::from_numer_denom_ms(DELAY * 10, 1))
    };
    encoder.encode_frames(frames.iter().map(frame)).expect("a small animation fits in memory");
    drop(encoder);
    bytes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::data::media::Sampling;
    use crate::data::{InProcess, Limits, MediaDecoder};

    #[test]
    fn a_digit_moves_and_bounces_and_every_word_leads_elsewhere() {
        let places = |at, word| path((at, at), word).collect::<Vec<_>>();
        assert_eq!(places(2, 0), [(2, 2), (0, 2), (2, 2), (4, 2), (2, 2)]);
        assert_eq!(places(0, 3), [(0, 0), (0, 2), (0, 4), (0, 2), (0, 0)]);
        assert_eq!(places(4, 3), places(4, 2));
        let futures: BTreeSet<Vec<(i64, i64)>> = (0..4).map(|word| places(START, word)).collect();
        assert_eq!(futures.len(), 4);
    }

    #[test]
    fn clips_are_what_was_drawn_and_the_control_has_the_opposite_word() {
        let folder = tempfile::tempdir().unwrap();
        compose_motion(folder.path(), &DiffusionMotion { num_train: 20, num_held_out: 12, ..Default::default() })
            .unwrap();
        let lines = |name: &str| -> Vec<Json> {
            let text = fs::read_to_string(folder.path().join(name)).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        let (held_out, wrong) = (lines("held_out.jsonl"), lines("wrong_word.jsonl"));
        assert_eq!((lines("train.jsonl").len(), held_out.len()), (20, 12));
        let opposite = |word: &Json| ["right", "left", "down", "up"][WORDS.iter().position(|w| word == w).unwrap()];
        let digits = |four: &[Json]| four.iter().map(|line| line["answer"].clone()).collect::<Vec<_>>();
        assert!(held_out.chunks(4).all(|four| digits(four) == vec![four[0]["answer"].clone(); 4]));
        for (own, other) in held_out.iter().zip(&wrong) {
            assert_eq!((&other["prompt"], &other["video"]), (&json!(opposite(&own["prompt"])), &own["video"]));
            let bytes = fs::read(folder.path().join(own["video"].as_str().unwrap())).unwrap();
            let clip = InProcess.clip(&bytes, None, &Limits::NONE, &Sampling::evenly(NUM_FRAMES)).unwrap();
            assert_eq!((clip.frames.len(), clip.dimensions()), (5, (12, 12)));
            assert!((clip.fps - 10.0).abs() < 1e-9, "{}", clip.fps);
            // Ink moves, and none of it is lost: shades are kept exactly.
            let ink = |frame: &image::RgbImage| frame.pixels().map(|pixel| u32::from(pixel.0[0])).sum::<u32>();
            assert!(clip.frames.iter().all(|frame| ink(frame) == ink(&clip.frames[0])) && ink(&clip.frames[0]) > 0);
            assert!(clip.frames.iter().any(|frame| *frame != clip.frames[0]));
        }
    }
}
