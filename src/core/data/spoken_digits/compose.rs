//! A WAV file for each digit of each voice, with `messages` lines.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::json;

use super::model::write_model;
use crate::config::AudioLimits;
use crate::data::audio::{Segment, decode_sound, wav};
use crate::data::error::DataError;
use crate::data::new_folder::NewFolder;
use crate::rng::another;

/// The question about every recording. A run prints it beside its answers, so that it says what was heard.
pub const PROMPT: &str = "Synthetic voice: which digit?";

/// A digit begins every second.
const RATE: u32 = 16_000;
const NUM_DIGITS: usize = 10;
/// Seconds that a recording may last.
const MAX_SECONDS: usize = 2;
/// A line for each voice: part, voice, pitch, speed, and the lengths of its digits in samples.
const VOICES: &str = include_str!("voices.csv");
const TRAIN: &[u8] = include_bytes!("train.ogg");
const HELD_OUT: &[u8] = include_bytes!("held_out.ogg");

/// Describes how many recordings were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Composed {
    pub num_train: usize,
    pub num_held_out: usize,
}

/// Writes `train.jsonl`, `held_out.jsonl`, its control `shuffled_sound.jsonl`, their recordings and `model/` (without weights)
/// into `dir`, which must be new or empty.
///
/// # Errors
/// `dir` holds something or cannot be written.
pub fn compose(dir: &Path) -> Result<Composed, DataError> {
    let new = NewFolder::begin(dir)?;
    let to = new.path();
    let write = |error| DataError::write(dir, error);
    let num_train = write_part(to, Part::Train).map_err(write)?;
    let num_held_out = write_part(to, Part::HeldOut).map_err(write)?;
    fs::write(to.join("ATTRIBUTION.md"), include_str!("ATTRIBUTION.md")).map_err(write)?;
    write_model(&to.join("model"), MAX_SECONDS, &[])?;
    new.publish("train.jsonl")?;
    Ok(Composed { num_train, num_held_out })
}

/// Returns the voices of a part: each with the lengths of its digits in samples.
fn voices(part: &str) -> impl Iterator<Item = (&'static str, Vec<usize>)> {
    VOICES.lines().filter_map(move |line| {
        let mut fields = line.strip_prefix(part)?.strip_prefix(',')?.split(',');
        let voice = fields.next().expect("every line has a voice");
        Some((voice, fields.skip(2).map(|length| length.parse().expect("a number of samples")).collect()))
    })
}

/// Voices for training, or held out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::data) enum Part {
    Train,
    HeldOut,
}

impl Part {
    /// Returns the name of the part in paths, `train` or `held_out`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::HeldOut => "held_out",
        }
    }
}

/// Writes the recordings of a part below `dir`; returns the file of each, relative to `dir`, and the digit that is spoken.
pub(in crate::data) fn write_sounds(dir: &Path, part: Part) -> std::io::Result<Vec<(String, usize)>> {
    let limits = AudioLimits { min_seconds: 0.0, max_seconds: 3600.0, max_tokens: None };
    let file = if part == Part::Train { TRAIN } else { HELD_OUT };
    let sound = decode_sound(file, RATE, &limits, Segment::WHOLE).expect("the file is part of the program");
    let folder = format!("sounds/{}", part.name());
    fs::create_dir_all(dir.join(&folder))?;
    let mut written = Vec::new();
    for (number, (_, lengths)) in voices(part.name()).enumerate() {
        for (digit, length) in lengths.into_iter().enumerate() {
            let start = (NUM_DIGITS * number + digit) * RATE as usize;
            let name = format!("{folder}/{number:03}-{digit}.wav");
            fs::write(dir.join(&name), wav(&sound[start..start + length], 1, RATE))?;
            written.push((name, digit));
        }
    }
    Ok(written)
}

/// Writes a part: of the held-out voices also `shuffled_sound.jsonl`, where each question and answer has the recording of
/// another one. Returns the number of recordings.
fn write_part(dir: &Path, part: Part) -> std::io::Result<usize> {
    let sounds = write_sounds(dir, part)?;
    let lines = |name: &str, sound: &dyn Fn(usize) -> usize| {
        let mut lines = BufWriter::new(fs::File::create(dir.join(name))?);
        for (number, (_, digit)) in sounds.iter().enumerate() {
            let line = json!({
                "messages": [
                    {"role": "user", "content": format!("<audio>{PROMPT}")},
                    {"role": "assistant", "content": digit.to_string()},
                ],
                "audios": [sounds[sound(number)].0],
            });
            writeln!(lines, "{line}")?;
        }
        lines.flush()
    };
    lines(&format!("{}.jsonl", part.name()), &|number| number)?;
    if part == Part::HeldOut {
        lines("shuffled_sound.jsonl", &|number| another(number, sounds.len(), &[]))?;
    }
    Ok(sounds.len())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::data::source::Conversation;

    #[test]
    fn every_voice_says_every_digit_and_no_variant_is_in_both_parts() {
        let folder = tempfile::tempdir().unwrap();
        let made = compose(folder.path()).unwrap();
        assert_eq!(made, Composed { num_train: 1350, num_held_out: 300 });
        let variants =
            |part| -> BTreeSet<&str> { voices(part).map(|(voice, _)| voice.split_once('+').unwrap().1).collect() };
        assert!(variants("train").is_disjoint(&variants("held_out")));
        assert_eq!((variants("train").len(), variants("held_out").len()), (45, 15));
        let limits = AudioLimits { min_seconds: 0.1, max_seconds: 1.0, max_tokens: None };
        let text = fs::read_to_string(folder.path().join("held_out.jsonl")).unwrap();
        for line in text.lines() {
            let conversation = Conversation::parse(line).unwrap();
            let file = fs::read(folder.path().join(conversation.media[0].name())).unwrap();
            let sound = decode_sound(&file, RATE, &limits, Segment::WHOLE).unwrap();
            // The word fills its recording: what is loud begins and ends near its ends.
            let loud: Vec<usize> = (0..sound.len()).filter(|&at| sound[at].abs() > 0.03).collect();
            assert!(loud[0] < 4000 && sound.len() - loud[loud.len() - 1] < 4000, "{line}");
        }
        let error = compose(folder.path()).unwrap_err().to_string();
        assert!(error.contains("new folder"), "{error}");
    }
}
