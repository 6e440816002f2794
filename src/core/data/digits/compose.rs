//! Strings of digits on canvases of varying size, as PNG files with `messages` lines.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;

use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{ExtendedColorType, GrayImage, ImageEncoder, Luma};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::scans::{SIDE, Scan, Scans};
use crate::data::error::DataError;
use crate::rng::Rng;

pub const PROMPT: &str = "Read the number.";

/// Part of the stamp: another number where the pictures change.
const VERSION: u32 = 3;
const STAMP: &str = "digits.json";
const MAX_DIGITS: u64 = 6;
/// Scans are shown at this many pixels a value.
const SCALE: usize = 2;
const IMAGES_PER_FOLDER: usize = 1000;

/// The settings of the composed digits. The same values give the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digits {
    pub seed: u64,
    pub num_train: usize,
    pub num_held_out: usize,
}

impl Default for Digits {
    fn default() -> Self {
        Self { seed: 0, num_train: 16_000, num_held_out: 512 }
    }
}

#[derive(PartialEq, Serialize, Deserialize)]
struct Stamp {
    version: u32,
    digits: Digits,
}

/// Writes `train.jsonl`, `held_out.jsonl` and their pictures into `dir`, which appears whole or not at all.
/// Returns false, having done nothing, where the same is there already; other digits of ours are replaced.
///
/// # Errors
/// `dir` holds something else, or cannot be written.
pub fn compose(dir: &Path, digits: &Digits) -> Result<bool, DataError> {
    let stamp = Stamp { version: VERSION, digits: digits.clone() };
    match fs::read(dir.join(STAMP)) {
        Ok(bytes) if serde_json::from_slice(&bytes).is_ok_and(|found: Stamp| found == stamp) => return Ok(false),
        Ok(_) => {}
        Err(_) if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) => {
            return Err(DataError::file(dir, "holds other files: name another folder for the digits, or empty it"));
        }
        Err(_) => {}
    }
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = |error| DataError::write(dir, error);
    fs::create_dir_all(parent).map_err(write)?;
    let work = tempfile::Builder::new().prefix(".digits-").tempdir_in(parent).map_err(write)?;
    let new = work.path().join("new");

    let scans = Scans::load();
    write_part(&new, "train", &scans.train, [digits.seed, 0], digits.num_train).map_err(write)?;
    write_part(&new, "held_out", &scans.held_out, [digits.seed, 1], digits.num_held_out).map_err(write)?;
    fs::write(new.join("ATTRIBUTION.md"), include_str!("ATTRIBUTION.md")).map_err(write)?;
    fs::write(new.join(STAMP), serde_json::to_vec(&stamp).expect("plain numbers")).map_err(write)?;
    if dir.exists() {
        fs::rename(dir, work.path().join("old")).map_err(write)?;
    }
    fs::rename(&new, dir).map_err(write)?;
    Ok(true)
}

fn write_part(dir: &Path, name: &str, scans: &[Vec<Scan>; 10], key: [u64; 2], count: usize) -> std::io::Result<()> {
    for folder in 0..count.div_ceil(IMAGES_PER_FOLDER) {
        fs::create_dir_all(dir.join(format!("images/{name}/{folder:03}")))?;
    }
    let path = |index: usize| format!("images/{name}/{:03}/{index:06}.png", index / IMAGES_PER_FOLDER);
    let draw = |indices: std::ops::Range<usize>| -> std::io::Result<Vec<String>> {
        indices
            .map(|index| {
                let (picture, number) = picture(&mut Rng::new(&[key[0], key[1], index as u64]), scans);
                fs::write(dir.join(path(index)), png(&picture))?;
                Ok(number)
            })
            .collect()
    };
    let num_threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let share = count.div_ceil(num_threads).max(1);
    let numbers: Vec<Vec<String>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..count).step_by(share).map(|from| scope.spawn(move || draw(from..count.min(from + share)))).collect();
        threads.into_iter().map(|thread| thread.join().expect("drawing does not panic")).collect::<Result<_, _>>()
    })?;

    fs::create_dir_all(dir)?;
    let mut lines = BufWriter::new(fs::File::create(dir.join(format!("{name}.jsonl")))?);
    for (index, number) in numbers.into_iter().flatten().enumerate() {
        let line = json!({
            "messages": [
                {"role": "user", "content": format!("<image>{PROMPT}")},
                {"role": "assistant", "content": number},
            ],
            "images": [path(index)],
        });
        writeln!(lines, "{line}")?;
    }
    lines.flush()
}

/// Draws dark ink on light, slightly noisy paper: 1 to [`MAX_DIGITS`] digits roughly on one line of a canvas that is one or two lines
/// higher and up to two digits wider.
fn picture(rng: &mut Rng, scans: &[Vec<Scan>; 10]) -> (GrayImage, String) {
    let side = (SIDE * SCALE) as i64;
    let num_digits = 1 + rng.below(MAX_DIGITS) as i64;
    let (width, height) = (side * (num_digits + rng.between(0, 2)), side * rng.between(2, 3));
    let left = rng.between(0, 3.min(width - side * num_digits));
    let line = side * rng.between(0, height / side - 1);

    let mut canvas = GrayImage::from_fn(width as u32, height as u32, |_, _| Luma([255 - rng.below(14) as u8]));
    let mut number = String::with_capacity(num_digits as usize);
    for place in 0..num_digits {
        let digit = rng.below(10) as usize;
        let scan = &scans[digit][rng.below(scans[digit].len() as u64) as usize];
        let y = (line + rng.between(-2, 2)).clamp(0, height - side);
        stamp_scan(&mut canvas, scan, (left + place * side) as u32, y as u32);
        number.push(char::from(b'0' + digit as u8));
    }
    (canvas, number)
}

/// Returns one of the scans of a digit on paper of its own size, as a PNG file.
pub(in crate::data) fn digit_png(rng: &mut Rng, scans: &[Scan]) -> Vec<u8> {
    let side = (SIDE * SCALE) as u32;
    let mut canvas = GrayImage::from_fn(side, side, |_, _| Luma([255 - rng.below(14) as u8]));
    stamp_scan(&mut canvas, &scans[rng.below(scans.len() as u64) as usize], 0, 0);
    png(&canvas)
}

/// Draws a scan enlarged by [`SCALE`], interpolating between its values.
fn stamp_scan(canvas: &mut GrayImage, scan: &Scan, left: u32, top: u32) {
    let value = |row: i32, column: i32| {
        let inside = |at: i32| (0..SIDE as i32).contains(&at);
        if inside(row) && inside(column) { i32::from(scan[row as usize * SIDE + column as usize]) } else { 0 }
    };
    for y in 0..(SIDE * SCALE) as i32 {
        for x in 0..(SIDE * SCALE) as i32 {
            // Centers of pixels at scale 2 lie a quarter of a value from the nearest and three from the next.
            let (row, column) = (y / 2, x / 2);
            let (row2, column2) = (row + (y % 2) * 2 - 1, column + (x % 2) * 2 - 1);
            let sum = 9 * value(row, column) + 3 * (value(row2, column) + value(row, column2)) + value(row2, column2);
            let ink = (sum * 220 / (16 * 16)) as u8;
            let pixel = &mut canvas.get_pixel_mut(left + x as u32, top + y as u32).0[0];
            *pixel = pixel.saturating_sub(ink);
        }
    }
}

/// Returns a gray picture as a PNG file.
pub(in crate::data) fn png(picture: &GrayImage) -> Vec<u8> {
    let mut bytes = Vec::new();
    PngEncoder::new_with_quality(&mut bytes, CompressionType::Fast, FilterType::NoFilter)
        .write_image(picture, picture.width(), picture.height(), ExtendedColorType::L8)
        .expect("a small gray picture fits in memory");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::source::Conversation;

    fn lines(dir: &Path, name: &str) -> Vec<Conversation> {
        let text = fs::read_to_string(dir.join(name)).unwrap();
        text.lines().map(|line| Conversation::parse(line).unwrap()).collect()
    }

    #[test]
    fn writes_both_parts_and_then_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("a/digits");
        let digits = Digits { seed: 1, num_train: 1005, num_held_out: 20 };
        assert!(compose(&dir, &digits).unwrap());
        let train = lines(&dir, "train.jsonl");
        assert_eq!((train.len(), lines(&dir, "held_out.jsonl").len()), (1005, 20));
        assert!(train[1004].media[0].name().contains("/001/"));
        let mut lengths = [0; 7];
        for conversation in &train {
            let picture = image::open(dir.join(conversation.media[0].name())).unwrap();
            let num_digits = conversation.turns[1].joined_text().len();
            assert!(picture.width() as usize >= 16 * num_digits && (32..=48).contains(&picture.height()));
            lengths[num_digits] += 1;
        }
        assert!(lengths[1..].iter().all(|&count| count > 100), "{lengths:?}");

        assert!(!compose(&dir, &digits).unwrap());
        assert!(compose(&dir, &Digits { num_train: 3, ..digits }).unwrap());
        assert_eq!(lines(&dir, "train.jsonl").len(), 3);
        assert_eq!(fs::read_dir(dir.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn the_seed_decides_and_other_folders_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = |name: &str, seed| {
            let dir = folder.path().join(name);
            compose(&dir, &Digits { seed, num_train: 2, num_held_out: 1 }).unwrap();
            fs::read(dir.join("images/train/000/000001.png")).unwrap()
        };
        assert_eq!(bytes("a", 5), bytes("b", 5));
        assert_ne!(bytes("a", 5), bytes("c", 6));
        let error = compose(folder.path(), &Digits::default()).unwrap_err().to_string();
        assert!(error.contains("holds other files"), "{error}");
    }
}
