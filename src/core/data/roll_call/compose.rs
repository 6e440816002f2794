//! Recordings of three voices in a row, with `messages` lines that ask for one of them, and the controls of what is learned.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Value as Json, json};

use super::package::{NUM_VOICES, clips, language, name};
use super::spoken::{PIECE, Spoken};
use crate::config::AudioLimits;
use crate::data::audio::{Samples, Segment, decode_sound, read_header, wav};
use crate::data::emoji::learn_merges;
use crate::data::error::DataError;
use crate::data::new_folder::NewFolder;
use crate::data::spoken_digits::write_model;
use crate::data::tools::{default_jobs, for_each_ordered};
use crate::rng::{Rng, another, permute};

const RATE: u32 = 16_000;
const _: () = assert!(PIECE == RATE as usize, "a voice is heard for a second");
/// Voices of a recording.
const NUM_HEARD: usize = 3;
/// A shorter clip is left out, in samples.
const MIN_CLIP: usize = PIECE * 11 / 10;
/// One level in so many is held out.
const HELD_OUT: usize = 4;
const QUESTIONS: [&str; NUM_HEARD] = ["Who speaks first?", "Who speaks second?", "Who speaks third?"];
const NOTICE: &str = "\
The recordings in this folder are cut from the speech of Fish Fillets NG, as the Debian packages fillets-ng-data-cs and
fillets-ng-data-nl have it, under the GNU General Public License, version 2; usr/share/doc of the packages names the authors.
";

/// Describes the recordings to make. The same values and packages give the same bytes.
#[derive(Clone, Copy, Debug)]
pub struct RollCall {
    pub seed: u64,
    /// Recordings for training; each of them is asked about three times.
    pub num_train: usize,
    /// Recordings of held-out levels; each of them is asked about once.
    pub num_held_out: usize,
}

impl Default for RollCall {
    fn default() -> Self {
        Self { seed: 1, num_train: 9000, num_held_out: 400 }
    }
}

/// The numbers of what was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Composed {
    /// Samples for training.
    pub num_train: usize,
    pub num_held_out: usize,
    /// Clips that recordings are cut from.
    pub num_clips: usize,
    pub num_levels: usize,
    pub num_held_out_levels: usize,
    /// Clips that are shorter than 1.1 seconds and were left out.
    pub num_short: usize,
    /// Clips without a second that is loud enough to be speech, which were left out.
    pub num_quiet: usize,
    /// Clips of another rate than most of their language have, which were left out: models that learned from the others are
    /// wrong on them, so other people seem to speak there for the same two characters.
    pub num_other_rate: usize,
    /// Clips that cannot be decoded and were left out, with the reasons.
    pub bad: Vec<String>,
}

/// Clips of each voice.
type Voices = [Vec<Spoken>; NUM_VOICES];

/// Writes `train.jsonl`, `held_out.jsonl`, the controls `old_answer.jsonl` and `shuffled_sound.jsonl`, their recordings and
/// `model/` (without weights) into `dir`, which must be new or empty. `progress` hears of each clip and of how many there are.
///
/// # Errors
/// `from` lacks a package, or has too few levels; `dir` holds something or cannot be written.
pub fn compose(
    dir: &Path,
    from: &Path,
    settings: &RollCall,
    mut progress: impl FnMut(usize),
) -> Result<Composed, DataError> {
    let clips = clips(from)?;
    let new = NewFolder::begin(dir)?;
    let levels: BTreeSet<&String> = clips.iter().map(|clip| &clip.level).collect();
    let held_out = held_out(&levels, settings.seed);
    let mut made = Composed { num_levels: levels.len(), num_held_out_levels: held_out.len(), ..Composed::default() };
    let mut all_spoken: Vec<(usize, u32, Spoken)> = Vec::new();
    let limits = AudioLimits { min_seconds: 0.0, max_seconds: 600.0, max_tokens: None };
    let decode = |index: u64| -> Result<(u32, Samples), String> {
        let clip = &clips[index as usize];
        let file = fs::read(&clip.path).map_err(|error| error.to_string())?;
        let rate = read_header(&file)?.rate.unwrap_or_default();
        Ok((rate, decode_sound(&file, RATE, &limits, Segment::WHOLE)?))
    };
    for_each_ordered(default_jobs(), 0..clips.len() as u64, decode, |index, decoded| {
        progress(clips.len());
        let clip = &clips[index as usize];
        match decoded {
            Ok((_, samples)) if samples.len() < MIN_CLIP => made.num_short += 1,
            Ok((rate, samples)) => match Spoken::new(&samples) {
                Some(spoken) => all_spoken.push((index as usize, rate, spoken)),
                None => made.num_quiet += 1,
            },
            Err(reason) => made.bad.push(format!("{}: {reason}", clip.path.display())),
        }
        Ok::<(), DataError>(())
    })?;
    let rates = usual_rates(all_spoken.iter().map(|(index, rate, _)| (language(clips[*index].voice), *rate)));
    let mut parts: [Voices; 2] = Default::default();
    for (index, rate, spoken) in all_spoken {
        let clip = &clips[index];
        if rate == rates[&language(clip.voice)] {
            parts[usize::from(held_out.contains(&clip.level))][clip.voice].push(spoken);
        } else {
            made.num_other_rate += 1;
        }
    }
    for (part, what) in parts.iter().zip(["training", "held-out"]) {
        if let Some(voice) = part.iter().position(Vec::is_empty) {
            let lacks = format!("no {what} level has a clip of {} with a second of speech", name(voice));
            return Err(DataError::file(from, lacks));
        }
    }
    made.num_clips = parts.iter().flatten().map(Vec::len).sum();
    let write = |error| DataError::write(dir, error);
    let counts = [settings.num_train, settings.num_held_out];
    for (part, (voices, count)) in parts.iter().zip(counts).enumerate() {
        write_part(new.path(), settings.seed, part, voices, count).map_err(write)?;
    }
    fs::write(new.path().join("NOTICE"), NOTICE).map_err(write)?;
    write_model(&new.path().join("model"), NUM_HEARD, &merges())?;
    new.publish("train.jsonl")?;
    (made.num_train, made.num_held_out) = (settings.num_train * NUM_HEARD, settings.num_held_out);
    Ok(made)
}

/// Returns the rate that most clips of each language have.
fn usual_rates(clips: impl Iterator<Item = (usize, u32)>) -> BTreeMap<usize, u32> {
    let mut counts: BTreeMap<(usize, u32), usize> = BTreeMap::new();
    clips.for_each(|clip| *counts.entry(clip).or_default() += 1);
    let mut by_count: Vec<_> = counts.into_iter().collect();
    by_count.sort_by_key(|&(_, count)| count);
    by_count.into_iter().map(|(clip, _)| clip).collect()
}

/// Merges that make every word of questions and answers one token.
fn merges() -> Vec<[String; 2]> {
    let answers = (0..NUM_VOICES).map(name);
    let texts: Vec<&str> = QUESTIONS.into_iter().chain(answers).collect();
    // A pair that is met once stays apart.
    learn_merges(texts.iter().chain(&texts).copied(), usize::MAX)
}

/// Returns a fourth of the levels: the same ones for the same seed and the same levels.
fn held_out(levels: &BTreeSet<&String>, seed: u64) -> BTreeSet<String> {
    let place = |at: usize| permute(at as u64, levels.len() as u64, &[seed]) as usize;
    let chosen: BTreeSet<usize> = (0..levels.len().div_ceil(HELD_OUT)).map(place).collect();
    levels.iter().enumerate().filter(|(at, _)| chosen.contains(at)).map(|(_, level)| (*level).clone()).collect()
}

/// Draws three different voices in a random order, a second of speech of a random clip each. Returns the voices and the samples.
fn recording(rng: &mut Rng, voices: &Voices) -> ([usize; NUM_HEARD], Vec<f32>) {
    let mut order: [usize; NUM_VOICES] = std::array::from_fn(|voice| voice);
    for at in 0..NUM_HEARD {
        order.swap(at, at + rng.below((NUM_VOICES - at) as u64) as usize);
    }
    let heard: [usize; NUM_HEARD] = std::array::from_fn(|at| order[at]);
    let mut samples = Vec::with_capacity(NUM_HEARD * PIECE);
    for voice in heard {
        let clip = &voices[voice][rng.below(voices[voice].len() as u64) as usize];
        samples.extend(clip.piece(rng));
    }
    (heard, samples)
}

/// Writes the recordings of a part (0: training, 1: held out) and its samples.
fn write_part(dir: &Path, seed: u64, part: usize, voices: &Voices, count: usize) -> std::io::Result<()> {
    let folder = format!("sounds/{}", ["train", "held_out"][part]);
    fs::create_dir_all(dir.join(&folder))?;
    let rng = |number: usize| Rng::new(&[seed, part as u64, number as u64]);
    let file = |number: usize| format!("{folder}/{number:05}.wav");
    let mut all_heard = Vec::with_capacity(count);
    for number in 0..count {
        let (heard, samples) = recording(&mut rng(number), voices);
        fs::write(dir.join(file(number)), wav(&samples, 1, RATE))?;
        all_heard.push(heard);
    }
    let sample = |number: usize, asked: usize, voice: usize| {
        json!({
            "messages": [
                {"role": "user", "content": format!("<audio>{}", QUESTIONS[asked])},
                {"role": "assistant", "content": name(voice)},
            ],
            "audios": [file(number)],
        })
    };
    let lines = |name: &str, count: usize, sample: &dyn Fn(usize) -> Json| {
        let mut lines = BufWriter::new(fs::File::create(dir.join(name))?);
        (0..count).try_for_each(|number| writeln!(lines, "{}", sample(number)))?;
        lines.flush()
    };
    if part == 0 {
        let of = |at: usize| (at / NUM_HEARD, at % NUM_HEARD);
        return lines("train.jsonl", count * NUM_HEARD, &|at| {
            sample(of(at).0, of(at).1, all_heard[of(at).0][of(at).1])
        });
    }
    let asked = |number: usize| number % NUM_HEARD;
    let expected = |number: usize| all_heard[number][asked(number)];
    lines("held_out.jsonl", count, &|number| sample(number, asked(number), expected(number)))?;
    // One of the other two questions, with the answer to the first.
    let other = |number: usize| (asked(number) + 1 + number / NUM_HEARD % (NUM_HEARD - 1)) % NUM_HEARD;
    lines("old_answer.jsonl", count, &|number| sample(number, other(number), expected(number)))?;
    // The question and its answer, with the recording of another sample.
    let elsewhere = |number| another(number, count, &[seed, 2]);
    lines("shuffled_sound.jsonl", count, &|number| sample(elsewhere(number), asked(number), expected(number)))
}
