//! `loongforge evaluate`: loss on held-out samples, and scores of generated answers.

use super::UsageError;
use super::data::{described, format, fraction};
use super::decode_worker::decoder;
use super::forecast::count;
use crate::eval::answers::Asking;
use crate::eval::forward::ForwardModel;
use crate::eval::generator::Reader;
use crate::eval::loss::{HeldOut, Measure};
use crate::eval::samples::is_diffusion;
use crate::model::folder::ModelFolder;
use crate::model::hub_data;
use crate::model::locate::{ModelFolders, find_model};
use anyhow::{Context, bail, ensure};
use clap::{ArgGroup, Args, ValueEnum};
use loongforge_core::checkpoint::{MANIFEST, Manifest};
use loongforge_core::config::{Data, Device, Format, Learn, Normalize, Paths, Phase, SandboxMode, Score, TrainFile};
use loongforge_core::data::{DataError, Dataset, Learned, Pairs, ProcessorOptions};
use loongforge_core::observe::{Bar, Console, ErrorRate, EvalRecord, ScoredAnswer, Scoring, safe, short};
use loongforge_torch::device::set_intra_op_threads;
use loongforge_torch::engine::open_device;
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tch::Kind;

const EXAMPLES: &str = "\
Examples:
  loongforge evaluate runs/my held_out.jsonl                             the newest checkpoint of a run, with the run's settings
  loongforge evaluate runs/my/checkpoints/step-00000500 'shards/*.tar'   any checkpoint, any format of data.train
  loongforge evaluate Qwen/Qwen3-0.6B held_out.jsonl --max-tokens 8192 --limit 1000 --dtype f32
  loongforge evaluate Qwen/Qwen3-0.6B-Base book.txt --phase pretrain --json
  loongforge evaluate runs/asr held_out.jsonl --scores wer,cer --hypotheses answers.jsonl
  loongforge evaluate runs/my summaries.jsonl --scores bleu,rouge --limit 500

Samples are read with the settings of the checkpoint's run (data, train.phase), unless an option overrides them.";

/// Longest row of a model that no run says anything of.
const MAX_TOKENS: usize = 4096;
/// Bad samples that are listed; --json lists all.
const LISTED: usize = 10;

#[derive(Args)]
#[command(after_help = EXAMPLES, group = ArgGroup::new("asked").args(["answers", "scores", "hypotheses"]).multiple(true))]
pub struct EvaluateArgs {
    /// Checkpoint (of adapters, too), run folder (its newest checkpoint), or Hugging Face folder or hub id of a supported model
    #[arg(value_name = "MODEL")]
    model: String,
    /// Sample files of one kind, as `path` in `data.train`
    #[arg(value_name = "DATA", required = true)]
    data: Vec<String>,
    /// Format of the files, as in `data.train` [default: auto-detect]
    #[arg(long, value_parser = format)]
    format: Option<Format>,
    /// Renamed fields, as in `data.train`: messages=dialogue,images=picture
    #[arg(long, value_name = "FIELD=NAME", value_delimiter = ',')]
    columns: Vec<String>,
    /// Folder that relative names of pictures, videos and recordings start at, as in `data.train` [default: the file's]
    #[arg(long, value_name = "FOLDER")]
    media_dir: Option<String>,
    /// Loss mask, as in `train.phase`: sft, midtrain or pretrain
    #[arg(long, value_name = "PHASE")]
    phase: Option<String>,
    /// Chat template, as in `data.template`
    #[arg(long)]
    template: Option<String>,
    /// Maximum number of tokens in a pack; `data.pack.too_long` applies to longer samples; longer texts are cut
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// Use only the first N samples
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Fraction of bad samples above which the evaluation fails [default: `data.on_bad_sample.max_fraction`, from 100 samples on]
    #[arg(long, value_name = "FRACTION", value_parser = fraction)]
    max_bad: Option<f64>,
    /// Answer the questions with greedy decoding and count correct answers
    #[arg(long)]
    answers: bool,
    /// Answer the questions and score the answers, as in `eval.scores`: wer, cer, bleu, rouge, words
    #[arg(long, value_name = "SCORE", value_delimiter = ',')]
    scores: Vec<String>,
    /// Normalization for wer, cer and words, as in `eval.normalize`: basic or none [default: basic]
    #[arg(long, value_name = "HOW", requires = "asked")]
    normalize: Option<String>,
    /// Maximum length of a generated answer, in tokens
    #[arg(long, value_name = "N", default_value_t = 256, requires = "asked", value_parser = clap::value_parser!(u32).range(1..))]
    max_new_tokens: u32,
    /// Number of questions answered together
    #[arg(long, value_name = "N", default_value_t = 16, requires = "asked", value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// JSONL file to write with the expected and the generated answer of each question
    #[arg(long, value_name = "FILE")]
    hypotheses: Option<PathBuf>,
    /// Base model, a folder or a hub id [default: `base_model_name_or_path` of the adapter]
    #[arg(long, value_name = "FOLDER")]
    base: Option<String>,
    /// Type of the weights in memory [default: from config.json]
    #[arg(long)]
    dtype: Option<Type>,
    /// Device, as in a config: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Decode pictures, videos and recordings in this process instead of sandboxed ones
    #[arg(long)]
    no_sandbox: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Type {
    Bf16,
    F32,
}

/// Runs `loongforge evaluate`: prints the loss of a model on files of samples, and scores of its answers if asked.
pub fn evaluate(args: EvaluateArgs) -> anyhow::Result<ExitCode> {
    set_intra_op_threads(std::thread::available_parallelism().map_or(1, usize::from));
    let device = open_device(&args.device).map_err(|error| anyhow::anyhow!("{error}"))?;
    let console = Console::stderr();
    let folder = find_model(&args.model).map_err(UsageError::of)?;
    // Files that are not what they should be are for the user to change.
    let folders = ModelFolders::find(&folder, args.base.as_deref()).map_err(UsageError::of)?;
    let (data, learned) = settings(&args, &folder).map_err(UsageError::of_any)?;
    let kind = args.dtype.map(|dtype| match dtype {
        Type::Bf16 => Kind::BFloat16,
        Type::F32 => Kind::Float,
    });
    // The samples first: what is wrong with them is told before the weights are read.
    let config = ModelFolder::open_plain(&folders.config).map_err(UsageError::of)?;
    if is_diffusion(&config) {
        return Err(UsageError(format!(
            "{} is a diffusion model, whose held-out loss is measured by a run: set eval.path in its config (and eval.every_steps \
             or eval.every_epochs, and eval.sigmas); `loongforge sample` makes pictures and clips with it",
            folder.display()
        ))
        .into());
    }
    let dataset = open(&args, &config, &data, learned, &console).map_err(UsageError::of_any)?;
    let scoring = scoring(&args).map_err(UsageError::of_any)?;
    if scoring.is_some() && !dataset.is_conversation() {
        return Err(UsageError(
            "--answers, --scores: the data are plain texts, which have no answers; both need conversations".to_owned(),
        )
        .into());
    }
    let model = ForwardModel::load(&folders, kind, device).map_err(UsageError::of_any)?;
    let measure = Measure { max_samples: args.limit, ..Measure::of(&data) };
    let bar = Bar::start(&console, "samples", measure.num_samples(&dataset));
    let found = measure.run(&model, &dataset, || bar.tick());
    drop(bar);
    let found = found?;
    match found.bad.first() {
        _ if found.targets > 0 => {}
        None if found.too_long > 0 => {
            bail!("all samples are longer than {} tokens (--max-tokens)", data.pack.max_tokens)
        }
        Some(first) => bail!("no sample can be used; the first of {}: {}", found.bad.len(), described(first)),
        None => bail!("no token of {} counts in the loss", args.data.join(", ")),
    }
    args.max_bad.map_or(Ok(()), |max_bad| expect_few_bad(&found, max_bad))?;
    let mut record = found.record(0, "");
    let dtype = if model.kind() == Kind::BFloat16 { "bf16" } else { "f32" };
    if let Some(scoring) = &scoring {
        record = record.with_answers(answers(&args, model, &dataset, &console)?, scoring);
    }
    if args.json {
        println!("{:#}", to_json(&found, &record, &folder, &args, dtype));
        return Ok(ExitCode::SUCCESS);
    }
    for bad in found.bad.iter().take(LISTED) {
        console.line(&format!("bad sample: {}", safe(&bad.to_string())));
    }
    if found.bad.len() > LISTED {
        console.line(&format!("and {}; --json lists all", count(found.bad.len() - LISTED, "more bad sample")));
    }
    println!("{} in {dtype} on {}", folder.display(), args.data.join(", "));
    println!("{}", record.text());
    if found.too_long > 0 {
        let (long, max_tokens) = (count(found.too_long as usize, "sample"), data.pack.max_tokens);
        console.line(&format!("{long} longer than {max_tokens} tokens left out (--max-tokens)"));
    }
    println!(
        "{} of {} tokens in {}, {}; {} tokens/s",
        count(found.samples as usize, "sample"),
        short(found.tokens as f64),
        count(found.packs as usize, "pack"),
        count(found.bad.len(), "bad sample"),
        short(found.tokens_per_second())
    );
    Ok(ExitCode::SUCCESS)
}

/// Compares the fraction of bad samples with `--max-bad`, however few samples there are: a run's own limit begins at 100.
fn expect_few_bad(found: &HeldOut, max_bad: f64) -> anyhow::Result<()> {
    let num_samples = found.samples + found.bad.len() as u64 + found.too_long;
    match found.bad.first() {
        Some(first) if found.bad.len() as f64 > max_bad * num_samples as f64 => bail!(
            "{} of {num_samples} samples are bad, more than --max-bad = {max_bad} allows; the first: {}",
            found.bad.len(),
            described(first)
        ),
        _ => Ok(()),
    }
}

/// Returns how answers are scored; `None` where none are generated.
///
/// # Errors
/// There is no such score or normalization, or the file of answers cannot be written.
fn scoring(args: &EvaluateArgs) -> anyhow::Result<Option<Scoring>> {
    args.hypotheses.as_deref().map_or(Ok(()), |path| expect_writable(path, &args.data))?;
    let score = |name: &String| serde_json::from_value(name.as_str().into()).context("--scores");
    let scores = args.scores.iter().map(score).collect::<anyhow::Result<Vec<Score>>>()?;
    let normalize = match args.normalize.as_deref() {
        Some(how) => serde_json::from_value(how.into()).context("--normalize")?,
        None => Normalize::default(),
    };
    ensure!(
        args.normalize.is_none() || scores.iter().any(|score| score.is_normalized()),
        "--normalize applies only to wer, cer and words: name one of them in --scores, or leave it out"
    );
    let is_wanted = args.answers || args.hypotheses.is_some() || !scores.is_empty();
    Ok(is_wanted.then_some(Scoring { scores, normalize, expect: None }))
}

/// Sees to it that the file of answers, which is written when all are made, can be, and is none of those that are read.
fn expect_writable(path: &Path, data: &[String]) -> anyhow::Result<()> {
    let named = || format!("--hypotheses: {}", path.display());
    // Also a link to a file that is to come.
    let (is_there, real) = (path.symlink_metadata().is_ok(), path.canonicalize().ok());
    let is_same = |data: &String| real.is_some() && Path::new(data).canonicalize().ok() == real;
    ensure!(!data.iter().any(is_same), "{} is read as data: name another file", named());
    OpenOptions::new().append(true).create(true).open(path).with_context(named)?;
    // What is there already stays until the answers are.
    if is_there { Ok(()) } else { fs::remove_file(path).with_context(named) }
}

/// Answers the questions; with `--hypotheses` the answers are also written.
fn answers(
    args: &EvaluateArgs,
    model: ForwardModel,
    dataset: &Dataset,
    console: &Console,
) -> anyhow::Result<Vec<ScoredAnswer>> {
    let asking = Asking {
        max_samples: args.limit.unwrap_or(u64::MAX),
        batch_size: args.batch_size as usize,
        max_new_tokens: args.max_new_tokens as usize,
    };
    let bar = Bar::start(console, "answers", asking.max_samples.min(dataset.len() as u64));
    let result = asking.run(&Reader::of(model)?, dataset, |_, _| {
        bar.tick();
        Ok(())
    });
    drop(bar);
    let (answers, bad) = result?;
    if let Some(first) = bad.first() {
        let bad = count(bad.len(), "question");
        console.line(&format!("{bad} cannot be used; the first: {}", described(first)));
    }
    if let Some(path) = &args.hypotheses {
        let line = |answer: &ScoredAnswer| {
            format!("{}\n", json!({"question": answer.prompt, "expected": answer.expected, "answer": answer.answer}))
        };
        let text: String = answers.iter().map(line).collect();
        fs::write(path, text).with_context(|| format!("--hypotheses: {}", path.display()))?;
    }
    Ok(answers)
}

/// Returns the settings of samples: those of the checkpoint's run, with those of the command line above them.
fn settings(args: &EvaluateArgs, folder: &Path) -> anyhow::Result<(Data, Learned)> {
    let mut run = match folder.join(MANIFEST).is_file() {
        true => Manifest::read(folder)?.config,
        false => json!({ "data": { "pack": { "max_tokens": MAX_TOKENS } } }),
    };
    let columns = args.columns.iter().map(|column| match column.split_once('=') {
        Some((field, name)) => Ok((field.to_owned(), name.to_owned())),
        None => Err(UsageError(format!("--columns: {column:?} is not of the form field=name"))),
    });
    let file = TrainFile {
        format: args.format.unwrap_or_default(),
        columns: columns.collect::<Result<_, _>>()?,
        media_dir: args.media_dir.clone(),
        ..TrainFile::new(Paths(args.data.clone()))
    };
    run["data"]["train"] = json!([file]);
    let named = || format!("{}: config.data", folder.join(MANIFEST).display());
    let mut data: Data = serde_json::from_value(run["data"].take()).with_context(named)?;
    // All of them, in the order of the files.
    data.shuffle = false;
    data.val_size = 0.0;
    data.pack.max_tokens = args.max_tokens.map_or(data.pack.max_tokens, |tokens| tokens as usize);
    data.on_bad_sample.max_fraction = args.max_bad.unwrap_or(data.on_bad_sample.max_fraction);
    if let Some(template) = &args.template {
        data.template = serde_json::from_value(template.as_str().into()).context("--template")?;
    }
    let phase = match (&args.phase, run["train"]["phase"].take()) {
        (Some(phase), _) => serde_json::from_value(phase.as_str().into()).context("--phase")?,
        (None, Value::Null) => Phase::default(),
        (None, phase) => serde_json::from_value(phase).with_context(named)?,
    };
    let learn = match run["train"]["learn"].take() {
        Value::Null => Learn::All,
        learn => serde_json::from_value(learn).with_context(named)?,
    };
    Ok((data, Learned { phase, learn }))
}

/// Returns the samples as the model reads them.
fn open(
    args: &EvaluateArgs,
    model: &ModelFolder,
    data: &Data,
    learned: Learned,
    console: &Console,
) -> anyhow::Result<Dataset> {
    let mode = if args.no_sandbox { SandboxMode::Off } else { SandboxMode::Auto };
    let console = console.clone();
    let decoder = decoder(mode, move |warning| console.line(&format!("warning: {warning}")));
    let processor =
        model.processor(&ProcessorOptions { pairs: Pairs::Refused, ..ProcessorOptions::new(data, learned) })?;
    let paths = data.train.iter().flat_map(|file| &file.path.0).map(String::as_str);
    hub_data::fetch_paths(paths).map_err(UsageError::of)?;
    let dataset = Dataset::open(data, processor.with_decoder(decoder), 0);
    // Said of a config; here it is an option.
    let is_text = |error: &DataError| learned.phase == Phase::Sft && error.to_string().contains("train.phase");
    let is_compared = |error: &DataError| error.to_string().contains("train.preference");
    dataset.map_err(|error| match () {
        () if is_text(&error) => anyhow::Error::from(error).context("use --phase pretrain to evaluate plain texts"),
        () if is_compared(&error) => anyhow::Error::from(error).context(
            "pairs and labeled answers can only be evaluated by a run that trains on such data, with `eval` in its config",
        ),
        () => error.into(),
    })
}

fn to_json(found: &HeldOut, record: &EvalRecord, folder: &Path, args: &EvaluateArgs, dtype: &str) -> Value {
    let mut result = json!({
        "model": folder,
        "data": args.data,
        "dtype": dtype,
        "loss": found.loss(),
        // A number of JSON is finite.
        "perplexity": Some(found.perplexity()).filter(|perplexity| perplexity.is_finite()),
        "accuracy": found.accuracy(),
        "targets": found.targets,
        "correct": found.correct,
        "samples": found.samples,
        "tokens": found.tokens,
        "packs": found.packs,
        "bad_samples": found.bad,
        "too_long": found.too_long,
        "seconds": found.seconds,
        "tokens_per_second": found.tokens_per_second(),
    });
    if let Some(exact) = record.exact {
        let rate = |rate: &Option<ErrorRate>| {
            rate.map(|edits| json!({"rate": edits.rate(), "edits": edits, "normalize": record.scores.normalize}))
        };
        result["answers"] = json!({
            "count": record.answers.len(),
            "exact": exact,
            "wer": rate(&record.scores.wer),
            "cer": rate(&record.scores.cer),
            "bleu": record.scores.bleu,
            "rouge": record.scores.rouge,
            "words": record.scores.words,
        });
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_a_file_of_answers_that_is_to_come_stays() {
        let dir = tempfile::tempdir().unwrap();
        let [link, file, new] = ["link", "file", "new"].map(|name| dir.path().join(name));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        expect_writable(&link, &[]).unwrap();
        expect_writable(&new, &[]).unwrap();
        assert!(link.is_symlink() && !new.exists());
    }
}
