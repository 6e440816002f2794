//! After a run: the loss of held-out samples, their questions answered greedily, a few of them in the terminal, and pictures
//! of the results.

use crate::folder::ModelFolder;
use crate::held_out::{HeldOut, Measure};
use crate::reader::Reader;
use anyhow::{Context, Result, ensure};
use loongforge_actors::checkpoint::latest;
use loongforge_core::config::{BadSamples, Eval, PoolName, RunConfig, TooLong, TrainFile};
use loongforge_core::data::{Dataset, Limits, Processor, ProcessorOptions, Question, Questions, Source, read_rgb};
use loongforge_core::observe::{Console, Curve, Reading, Style, beside, plot, read_metrics, render, safe, sheet};
use loongforge_torch::device::set_intra_op_threads;
use loongforge_torch::engine::open_device;
use std::path::{Path, PathBuf};

/// Columns that a picture may take in the terminal.
const PICTURE_COLUMNS: u32 = 48;

/// Whether the samples of `eval` are there, before a run ends with them.
///
/// # Errors
/// `eval.path` cannot be read, has no samples, or such that the run's phase cannot learn from.
pub fn check(config: &RunConfig) -> Result<()> {
    if let Some(eval) = &config.eval {
        open(config, eval).context("eval.path")?;
    }
    Ok(())
}

fn open(config: &RunConfig, eval: &Eval) -> Result<Source> {
    Ok(Source::open(&TrainFile::new(eval.path.as_path()), config.train.phase, usize::MAX, str::len)?)
}

/// Draws the loss curve and, where `eval` is set, measures the held-out loss and how many answers are exactly right.
///
/// # Errors
/// A file cannot be read or written.
pub fn after_run(config: &RunConfig, console: &Console) -> Result<()> {
    let dir = &config.run.dir;
    let mut files = Vec::new();
    if config.log.jsonl {
        files.push(("loss curve", loss_curve(config)?));
    }
    let checkpoint = latest(&config.checkpoint.dir)?.context("the run left no checkpoint")?;
    let mut evaluated = Ok(());
    if let Some(eval) = &config.eval {
        // The actors have ended: all cores are ours.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        set_intra_op_threads(if config.run.deterministic { config.threads_for(PoolName::Foundation) } else { cores });
        let device = open_device(&config.device).map_err(|error| anyhow::anyhow!("{error}"))?;
        let reader = Reader::open(&checkpoint, device)?;
        match held_out(config, eval, &reader, console) {
            Ok(sheet) => files.extend(sheet.map(|sheet| ("held-out pictures", sheet))),
            Err(error) => evaluated = Err(error.context("the model is trained and saved, but not evaluated")),
        }
    }
    let trained =
        if config.saves_adapters_only() { "trained adapters (PEFT)" } else { "trained model (a Hugging Face folder)" };
    files.push((trained, checkpoint.clone()));
    if config.saves_adapters_only() && !has_base(config) {
        console.line(
            "these adapters are of random weights that no folder has: checkpoint.merge_lora=true saves whole models",
        );
    }
    console.line("");
    for (what, path) in &files {
        console.line(&format!("{what:<38} {}", path.display()));
    }
    if config.saves_adapters_only() && has_base(config) {
        let merge = format!("loongforge checkpoint export-hf {} OUT", checkpoint.display());
        console.line(&format!("{:<38} {merge}", "adapters added to their base"));
    }
    if config.log.tensorboard {
        console.line(&format!("{:<38} tensorboard --logdir {}", "all curves", dir.join("tensorboard").display()));
    }
    evaluated
}

/// Whether there is a folder that adapters of a run can be added to.
fn has_base(config: &RunConfig) -> bool {
    config.model.load.is_some() || config.model.foundation.load.is_some()
}

fn loss_curve(config: &RunConfig) -> Result<PathBuf> {
    let metrics = read_metrics(&config.run.dir.join("metrics.jsonl"))?;
    let points: Vec<(f64, f64)> = metrics.iter().map(|step| (step.step as f64, step.loss)).collect();
    let path = config.run.dir.join("loss.png");
    let curve = Curve { label: "loss", points: &points };
    plot(&path, &format!("{}: training loss", config.run.name), "step", &[curve])?;
    Ok(path)
}

/// Scores every sample of the file and answers every question; returns the path of the sheet, where some have pictures.
fn held_out(config: &RunConfig, eval: &Eval, reader: &Reader, console: &Console) -> Result<Option<PathBuf>> {
    let found = loss(config, eval, reader).context("eval.path")?;
    if let Some(first) = found.bad.first() {
        console.line(&format!("{} held-out samples have no loss; the first: {first}", found.bad.len()));
    }
    if found.too_long > 0 {
        let max_tokens = config.data.pack.max_tokens;
        console
            .line(&format!("{} held-out samples are longer than {max_tokens} tokens and have no loss", found.too_long));
    }
    let text = if found.targets > 0 { found.text() } else { String::new() };
    if !open(config, eval)?.is_conversation() {
        ensure!(found.targets > 0, "eval.path: no sample of {} can be used", eval.path.display());
        console.line("");
        console.line(&format!("held out: {text}"));
        return Ok(None);
    }
    let questions = Questions::open(&eval.path)?;
    let (questions, bad): (Vec<_>, Vec<_>) =
        (0..questions.len()).map(|index| questions.read(index, reader.processor())).partition(Result::is_ok);
    let questions: Vec<Question> = questions.into_iter().flatten().collect();
    if let Some(first) = bad.iter().find_map(|bad| bad.as_ref().err()) {
        console.line(&format!("{} held-out questions cannot be used; the first: {first}", bad.len()));
    }
    ensure!(!questions.is_empty(), "eval.path: no line of {} can be used as a question", eval.path.display());
    let mut answers = Vec::new();
    for batch in questions.chunks(eval.batch_size.max(1)) {
        let prompts: Vec<_> = batch.iter().map(|question| &question.prompt).collect();
        answers.extend(reader.answer(&prompts, eval.max_new_tokens, None)?);
    }
    let right = questions.iter().zip(&answers).filter(|(question, answer)| question.answer == **answer).count();
    console.line("");
    for (question, answer) in questions.iter().zip(&answers).take(eval.show) {
        show(question, answer, console)?;
    }
    let accuracy = 100.0 * right as f64 / questions.len() as f64;
    let exact = format!("{right} of {} answers exactly right ({accuracy:.1} %)", questions.len());
    let parts: Vec<String> = [text, exact].into_iter().filter(|part| !part.is_empty()).collect();
    console.line(&format!("held out: {}", parts.join("; ")));
    let mut readings = Vec::new();
    for (question, answer) in questions.iter().zip(&answers).take(eval.sheet) {
        if let Some(picture) = question.images.first() {
            let picture = read_rgb(picture, Path::new(""), &Limits::NONE)?;
            readings.push(Reading { picture, read: answer.clone(), truth: question.answer.clone() });
        }
    }
    if readings.is_empty() {
        return Ok(None);
    }
    let path = config.run.dir.join("held_out.png");
    sheet(&path, &format!("held out: {right} of {} exactly right", questions.len()), &readings)?;
    Ok(Some(path))
}

/// Of what was read as the run's samples are, however much of it could not be used.
fn loss(config: &RunConfig, eval: &Eval, reader: &Reader) -> Result<HeldOut> {
    let mut data = config.data.clone();
    data.train = vec![TrainFile::new(eval.path.as_path())];
    data.shuffle = false;
    data.on_bad_sample = BadSamples { max_fraction: 1.0, max_consecutive: usize::MAX };
    if data.pack.too_long == TooLong::Error {
        data.pack.too_long = TooLong::Skip;
    }
    let ModelFolder { path, json, .. } = reader.model().folder();
    let processor = Processor::open(path, json, &ProcessorOptions::new(&data, &config.train))?;
    Measure::of(&data).run(reader.model(), &Dataset::open(&data, processor, config.run.seed)?, || ())
}

fn show(question: &Question, answer: &str, console: &Console) -> Result<()> {
    let verdict =
        if question.answer == answer { "right".to_owned() } else { format!("wanted: {}", safe(&question.answer)) };
    let text = [format!("answer: {}", safe(answer)), verdict];
    match question.images.first() {
        Some(path) => {
            let picture =
                render(&read_rgb(path, Path::new(""), &Limits::NONE)?, PICTURE_COLUMNS, Style::of(&std::io::stderr()));
            console.line(&beside(&picture, &text));
        }
        None => console.line(&text.join("\n  ")),
    }
    Ok(())
}
