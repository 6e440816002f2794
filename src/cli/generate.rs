//! `loongforge generate`: ask a trained model.

use super::UsageError;
use crate::eval::generator::Reader;
use crate::model::locate::find_model;
use anyhow::Context;
use clap::Args;
use loongforge_core::config::Device;
use loongforge_core::observe::safe;
use loongforge_torch::device::set_intra_op_threads;
use loongforge_torch::engine::open_device;
use loongforge_torch::model::Sampling;
use std::io::{IsTerminal, Read, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "\
Examples:
  loongforge generate runs/quickstart/checkpoints/step-00000750 --image 4071.png --prompt \"Read the number.\"
  loongforge generate runs/spoken_digits --audio seven.wav --prompt \"Synthetic voice: which digit?\"
  loongforge generate Qwen3-0.6B --prompt \"A story of a fox:\" --temperature 0.7 --top-p 0.8 --seed 1")]
pub struct GenerateArgs {
    /// Checkpoint of a run, adapters alone included, a run's folder (its newest checkpoint), or any Hugging Face folder or hub id
    /// of a model that is built in
    checkpoint: String,
    /// Picture of the prompt; may be repeated
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// Recording of the prompt; may be repeated
    #[arg(long, value_name = "FILE")]
    audio: Vec<PathBuf>,
    /// Prompt; `-` reads it from standard input
    #[arg(long, value_name = "TEXT")]
    prompt: String,
    /// Continue the prompt without the chat template [default if the model has none]
    #[arg(long, conflicts_with_all = ["image", "audio"])]
    raw: bool,
    /// Maximum number of new tokens
    #[arg(long, default_value_t = 128)]
    max_new_tokens: usize,
    /// Sampling temperature [default: greedy]
    #[arg(long, value_parser = positive)]
    temperature: Option<f64>,
    /// Sample from the K most likely tokens only; 0: all
    #[arg(long, default_value_t = 0, requires = "temperature", value_parser = clap::value_parser!(i64).range(0..))]
    top_k: i64,
    /// Sample from the most likely tokens only whose probabilities add up to P
    #[arg(long, default_value_t = 1.0, requires = "temperature", value_parser = positive)]
    top_p: f64,
    /// Sampling seed
    #[arg(long, default_value_t = 0, requires = "temperature")]
    seed: u64,
    /// Device, as in a config: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: Device,
}

/// Bytes of a prompt from standard input.
const MAX_PROMPT: u64 = 16 << 20;

pub fn generate(args: GenerateArgs) -> anyhow::Result<ExitCode> {
    set_intra_op_threads(std::thread::available_parallelism().map_or(1, usize::from));
    let device = open_device(&args.device).map_err(|error| anyhow::anyhow!("{error}"))?;
    let folder = find_model(&args.checkpoint).map_err(|error| UsageError::of(&error))?;
    // A folder that is not what it should be is for the user to change.
    let reader = Reader::open(&folder, device).map_err(|error| UsageError::of(error.as_ref()))?;
    let prompt = match args.prompt.as_str() {
        "-" => {
            let mut text = String::new();
            stdin().take(MAX_PROMPT).read_to_string(&mut text).context("standard input")?;
            text
        }
        text => text.to_owned(),
    };
    let has_only_text = args.image.is_empty() && args.audio.is_empty();
    let is_raw = args.raw || (has_only_text && reader.processor().expect_template().is_err());
    let question = match is_raw {
        true => reader.text(&prompt),
        false => reader.question(&prompt, &args.image, &args.audio),
    };
    let question = question.map_err(|error| UsageError::of(error.as_ref()))?;
    let GenerateArgs { top_k, top_p, seed, .. } = args;
    let sampling = args.temperature.map(|temperature| Sampling { temperature, top_k, top_p, seed });
    let answers = reader.answer(&[&question], args.max_new_tokens, sampling)?;
    let answer = &answers[0];
    println!("{}", if stdout().is_terminal() { safe(answer) } else { answer.clone() });
    Ok(ExitCode::SUCCESS)
}

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if number > 0.0 && number.is_finite() { Ok(number) } else { Err("must be above 0".into()) }
}
