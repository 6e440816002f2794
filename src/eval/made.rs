//! Judges the last samples of a run: a model that reads pictures reads them, clips are compared with the true ones, and
//! pictures with those that were trained on. Every figure stands beside its control.

use crate::eval::futures;
use crate::eval::generator::Reader;
use crate::eval::nearest::{self, Nearest};
use crate::eval::readings::{Readable, Readings};
use crate::eval::samples::{self, step_folder};
use crate::model::folder::ModelFolder;
use crate::model::locate::ModelFolders;
use anyhow::{Context, Result, ensure};
use image::RgbImage;
use loongforge_core::config::{FrameSize, RunConfig};
use loongforge_core::data::{Dataset, Sample};
use loongforge_core::message::{StepId, Tower};
use loongforge_core::observe::{Clip, Console, EvalRecord, ScoredAnswer, Scoring};
use std::path::Path;
use tch::Device;

/// The name of the samples among what is evaluated.
pub const SAMPLES: &str = "samples";

/// The picture or clip that was made of one prompt.
struct Made {
    prompt: String,
    /// The text that the reader is to read.
    answer: Option<String>,
    /// Frames side by side.
    strip: RgbImage,
    /// The prompt's own picture or clip, in the same way, where it has as many frames of the same size.
    truth: Option<RgbImage>,
    /// The frames of the strip, which shows some of a long clip.
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
    let size = config.sample.as_ref().and_then(|sampling| sampling.size);
    let made = collect(&prompts, &config.run.dir.join(step_folder(StepId(step))), size)?;
    if made.is_empty() {
        return Ok(None);
    }
    let clips = made.iter().filter(|it| it.num_frames > 1);
    let pair = |it: &Made| {
        let frames = |strip| futures::frames(strip, it.num_frames);
        let truth = frames(it.truth.as_ref()?);
        Some(futures::Made { prompt: it.prompt.clone(), frames: frames(&it.strip), truth })
    };
    futures::compare(&clips.filter_map(pair).collect::<Vec<_>>()).iter().for_each(|line| console.line(line));
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
            "the samples are not read: eval.reader.load is {}, which does not exist; `cargo xtask quickstart` makes the quick \
             start's reader",
            path.display()
        ));
        return Ok(Some(record));
    }
    let reader = Reader::open(path, device).context("eval.reader")?;
    let last = |strip: &RgbImage, count: usize| futures::frames(strip, count).pop().expect("a clip has a frame");
    let (prompts_read, readable): (Vec<&str>, Vec<Readable<'_>>) = made
        .iter()
        .filter_map(|it| {
            let truth = it.truth.as_ref().map(|truth| last(truth, it.num_frames));
            let answer = it.answer.as_deref()?;
            Some((it.prompt.as_str(), Readable { picture: last(&it.strip, it.num_frames), truth, answer }))
        })
        .unzip();
    ensure!(!readable.is_empty(), "eval.reader: no prompt of {} has an `answer`", prompts.place_name(0));
    let what = if made.iter().any(|it| it.num_frames > 1) { "last frames" } else { "pictures" };
    let (given, table) = Readings { reader, settings, eval, seed: config.run.seed }.of(&readable, what)?;
    table.iter().for_each(|line| console.line(line));
    let scored = |((prompt, it), answer): ((&&str, &Readable<'_>), String)| {
        ScoredAnswer::new((*prompt).to_owned(), answer, it.answer.to_owned())
    };
    let answers = prompts_read.iter().zip(&readable).zip(given).map(scored);
    record = record.with_answers(answers.collect(), &Scoring::of(eval, SAMPLES));
    Ok(Some(record))
}

/// Sees to it that the model of `eval.reader` can read what a run is to make, before the run: prompts say what is to be read, and it sees
/// pictures. Of a folder that is not there the run tells.
///
/// # Errors
/// No prompt has an answer, or the folder is of no model that sees pictures.
pub fn check_reader(config: &RunConfig, folder: &ModelFolder) -> Result<()> {
    let settings = config.eval.as_ref().and_then(|eval| eval.reader.as_ref());
    let Some(path) = settings.map(|settings| settings.load.as_path()).filter(|path| path.is_dir()) else {
        return Ok(());
    };
    let Some(prompts) = samples::prompts(config, folder, None).context("sample.prompts")? else { return Ok(()) };
    let most = config.sample.as_ref().and_then(|sampling| sampling.max_prompts).unwrap_or(u64::MAX);
    let is_answered = (0..most.min(prompts.len() as u64)).any(|index| prompts.exchange(index).is_ok());
    ensure!(is_answered, "eval.reader: no prompt of {} has an `answer`", prompts.place_name(0));
    let found = ModelFolders::find(path, None).context("eval.reader.load")?;
    let reader = ModelFolder::open_plain(&found.config).context("eval.reader.load")?;
    let sees = reader.config.towers.set().contains(Tower::Vision);
    ensure!(sees, "eval.reader.load: the model in {} sees no pictures", path.display());
    Ok(())
}

/// Returns what was made of the prompts that have a file in `folder`, of this `size` or else of that of their own pictures and clips.
fn collect(prompts: &Dataset, folder: &Path, size: Option<FrameSize>) -> Result<Vec<Made>> {
    let mut made = Vec::new();
    for index in 0..prompts.len() as u64 {
        let path = folder.join(format!("{index:04}.png"));
        if !path.is_file() {
            continue;
        }
        let strip = image::open(&path).with_context(|| path.display().to_string())?.into_rgb8();
        let truth = prompts.sample(index).ok().as_ref().and_then(target);
        let (num_frames, truth) = beside(&strip, truth.as_ref(), size);
        let answer = prompts.exchange(index).ok().map(|exchange| exchange.answer);
        let prompt = prompts.caption(index).unwrap_or_else(|| prompts.place_name(index));
        made.push(Made { prompt, answer, strip, truth, num_frames });
    }
    Ok(made)
}

/// Returns how many frames a strip has of a clip that was made, and the strip of the true clip where the two can be compared.
fn beside(strip: &RgbImage, truth: Option<&Clip>, size: Option<FrameSize>) -> (usize, Option<RgbImage>) {
    let own = || truth.and_then(|truth| truth.frames.first()).map(RgbImage::width);
    let width = size.map(|size| size.columns).or_else(own).filter(|width| *width > 0);
    let num_frames = width.map_or(1, |width| (strip.width() / width).max(1));
    let truth = truth.map(Clip::strip).filter(|truth| truth.dimensions() == strip.dimensions());
    (num_frames as usize, truth)
}

/// Returns the picture or clip from which a sample's target is made, as the model's autoencoder gets it.
fn target(sample: &Sample) -> Option<Clip> {
    let item = sample.media.iter().find(|item| item.tower == Tower::Vae)?;
    let size = [item.grid.t, item.grid.h, item.grid.w].map(|side| side as usize);
    let channels = item.pixels.len() / size.iter().product::<usize>().max(1);
    Some(Clip::from_values(&item.pixels, [size[0], size[1], size[2], channels], 1.0))
}

/// Measures how near samples are to pictures that were trained on; `None` of clips.
fn nearest_training(config: &RunConfig, folder: &ModelFolder, made: &[Made]) -> Result<Option<Nearest>> {
    let pictures = || made.iter().filter(|it| it.num_frames == 1);
    let truths: Vec<&RgbImage> = pictures().filter_map(|it| it.truth.as_ref()).collect();
    if truths.is_empty() {
        return Ok(None);
    }
    let train = samples::trained_on(config, folder).context("data.train")?;
    let trained = (0..nearest::MAX_TRAINED.min(train.len() as u64)).filter_map(|at| target(&train.sample(at).ok()?));
    let mut left = nearest::MAX_BYTES;
    let fits = |picture: &RgbImage| {
        let taken = left.checked_sub(picture.as_raw().len());
        left = taken.unwrap_or(0);
        taken.is_some()
    };
    let trained: Vec<RgbImage> = trained.map(|clip| clip.strip()).take_while(fits).collect();
    if trained.is_empty() {
        return Ok(None);
    }
    Ok(Some(Nearest::of(&pictures().map(|it| &it.strip).collect::<Vec<_>>(), &truths, &trained)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clip whose frames have two rows of four pixels.
    fn clip(frames: usize) -> Clip {
        Clip::from_values(&vec![0.0; frames * 2 * 4], [frames, 2, 4, 1], 16.0)
    }

    #[test]
    fn strips_are_cut_into_the_frames_that_they_show() {
        let size = |rows, columns| Some(FrameSize { rows, columns });
        // Of a long clip a strip shows eight frames.
        for (frames, shown) in [(1, 1), (5, 5), (49, 8)] {
            let truth = clip(frames);
            for size in [None, size(2, 4)] {
                let (count, beside) = beside(&truth.strip(), Some(&truth), size);
                assert_eq!((count, beside), (shown, Some(truth.strip())), "{frames}");
            }
        }
        // The prompt has a first frame, a clip of another length, of another size, or nothing to compare with.
        assert_eq!(beside(&clip(5).strip(), Some(&clip(1)), None), (5, None));
        assert_eq!(beside(&clip(5).strip(), Some(&clip(3)), size(2, 4)), (5, None));
        assert_eq!(beside(&clip(5).strip(), Some(&clip(5)), size(2, 2)).0, 10);
        assert_eq!(beside(&clip(5).strip(), None, size(2, 4)), (5, None));
        assert_eq!(beside(&clip(1).strip(), None, None), (1, None));
    }
}
