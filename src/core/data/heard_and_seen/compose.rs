//! Pairs of a recording and a picture with `messages` lines.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::json;

use super::model::write_model;
use crate::data::digits::{Scan, Scans, digit_png};
use crate::data::error::DataError;
use crate::data::new_folder::NewFolder;
use crate::data::spoken_digits::{Part, write_sounds};
use crate::rng::{Rng, another, permute};

const PROMPT: &str = "Say the number you hear, then the one you see.";

/// Describes the samples to make. The same values give the same bytes.
#[derive(Clone, Copy, Debug)]
pub struct HeardAndSeen {
    pub seed: u64,
    pub num_train: usize,
    pub num_held_out: usize,
}

impl Default for HeardAndSeen {
    fn default() -> Self {
        Self { seed: 1, num_train: 6000, num_held_out: 300 }
    }
}

/// Describes how many samples were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Composed {
    pub num_train: usize,
    pub num_held_out: usize,
}

/// Writes `train.jsonl`, `held_out.jsonl`, the controls `shuffled_sound.jsonl` and `shuffled_picture.jsonl`, their files and
/// `model/` (without weights) into `dir`, which must be new or empty. In a control each sample has the recording or the
/// picture of another one.
///
/// # Errors
/// `dir` holds something or cannot be written.
pub fn compose(dir: &Path, settings: &HeardAndSeen) -> Result<Composed, DataError> {
    let new = NewFolder::begin(dir)?;
    let to = new.path();
    let write = |error| DataError::write(dir, error);
    let (scans, seed) = (Scans::load(), settings.seed);
    write_part(to, Part::Train, &scans.train, seed, settings.num_train).map_err(write)?;
    write_part(to, Part::HeldOut, &scans.held_out, seed, settings.num_held_out).map_err(write)?;
    let sources = [include_str!("../spoken_digits/ATTRIBUTION.md"), include_str!("../digits/ATTRIBUTION.md")];
    fs::write(to.join("ATTRIBUTION.md"), sources.join("\n")).map_err(write)?;
    write_model(&to.join("model"))?;
    new.publish("train.jsonl")?;
    Ok(Composed { num_train: settings.num_train, num_held_out: settings.num_held_out })
}

fn write_part(dir: &Path, part: Part, scans: &[Vec<Scan>; 10], seed: u64, count: usize) -> std::io::Result<()> {
    let sounds = write_sounds(dir, part)?;
    let (folder, key) = (format!("images/{}", part.name()), [seed, part as u64]);
    fs::create_dir_all(dir.join(&folder))?;
    // Every recording as often as any other.
    let sound = |number: usize| {
        let len = sounds.len() as u64;
        let [key, part] = key;
        &sounds[permute(number as u64 % len, len, &[key, part, number as u64 / len]) as usize]
    };
    let picture = |number: usize| format!("{folder}/{number:05}.png");
    let mut seen = Vec::with_capacity(count);
    for number in 0..count {
        let mut rng = Rng::new(&[key[0], key[1], 1, number as u64]);
        let digit = rng.below(10) as usize;
        fs::write(dir.join(picture(number)), digit_png(&mut rng, &scans[digit]))?;
        seen.push(digit);
    }
    let lines = |name: &str, own_sound: &dyn Fn(usize) -> usize, own_picture: &dyn Fn(usize) -> usize| {
        let mut lines = BufWriter::new(fs::File::create(dir.join(name))?);
        for (number, seen) in seen.iter().enumerate() {
            let line = json!({
                "messages": [
                    {"role": "user", "content": format!("<audio><image>{PROMPT}")},
                    {"role": "assistant", "content": format!("{} {}", sound(number).1, seen)},
                ],
                "audios": [sound(own_sound(number)).0],
                "images": [picture(own_picture(number))],
            });
            writeln!(lines, "{line}")?;
        }
        lines.flush()
    };
    let (own, other) = (|number| number, |number| another(number, count, &[seed, 3]));
    lines(&format!("{}.jsonl", part.name()), &own, &own)?;
    if part == Part::HeldOut {
        lines("shuffled_sound.jsonl", &other, &own)?;
        lines("shuffled_picture.jsonl", &own, &other)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value as Json;

    use super::*;

    #[test]
    fn a_part_of_each_control_is_of_another_sample() {
        let folder = tempfile::tempdir().unwrap();
        let settings = HeardAndSeen { seed: 1, num_train: 1400, num_held_out: 40 };
        compose(folder.path(), &settings).unwrap();
        let lines = |name: &str| -> Vec<[String; 3]> {
            let text = fs::read_to_string(folder.path().join(name)).unwrap();
            let part = |line: &Json, pointer: &str| line.pointer(pointer).unwrap().as_str().unwrap().to_owned();
            let line = |line: &str| serde_json::from_str(line).unwrap();
            let parts = |line: Json| ["/audios/0", "/images/0", "/messages/1/content"].map(|name| part(&line, name));
            text.lines().map(line).map(parts).collect()
        };
        let (train, held_out) = (lines("train.jsonl"), lines("held_out.jsonl"));
        let mut heard: BTreeMap<&str, usize> = BTreeMap::new();
        for [sound, picture, answer] in &train {
            *heard.entry(sound).or_default() += 1;
            // The digit is the end of the recording's name.
            assert!(sound.ends_with(&format!("-{}.wav", &answer[..1])), "{sound} {answer}");
            assert!(folder.path().join(sound).exists() && folder.path().join(picture).exists());
        }
        assert!(heard.len() == 1350 && heard.values().all(|&count| count <= 2));
        let (sounds, pictures) = (lines("shuffled_sound.jsonl"), lines("shuffled_picture.jsonl"));
        for ((own, sound), picture) in held_out.iter().zip(&sounds).zip(&pictures) {
            assert!(own[0] != sound[0] && own[1] == sound[1] && own[2] == sound[2]);
            assert!(own[0] == picture[0] && own[1] != picture[1] && own[2] == picture[2]);
        }
        assert!(compose(folder.path(), &settings).unwrap_err().to_string().contains("new folder"));
    }
}
