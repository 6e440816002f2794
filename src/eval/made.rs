//! What the last samples of a run are worth: a model that reads pictures reads them, clips are compared with the true ones, and
//! pictures with those that were trained on. Every figure stands beside its control.

use crate::eval::generator::Reader;
use crate::eval::nearest::{self, Nearest};
use crate::eval::samples::{self, step_folder};
use crate::model::folder::ModelFolder;
use anyhow::{Context, Result, ensure};
use image::{RgbImage, imageops};
use loongforge_core::config::{RunConfig, SampleReader};
use loongforge_core::data::{Dataset, Sample};
use loongforge_core::message::{StepId, Tower};
use loongforge_core::observe::{Answer, Clip, Console, EvalRecord, Scoring};
use std::collections::BTreeMap;
use std::path::Path;
use tch::Device;

/// The name of the samples among what is evaluated.
pub const SAMPLES: &str = "samples";

/// What was made of one prompt.
struct Made {
    prompt: String,
    /// What the reader is to read.
    answer: Option<String>,
    /// Frames side by side.
    strip: RgbImage,
    /// The prompt's own picture or clip, in the same way.
    truth: Option<RgbImage>,
    num_frames: usize,
}

/// Measures what was made after the last of `step` steps, and tells of it; `None`: nothing was made.
///
/// # Errors
/// A sample cannot be read, or the reader's folder is of no model that reads pictures.
pub fn measure(
    config: &RunConfig,
    folder: &ModelFolder,
    step: u64,
    device: Device,
    console: &Console,
) -> Result<Option<EvalRecord>> {
    let Some(prompts) = samples::prompts(config, folder, None).context("sample.prompts")? else { return Ok(None) };
    let made = collect(&prompts, &config.run.dir.join(step_folder(StepId(step))))?;
    if made.is_empty() {
        return Ok(None);
    }
    clips(&made).into_iter().for_each(|line| console.line(&line));
    if let Some(found) = nearest_training(config, folder, &made)? {
        console.line(&found.text());
    }
    let mut record = EvalRecord { step, set: SAMPLES.to_owned(), samples: made.len() as u64, ..EvalRecord::default() };
    let Some((eval, settings)) = config.eval.as_ref().and_then(|eval| Some((eval, eval.reader.as_ref()?))) else {
        return Ok(Some(record));
    };
    let path = settings.load.as_path();
    if !path.is_dir() {
        console.line(&format!(
            "the samples are not read: eval.reader.load names {}, which is not there; cargo xtask quickstart makes the \
             quick start's reader",
            path.display()
        ));
        return Ok(Some(record));
    }
    let reader = Reader::open(path, device).context("eval.reader")?;
    let ask = |pictures: &[RgbImage]| read(&reader, settings, eval.batch_size, eval.max_new_tokens, pictures);
    let last = |strip: &RgbImage, num: usize| {
        let width = strip.width() / num as u32;
        imageops::crop_imm(strip, width * (num as u32 - 1), 0, width, strip.height()).to_image()
    };
    let readable: Vec<(&Made, &str)> = made.iter().filter_map(|it| Some((it, it.answer.as_deref()?))).collect();
    ensure!(!readable.is_empty(), "eval.reader: no prompt of {} has an `answer`", prompts.place_name(0));
    let expected: Vec<&str> = readable.iter().map(|(_, answer)| *answer).collect();
    let given = ask(&readable.iter().map(|(it, _)| last(&it.strip, it.num_frames)).collect::<Vec<_>>())?;
    let own = share(given.iter().map(String::as_str).zip(expected.iter().copied()));
    console.line(&format!("samples read by {}: {}", path.display(), own.text()));
    let of_others = (0..given.len()).map(|at| (given[at].as_str(), expected[(at + 1) % expected.len()]));
    let of_others = share(of_others.filter(|(_, other)| expected.len() > 1 && !other.is_empty()));
    console.line(&format!("  against the prompt of the sample behind: {}", of_others.text()));
    let real: Vec<(RgbImage, &str)> =
        readable.iter().filter_map(|(it, answer)| Some((last(it.truth.as_ref()?, it.num_frames), *answer))).collect();
    if !real.is_empty() {
        let (pictures, expected): (Vec<RgbImage>, Vec<&str>) = real.into_iter().unzip();
        let found = ask(&pictures)?;
        let found = share(found.iter().map(String::as_str).zip(expected));
        console.line(&format!("  the true pictures of the prompts: {}", found.text()));
    }
    let answers = readable.iter().zip(given).map(|((it, expected), answer)| Answer {
        prompt: it.prompt.clone(),
        correct: answer == *expected,
        answer,
        expected: (*expected).to_owned(),
    });
    record = record.with_answers(answers.collect(), &Scoring::of(eval, SAMPLES));
    Ok(Some(record))
}

/// What was made of the prompts that have a file in `folder`.
fn collect(prompts: &Dataset, folder: &Path) -> Result<Vec<Made>> {
    let mut made = Vec::new();
    for index in 0..prompts.len() as u64 {
        let path = folder.join(format!("{index:04}.png"));
        if !path.is_file() {
            continue;
        }
        let strip = image::open(&path).with_context(|| path.display().to_string())?.into_rgb8();
        let truth = prompts.sample(index).ok().as_ref().and_then(target);
        let num_frames = truth.as_ref().map_or(1, |truth| truth.frames.len());
        let (prompt, answer) = match prompts.exchange(index) {
            Ok(exchange) => (exchange.question, Some(exchange.answer)),
            Err(_) => (prompts.place_name(index), None),
        };
        made.push(Made { prompt, answer, strip, truth: truth.map(|truth| truth.strip()), num_frames });
    }
    Ok(made)
}

/// The picture or clip from which a sample's target is made, as the model's autoencoder gets it.
fn target(sample: &Sample) -> Option<Clip> {
    let item = sample.media.iter().find(|item| item.tower == Tower::Vae)?;
    let size = [item.grid.t, item.grid.h, item.grid.w].map(|side| side as usize);
    let channels = item.pixels.len() / size.iter().product::<usize>().max(1);
    Some(Clip::from_values(&item.pixels, [size[0], size[1], size[2], channels], 1.0))
}

/// Two lines of clips: how near they are to the true ones behind the first frame, and how often they are nearer to their own than
/// to those of other prompts that begin with the same frame.
fn clips(made: &[Made]) -> Vec<String> {
    let with_truth = made.iter().filter(|it| it.num_frames > 1);
    let pairs: Vec<(&Made, &RgbImage)> = with_truth.filter_map(|it| Some((it, it.truth.as_ref()?))).collect();
    if pairs.is_empty() {
        return Vec::new();
    }
    let behind = |strip: &RgbImage, num: usize| {
        let width = strip.width() / num as u32;
        imageops::crop_imm(strip, width, 0, strip.width() - width, strip.height()).to_image().into_raw()
    };
    let first = |strip: &RgbImage, num: usize| {
        imageops::crop_imm(strip, 0, 0, strip.width() / num as u32, strip.height()).to_image().into_raw()
    };
    let ends: Vec<(Vec<u8>, Vec<u8>)> =
        pairs.iter().map(|(it, truth)| (behind(&it.strip, it.num_frames), behind(truth, it.num_frames))).collect();
    let psnr = ends.iter().map(|(made, truth)| 10.0 * (65025.0 / error(made, truth).max(1e-6)).log10());
    let still = pairs.iter().zip(&ends).map(|((it, truth), (_, end))| {
        let repeated = first(truth, it.num_frames).repeat(1);
        let frames = frames_of(end, truth, it.num_frames);
        10.0 * (65025.0
            / (frames.iter().map(|frame| error(&repeated, frame)).sum::<f64>() / frames.len() as f64).max(1e-6))
        .log10()
    });
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    let mut lines = vec![format!(
        "clips against the true ones, behind the first frame: {:.1} dB over {}; the first frame repeated: {:.1} dB",
        mean(psnr.collect()),
        pairs.len(),
        mean(still.collect())
    )];
    let mut groups: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
    for (at, (it, truth)) in pairs.iter().enumerate() {
        groups.entry(first(truth, it.num_frames)).or_default().push(at);
    }
    // Where two prompts have the same future, there is nothing to tell apart.
    let differ = |group: &Vec<usize>| {
        let mut futures: Vec<&Vec<u8>> = group.iter().map(|&at| &ends[at].1).collect();
        futures.sort();
        futures.windows(2).all(|two| two[0] != two[1])
    };
    let judged: Vec<&Vec<usize>> = groups.values().filter(|group| group.len() > 1 && differ(group)).collect();
    let is_own = |at: usize, group: &[usize]| {
        let nearest = group
            .iter()
            .min_by(|&&one, &&other| error(&ends[at].0, &ends[one].1).total_cmp(&error(&ends[at].0, &ends[other].1)));
        nearest == Some(&at)
    };
    let count: usize = judged.iter().map(|group| group.len()).sum();
    if count > 0 {
        let right = judged.iter().flat_map(|group| group.iter().filter(|&&at| is_own(at, group))).count();
        let chance = judged.len() as f64 / count as f64;
        lines.push(format!(
            "  nearest to their own future among those of the same first frame: {right} of {count} ({:.1} %; chance {:.0} %)",
            100.0 * right as f64 / count as f64,
            100.0 * chance
        ));
    }
    lines
}

/// The frames of what lies behind the first one of a strip.
fn frames_of(end: &[u8], strip: &RgbImage, num_frames: usize) -> Vec<Vec<u8>> {
    let (width, height) = (strip.width() as usize / num_frames, strip.height() as usize);
    let row = width * (num_frames - 1) * 3;
    let frame =
        |at: usize| (0..height).flat_map(move |y| end[y * row + at * width * 3..][..width * 3].to_vec()).collect();
    (0..num_frames - 1).map(frame).collect()
}

/// The mean square difference of bytes.
fn error(one: &[u8], other: &[u8]) -> f64 {
    let squares = one.iter().zip(other).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2));
    squares.sum::<f64>() / one.len().max(1) as f64
}

/// How near samples are to pictures that were trained on; `None` of clips.
fn nearest_training(config: &RunConfig, folder: &ModelFolder, made: &[Made]) -> Result<Option<Nearest>> {
    let pictures = || made.iter().filter(|it| it.num_frames == 1);
    let truths: Vec<&RgbImage> = pictures().filter_map(|it| it.truth.as_ref()).collect();
    if truths.is_empty() {
        return Ok(None);
    }
    let train = samples::trained_on(config, folder).context("data.train")?;
    let trained = (0..nearest::MAX_TRAINED.min(train.len() as u64)).filter_map(|at| target(&train.sample(at).ok()?));
    let trained: Vec<RgbImage> = trained.map(|clip| clip.strip()).collect();
    Ok(Some(Nearest::of(&pictures().map(|it| &it.strip).collect::<Vec<_>>(), &truths, &trained)))
}

/// What the reader says of each picture.
fn read(
    reader: &Reader,
    settings: &SampleReader,
    batch_size: usize,
    max_new_tokens: usize,
    pictures: &[RgbImage],
) -> Result<Vec<String>> {
    let folder = tempfile::tempdir()?;
    let mut answers = Vec::new();
    for batch in pictures.chunks(batch_size.max(1)) {
        let question = |(at, picture): (usize, &RgbImage)| {
            let path = folder.path().join(format!("{at}.png"));
            shown(picture, settings).save(&path)?;
            reader.question(&settings.question, &[path], &[])
        };
        let questions = batch.iter().enumerate().map(question).collect::<Result<Vec<_>>>()?;
        answers.extend(reader.answer(&questions.iter().collect::<Vec<_>>(), max_new_tokens, None)?);
    }
    Ok(answers)
}

/// A picture as the reader is shown it.
fn shown(picture: &RgbImage, settings: &SampleReader) -> RgbImage {
    let (width, height) = picture.dimensions();
    let factor = settings.enlarge as u32;
    let mut shown = imageops::resize(picture, width * factor, height * factor, imageops::FilterType::Nearest);
    if settings.ink_on_paper {
        imageops::invert(&mut shown);
    }
    shown
}

/// How many readings are what was expected, and how many of their characters.
#[derive(Debug, PartialEq)]
struct Share {
    count: usize,
    right: usize,
    characters: f64,
}

fn share<'a>(readings: impl Iterator<Item = (&'a str, &'a str)>) -> Share {
    let (mut count, mut right, mut same, mut all) = (0, 0, 0, 0);
    for (read, expected) in readings {
        count += 1;
        right += usize::from(read == expected);
        same += read.chars().zip(expected.chars()).filter(|(one, other)| one == other).count();
        all += expected.chars().count().max(read.chars().count());
    }
    Share { count, right, characters: same as f64 / all.max(1) as f64 }
}

impl Share {
    fn text(&self) -> String {
        let Self { count, right, characters } = self;
        let percent = 100.0 * *right as f64 / (*count).max(1) as f64;
        format!("{right} of {count} correct ({percent:.1} %), {:.1} % of their characters", 100.0 * characters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_count_whole_and_by_character() {
        let found = share([("412", "412"), ("413", "412"), ("41", "412")].into_iter());
        assert_eq!(found, Share { count: 3, right: 1, characters: 7.0 / 9.0 });
        assert_eq!(found.text(), "1 of 3 correct (33.3 %), 77.8 % of their characters");
    }

    /// A clip of three frames of two pixels: what it begins with, and what follows.
    fn clip(first: u8, then: [u8; 2]) -> RgbImage {
        let row = [first, 0, then[0], 0, then[1], 0];
        RgbImage::from_raw(6, 1, row.into_iter().flat_map(|value| [value; 3]).collect()).unwrap()
    }

    fn made(strip: RgbImage, truth: RgbImage) -> Made {
        Made { prompt: String::new(), answer: None, strip, truth: Some(truth), num_frames: 3 }
    }

    #[test]
    fn clips_are_told_apart_from_other_futures_of_their_first_frame() {
        let (left, right) = (clip(9, [50, 100]), clip(9, [150, 200]));
        let group = [made(clip(9, [60, 100]), left.clone()), made(clip(9, [60, 110]), right)];
        let lines = clips(&group);
        assert!(lines[1].contains("1 of 2 (50.0 %; chance 50 %)"), "{lines:?}");
        // Another first frame is another group, and one alone is told from nothing.
        let alone = clips(&[made(clip(9, [50, 100]), left.clone())]);
        assert_eq!(alone.len(), 1, "{alone:?}");
        // Two prompts with one future.
        let same = [made(left.clone(), left.clone()), made(left.clone(), left)];
        assert_eq!(clips(&same).len(), 1);
    }
}
