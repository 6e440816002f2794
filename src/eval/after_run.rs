//! The report after a run: held-out samples of its last checkpoint, their questions answered greedily, a few of them in the terminal, and
//! pictures of the results. A set that was evaluated while the run went on is not evaluated again.

use crate::eval::acted::act;
use crate::eval::answers::Asking;
use crate::eval::generator::Reader;
use crate::eval::held_out_sets::{self, HeldOutSet};
use crate::eval::loss::Measure;
use crate::eval::made;
use crate::eval::pooled::pooled_answers;
use crate::eval::report::{EVAL, curves, shown};
use crate::eval::samples::{is_diffusion, step_folder};
use crate::model::folder::ModelFolder;
use anyhow::{Context, Result, ensure};
use loongforge_core::checkpoint::{Manifest, latest};
use loongforge_core::config::{BadSamples, Eval, ModelKind, RunConfig, TooLong, Weights};
use loongforge_core::data::{Dataset, Limits, Locator, ProcessorOptions, read_rgb};
use loongforge_core::files::{if_there, remove_if_there};
use loongforge_core::message::{PoolName, StepId};
use loongforge_core::observe::{
    Console, Curve, Ending, EvalRecord, MetricsFile, Reading, ScoredAnswer, Scoring, Style, TensorBoard, TrackedRun,
    Trackers, beside, plot, read_evaluations, read_metrics, render, safe, sheet,
};
use loongforge_core::text::shell_word;
use loongforge_torch::device::set_intra_op_threads;
use loongforge_torch::engine::open_device;
use serde_json::Value;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A file in a run's folder with the number of steps after which all was evaluated that is evaluated after a run.
pub const EVALUATED: &str = ".evaluated";

/// A file of pictures, and what it is called.
type Sheet = (&'static str, PathBuf);

/// Columns that a picture may take in the terminal.
const PICTURE_COLUMNS: u32 = 48;

/// Draws the loss curves and, where `eval` is set and was not evaluated while the run went on, measures the held-out losses and
/// how many answers are correct.
///
/// # Errors
/// A file cannot be read or written.
pub fn after_run(config: &RunConfig, console: &Console) -> Result<()> {
    let dir = &config.run.dir;
    let mut files = Vec::new();
    let checkpoint = latest(&config.checkpoint.dir)?;
    ensure!(checkpoint.is_some() || !config.checkpoint.at_end, "the run left no checkpoint");
    // Without the last step's there is nothing to evaluate.
    let last = checkpoint.as_deref().filter(|_| config.unsaved().is_none());
    let mut evaluated = Ok(());
    let folder = ModelFolder::open(&config.model)?;
    let is_policy = folder.model_kind() == ModelKind::Policy;
    let found = match (&config.eval, last) {
        (_, Some(checkpoint)) if is_diffusion(&folder) => made(config, &folder, checkpoint, console),
        (_, Some(checkpoint)) if is_policy => acted(config, checkpoint, console),
        (Some(eval), Some(checkpoint)) => evaluate(config, eval, checkpoint, console),
        (None, _) | (_, None) => Ok(None),
    };
    match found {
        Ok(sheet) => files.extend(sheet),
        Err(error) => evaluated = Err(error.context("the model is trained and saved, but not evaluated")),
    }
    if config.log.jsonl && config.eval.is_some() {
        files.push(("held-out results", dir.join(EVAL)));
    }
    if config.log.jsonl {
        // The model is trained and saved, whether a picture of it can be drawn or not.
        match loss_curve(config) {
            Ok(path) => path.into_iter().for_each(|path| files.insert(0, ("loss curve", path))),
            Err(error) => console.line(&format!("warning: {error:#}")),
        }
    }
    let trained = match is_diffusion(&folder) {
        _ if config.saves_adapters_only() => "trained adapters (PEFT)",
        true => "trained model (a Diffusers folder)",
        false if is_policy => "trained policy",
        false => "trained model (a Hugging Face folder)",
    };
    files.extend(checkpoint.iter().map(|checkpoint| (trained, checkpoint.clone())));
    config.unsaved().into_iter().for_each(|line| console.line(&line));
    let best = config.checkpoint.dir.join(loongforge_actors::checkpoint::BEST);
    if best.exists() {
        files.push(("checkpoint of the lowest held-out loss", best));
    }
    if checkpoint.is_some() && config.saves_adapters_only() && !has_base(config) {
        let has_parts = config.model.parts().iter().any(|(_, part)| part.load.is_some());
        let why = match has_parts && config.model.weights == Weights::Load {
            true => "no folder has all weights that these adapters are added to",
            false => "the base of these adapters has random weights that are not saved anywhere",
        };
        console.line(&format!("{why}: checkpoint.merge_lora=true saves whole models"));
    }
    console.line("");
    for (what, path) in &files {
        console.line(&format!("{what:<38} {}", path.display()));
    }
    if let Some(checkpoint) = checkpoint.as_deref().filter(|_| config.saves_adapters_only() && has_base(config)) {
        let (what, command) = match is_diffusion(&folder) {
            true => ("one file for Diffusers or ComfyUI", "export --format comfyui"),
            false => ("adapters merged into their base", "export-hf"),
        };
        console.line(&format!("{what:<38} loongforge checkpoint {command} {} OUT", shell_word(checkpoint)));
    }
    if is_policy && checkpoint.is_some() && (!config.saves_adapters_only() || has_base(config)) {
        let dir = shell_word(dir);
        console.line(&format!("{:<38} loongforge serve-policy {dir} --protocol openpi", "serve it"));
        console.line(&format!("{:<38} loongforge checkpoint export-hf {dir} OUT", "one folder of the policy"));
    }
    if config.log.tensorboard {
        console.line(&format!("{:<38} tensorboard --logdir {}", "all curves", shell_word(&dir.join("tensorboard"))));
    }
    if let Some(wandb) = &config.log.wandb {
        let runs = wandb.dir.clone().unwrap_or_else(|| dir.join("wandb"));
        console.line(&format!("{:<38} wandb sync {}/offline-run-*", "for Weights & Biases", runs.display()));
    }
    if let Some(mlflow) = &config.log.mlflow {
        let store = mlflow.dir.clone().unwrap_or_else(|| dir.join("mlruns"));
        let command = format!("MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {}", store.display());
        console.line(&format!("{:<38} {command}", "for MLflow"));
    }
    evaluated.and_then(|()| note(config))
}

/// Notes that the run is evaluated.
fn note(config: &RunConfig) -> Result<()> {
    let path = config.run.dir.join(EVALUATED);
    fs::write(&path, format!("{}\n", config.train.num_steps())).with_context(|| path.display().to_string())
}

/// Returns whether [`after_run`] has come to its end after the run's last step.
///
/// # Errors
/// The note of it cannot be read.
pub fn is_made(config: &RunConfig) -> Result<bool> {
    let path = config.run.dir.join(EVALUATED);
    let text = if_there(fs::read_to_string(&path)).with_context(|| path.display().to_string())?;
    Ok(text.is_some_and(|text| text.trim().parse::<u64>().ok() == Some(config.train.num_steps())))
}

/// Removes the note that the run is evaluated: it goes on.
///
/// # Errors
/// It cannot be removed.
pub fn forget(config: &RunConfig) -> io::Result<()> {
    remove_if_there(&config.run.dir.join(EVALUATED))
}

/// Draws the loss curves of a run that was stopped on request; it has ended well, whatever becomes of them.
pub fn after_stop(config: &RunConfig, console: &Console) {
    if config.log.jsonl {
        match loss_curve(config) {
            Ok(Some(path)) => console.line(&format!("{:<38} {}", "loss curve", path.display())),
            Ok(None) => {}
            Err(error) => console.line(&format!("warning: no loss curve: {error:#}")),
        }
    }
}

/// Returns whether there is a folder with the weights that adapters of a run can be added to.
fn has_base(config: &RunConfig) -> bool {
    config.model.weights == Weights::Load && config.model.adapter_base().is_some()
}

/// Draws the losses; `None` where the run has taken no step.
fn loss_curve(config: &RunConfig) -> Result<Option<PathBuf>> {
    let dir = &config.run.dir;
    let file = dir.join("metrics.jsonl");
    let metrics = if file.exists() { read_metrics(&file)? } else { Vec::new() };
    if metrics.is_empty() {
        return Ok(None);
    }
    let points: Vec<(f64, f64)> = metrics.iter().map(|step| (step.step as f64, step.loss)).collect();
    let held_out = curves(&read_evaluations(&dir.join(EVAL))?);
    let path = dir.join("loss.png");
    // One point is no curve.
    let held_out = held_out.iter().filter(|(_, points)| points.len() > 1);
    let held_out = held_out.map(|(set, points)| Curve { label: set, points });
    let training = Curve { label: "training", points: &points };
    plot(
        &path,
        &format!("{}: loss", config.run.name),
        "step",
        &std::iter::once(training).chain(held_out).collect::<Vec<_>>(),
    )?;
    Ok(Some(path))
}

/// Returns the device of the run, with all cores: the actors have ended.
fn device_of(config: &RunConfig) -> Result<tch::Device> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    set_intra_op_threads(if config.run.deterministic { config.threads_for(PoolName::FOUNDATION) } else { cores });
    open_device(&config.device).map_err(|error| anyhow::anyhow!("{error}"))
}

/// Measures the samples that a diffusion model has made last; returns what their sheet is called, and its path.
fn made(config: &RunConfig, folder: &ModelFolder, checkpoint: &Path, console: &Console) -> Result<Option<Sheet>> {
    let step = Manifest::read(checkpoint)?.num_steps;
    let device = device_of(config)?;
    let Some(record) = made::measure(config, folder, step, device, console)? else { return Ok(None) };
    if config.log.jsonl {
        MetricsFile::open(&config.run.dir.join(EVAL), u64::MAX)?.write(&record)?;
    }
    let sheet = config.run.dir.join(step_folder(StepId(step))).join("sheet.png");
    Ok(Some(("samples", sheet)))
}

/// Compares a policy's actions with recorded ones.
fn acted(config: &RunConfig, checkpoint: &Path, console: &Console) -> Result<Option<Sheet>> {
    for record in act(config, checkpoint, console)? {
        if config.log.jsonl {
            MetricsFile::open(&config.run.dir.join(EVAL), u64::MAX)?.write(&record)?;
        }
        curves_of(config, &record)?;
    }
    Ok(None)
}

/// Writes what was found after the run where its curves are: TensorBoard, W&B, MLflow.
fn curves_of(config: &RunConfig, record: &EvalRecord) -> Result<()> {
    let (dir, log) = (&config.run.dir, &config.log);
    if log.tensorboard {
        // Nothing is computed again: what is there of this step, such as other sets, stays.
        let mut tensorboard = TensorBoard::create(&dir.join("tensorboard"), 0)?;
        record.scalars().iter().try_for_each(|(tag, value)| tensorboard.scalar(record.step, tag, *value))?;
    }
    // The runs are there: they go on, and their config with them.
    let run = TrackedRun { name: &config.run.name, dir, config: &Value::Null, version: env!("CARGO_PKG_VERSION") };
    let mut trackers = Trackers::open(log, &run, u64::MAX)?;
    trackers.evaluated(record)?;
    Ok(trackers.end(Ending::Completed)?)
}

/// Evaluates what was not evaluated while the run went on; returns what the sheet of pictures is called, and its path, where
/// there are some.
fn evaluate(config: &RunConfig, eval: &Eval, checkpoint: &Path, console: &Console) -> Result<Option<Sheet>> {
    let device = device_of(config)?;
    let reader = Reader::open(checkpoint, device)?;
    let sets = held_out_sets::open(config, reader.model().folder(), None).context("eval")?;
    let step = Manifest::read(checkpoint)?.num_steps;
    let path = config.run.dir.join(EVAL);
    let before = read_evaluations(&path)?;
    // Where all is evaluated here, what is told of this step is of an earlier life, or of an evaluation that was killed.
    let end = if eval.is_during_run() { u64::MAX } else { step };
    let mut file = config.log.jsonl.then(|| MetricsFile::open(&path, end)).transpose()?;
    let mut tell = |record: EvalRecord| -> Result<()> {
        let name =
            if record.set == Eval::HELD_OUT { "held out".to_owned() } else { format!("held out, {}", record.set) };
        console.line(&format!("{name}: {}", record.text()));
        file.iter_mut().try_for_each(|file| file.write(&record))?;
        curves_of(config, &record)
    };
    let mut readings = Vec::new();
    for set in &sets {
        // Whole answers are evaluated while the run goes on alone.
        if config.train.preference.is_some() {
            continue;
        }
        // An answer was asked for while the run went on, if it could be.
        let is_known = eval.is_during_run()
            && before.iter().any(|record| record.step == step && record.set == set.name)
            && (config.num_answers() > 0 || !set.dataset.is_conversation() || eval.generate == Some(0));
        if is_known {
            continue;
        }
        let key =
            if set.name == Eval::HELD_OUT { "eval.path".to_owned() } else { format!("eval, the set {}", set.name) };
        let (record, shown) = held_out(config, eval, &reader, set, step, console).context(key)?;
        tell(record)?;
        readings.extend(shown);
    }
    if let (Some(num_train), Some(first)) = (eval.pooled_statistics, sets.first()) {
        match pooled(config, &reader, num_train, first) {
            Ok(answers) => {
                let record = EvalRecord { step, set: Eval::POOLED.to_owned(), ..EvalRecord::default() };
                tell(record.with_answers(answers, &Scoring::of(eval, Eval::POOLED)))?;
            }
            Err(error) => console.line(&format!("warning: no result of pooled_statistics: {error:#}")),
        }
    }
    readings.truncate(eval.sheet);
    if readings.is_empty() {
        return Ok(None);
    }
    let correct = readings.iter().filter(|reading| reading.read == reading.truth).count();
    let path = config.run.dir.join("held_out.png");
    sheet(&path, &format!("held out: {correct} of {} correct", readings.len()), &readings)?;
    Ok(Some(("held-out pictures", path)))
}

/// Returns the set's questions, answered by a classifier that knows pooled statistics of the first training samples.
fn pooled(config: &RunConfig, reader: &Reader, num_train: u64, set: &HeldOutSet) -> Result<Vec<ScoredAnswer>> {
    let processor = reader.model().folder().processor(&ProcessorOptions::new(&config.data, &config.train))?;
    let train = Dataset::open(&config.data, processor, config.run.seed)?;
    pooled_answers(&train, num_train, &set.dataset)
}

/// Scores every sample of the set and answers every question; with the readings of pictures.
fn held_out(
    config: &RunConfig,
    eval: &Eval,
    reader: &Reader,
    set: &HeldOutSet,
    step: u64,
    console: &Console,
) -> Result<(EvalRecord, Vec<Reading>)> {
    let dataset = &set.dataset;
    let on_bad = BadSamples { max_fraction: 1.0, max_consecutive: usize::MAX };
    let too_long = TooLong::Skip;
    let found = Measure { on_bad, too_long, ..Measure::of(&config.data) }.run(reader.model(), dataset, || ())?;
    if let Some(first) = found.bad.first() {
        console.line(&format!("{} held-out samples have no loss; the first: {first}", found.bad.len()));
    }
    let record = found.record(step, &set.name);
    if !dataset.is_conversation() {
        ensure!(found.targets > 0, "no sample can be used");
        return Ok((record, Vec::new()));
    }
    let asking = Asking { max_samples: u64::MAX, batch_size: eval.batch_size, max_new_tokens: eval.max_new_tokens };
    let (mut readings, mut num_shown) = (Vec::new(), 0);
    let (answers, bad) = asking.run(reader, dataset, |exchange, answer| {
        if readings.len() < eval.sheet
            && let Some(picture) = exchange.images.first()
        {
            let picture = read_rgb(picture, Path::new(""), &Limits::NONE)?;
            readings.push(Reading { picture, read: answer.said().to_owned(), truth: answer.expected.clone() });
        }
        if num_shown < eval.show {
            num_shown += 1;
            show(answer, exchange.images.first(), console)?;
        }
        Ok(())
    })?;
    if let Some(first) = bad.first() {
        console.line(&format!("{} held-out questions cannot be used; the first: {first}", bad.len()));
    }
    Ok((record.with_answers(answers, &Scoring::of(eval, &set.name)), readings))
}

fn show(answer: &ScoredAnswer, picture: Option<&Locator>, console: &Console) -> Result<()> {
    let Some(path) = picture else {
        console.line(&shown(answer));
        return Ok(());
    };
    let picture =
        render(&read_rgb(path, Path::new(""), &Limits::NONE)?, PICTURE_COLUMNS, Style::of(&std::io::stderr()));
    let verdict = if answer.correct { "correct".to_owned() } else { format!("expected: {}", safe(&answer.expected)) };
    let prompt = safe(&answer.prompt);
    console
        .line(&beside(&picture, &[format!("prompt: {prompt}"), format!("answer: {}", safe(&answer.answer)), verdict]));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::config::{self, load_text};

    const YAML: &str = include_str!("../../configs/sft_text.yaml");

    #[test]
    fn a_run_that_took_no_step_has_no_loss_curve() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = load_text(YAML).unwrap_or_else(|report| panic!("{report}")).config;
        config.run.dir = dir.path().to_owned();
        assert_eq!(loss_curve(&config).unwrap(), None);
        std::fs::write(dir.path().join("metrics.jsonl"), "").unwrap();
        assert_eq!(loss_curve(&config).unwrap(), None);
        assert!(!dir.path().join("loss.png").exists());
    }

    #[test]
    fn the_curves_of_one_set_leave_those_of_another() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = load_text(YAML).unwrap_or_else(|report| panic!("{report}")).config;
        config.run.dir = dir.path().to_owned();
        config.log.tensorboard = true;
        for set in ["math", "code"] {
            let record = EvalRecord { step: 8, set: set.to_owned(), ..EvalRecord::default() }.with_loss(2.0, 4);
            curves_of(&config, &record).unwrap();
        }
        let files = std::fs::read_dir(dir.path().join("tensorboard")).unwrap();
        let files: Vec<Vec<u8>> = files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
        let has = |part: &[u8]| files.iter().filter(|file| file.windows(part.len()).any(|found| found == part)).count();
        // A record that the run has started at this step, which hides what earlier files have of it.
        assert_eq!((has(b"eval/math/loss"), has(b"eval/code/loss"), has(&[0x3a, 2, 8, 1])), (1, 1, 0));
    }

    /// The folder of the model has no weights, or others.
    #[test]
    fn adapters_on_random_weights_have_no_base() {
        let mut config = load_text(YAML).unwrap_or_else(|report| panic!("{report}")).config;
        config.model.load = Some(config::Source::new("base"));
        config.model.weights = Weights::Load;
        assert!(has_base(&config));
        config.model.weights = Weights::Random;
        assert!(!has_base(&config));
    }
}
