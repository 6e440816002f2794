//! What the last samples of a run are worth: a model that reads pictures reads them, clips are compared with the true ones, and
//! pictures with those that were trained on. Every figure stands beside its control.

use crate::eval::futures;
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
    let clips = made.iter().filter(|it| it.num_frames > 1);
    let pair = |it: &Made| {
        let frames = |strip| futures::frames(strip, it.num_frames);
        Some(futures::Made { frames: frames(&it.strip), truth: frames(it.truth.as_ref()?) })
    };
    futures::compare(&clips.filter_map(pair).collect::<Vec<_>>()).into_iter().for_each(|line| console.line(&line));
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
    let last = |strip: &RgbImage, count: usize| futures::frames(strip, count).pop().expect("a clip has a frame");
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
        let answer = prompts.exchange(index).ok().map(|exchange| exchange.answer);
        let prompt = prompts.caption(index).unwrap_or_else(|| prompts.place_name(index));
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
}
