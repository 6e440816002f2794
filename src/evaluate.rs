//! After a run: held-out questions answered greedily, a few of them in the terminal, and pictures of the results.

use crate::reader::Reader;
use anyhow::{Context, Result, ensure};
use loongforge_actors::checkpoint::latest;
use loongforge_core::config::{Eval, PoolName, RunConfig};
use loongforge_core::data::{Limits, Question, Questions, read_rgb};
use loongforge_core::observe::{Console, Curve, Reading, Style, beside, plot, read_metrics, render, safe, sheet};
use loongforge_torch::device::set_intra_op_threads;
use loongforge_torch::engine::open_device;
use std::path::{Path, PathBuf};

/// Columns that a picture may take in the terminal.
const PICTURE_COLUMNS: u32 = 48;

/// Whether the questions of `eval` are there, before a run ends with them.
///
/// # Errors
/// `eval.path` cannot be read or has no lines.
pub fn check(config: &RunConfig) -> Result<()> {
    if let Some(eval) = &config.eval {
        Questions::open(&eval.path).context("eval.path")?;
    }
    Ok(())
}

/// Draws the loss curve and, where `eval` is set, measures how many held-out answers are exactly right.
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
        match held_out(eval, &reader, dir, console) {
            Ok(sheet) => files.extend(sheet.map(|sheet| ("held-out pictures", sheet))),
            Err(error) => evaluated = Err(error.context("the model is trained and saved, but not evaluated")),
        }
    }
    let trained =
        if config.saves_adapters_only() { "trained adapters (PEFT)" } else { "trained model (a Hugging Face folder)" };
    files.push((trained, checkpoint.clone()));
    console.line("");
    for (what, path) in &files {
        console.line(&format!("{what:<38} {}", path.display()));
    }
    if config.log.tensorboard {
        console.line(&format!("{:<38} tensorboard --logdir {}", "all curves", dir.join("tensorboard").display()));
    }
    evaluated
}

fn loss_curve(config: &RunConfig) -> Result<PathBuf> {
    let metrics = read_metrics(&config.run.dir.join("metrics.jsonl"))?;
    let points: Vec<(f64, f64)> = metrics.iter().map(|step| (step.step as f64, step.loss)).collect();
    let path = config.run.dir.join("loss.png");
    let curve = Curve { label: "loss", points: &points };
    plot(&path, &format!("{}: training loss", config.run.name), "step", &[curve])?;
    Ok(path)
}

/// Answers every question of the file; returns the path of the sheet, where some have pictures.
fn held_out(eval: &Eval, reader: &Reader, dir: &Path, console: &Console) -> Result<Option<PathBuf>> {
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
    console.line(&format!("held out: {right} of {} answers exactly right ({accuracy:.1} %)", questions.len()));
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
    let path = dir.join("held_out.png");
    sheet(&path, &format!("held out: {right} of {} exactly right", questions.len()), &readings)?;
    Ok(Some(path))
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
