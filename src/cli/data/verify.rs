//! `loongforge data verify`: reads and decodes every sample.

use super::input::{InputArgs, ModelArgs, described, print_notes};
use super::{fraction, verdict};
use clap::Args;
use loongforge_core::data::tools::{self, list_bad};
use loongforge_core::observe::{Bar, Console, safe};
use loongforge_core::text::counted;
use std::path::PathBuf;
use std::process::ExitCode;

/// Bad samples that are printed.
const SHOWN: usize = 20;

const EXAMPLES: &str = "\
Examples:
  loongforge data verify train.jsonl                                        every picture is decoded
  loongforge data verify train.jsonl --quarantine bad.jsonl --max-bad 0.01  exit code 1 above 1 %
  loongforge data verify run.yaml --model Qwen/Qwen3-VL-2B-Instruct --max-tokens 8192";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct VerifyArgs {
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    model: ModelArgs,
    /// File to write bad samples to, one JSON object per line
    #[arg(long, value_name = "FILE")]
    quarantine: Option<PathBuf>,
    /// Fraction of bad samples above which the exit code is 1
    #[arg(long, value_name = "FRACTION", default_value = "0", value_parser = fraction)]
    max_bad: f64,
}

/// Runs `loongforge data verify`: decodes every sample; the exit code is 1 if more are bad than `--max-bad` allows.
pub fn verify(args: VerifyArgs) -> anyhow::Result<ExitCode> {
    let maker = args.model.open(&args.input)?;
    let inputs = args.input.open_for(maker.as_deref(), args.model.max_tokens())?;
    let console = Console::stderr();
    let bar = Bar::start(&console, "samples", inputs.len());
    let (mut all, mut too_long) = (Vec::new(), 0);
    tools::verify(&inputs, maker.as_deref(), args.input.jobs(), |_, bad| {
        bar.tick();
        match bad {
            Some(bad) if bad.too_long => too_long += 1,
            Some(bad) => {
                if all.len() < SHOWN {
                    // Of many files that are not there, the first says where they are looked for.
                    let told = if all.is_empty() { described(&bad) } else { safe(&bad.to_string()) };
                    console.line(&told);
                }
                all.push(bad);
            }
            None => {}
        }
        Ok::<(), anyhow::Error>(())
    })?;
    drop(bar);
    print_notes(maker.as_deref());
    if all.len() > SHOWN {
        println!("… and {} more", all.len() - SHOWN);
    }
    println!("{}, {} of them bad", counted(inputs.len(), "sample"), all.len());
    if too_long > 0 {
        let (all, max_tokens) = (inputs.len(), args.model.max_tokens());
        println!("{}; a run skips them", tools::too_long_text(too_long, all, all, max_tokens));
    }
    if let Some(path) = &args.quarantine {
        list_bad(path, &all)?;
        if !all.is_empty() {
            println!("{} lists them", path.display());
        }
    }
    Ok(verdict(all.len() as u64, inputs.len(), args.max_bad))
}
