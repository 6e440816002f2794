//! `loongforge data stats`: length statistics of samples.

use super::input::{InputArgs, ModelArgs, described, print_notes};
use clap::Args;
use loongforge_core::data::lerobot::{self, Set};
use loongforge_core::data::tools::{self, Histogram};
use loongforge_core::observe::{Bar, Console};
use loongforge_core::text::counted;
use std::process::ExitCode;
use std::sync::Arc;

/// Lines and columns of a histogram.
const BINS: u64 = 10;
const WIDTH: u64 = 40;

const EXAMPLES: &str = "\
Examples:
  loongforge data stats train.jsonl                                            turns, characters, pictures
  loongforge data stats train.jsonl --model Qwen/Qwen3-VL-2B-Instruct          tokens too, and packs of several sizes
  loongforge data stats run.yaml --model Qwen/Qwen3-0.6B --pack 8192,32768 --json > stats.json
  loongforge data stats --write recordings                                     for a LeRobot data set, with quantiles";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct StatsArgs {
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    model: ModelArgs,
    /// Pack sizes to try, in tokens
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "2048,4096,8192,16384,32768",
        requires = "model", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pack: Vec<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Compute the normalization statistics of states and actions, and write them into the LeRobot data sets
    #[arg(long, conflicts_with_all = ["model", "json", "pack", "format", "columns", "media_dir", "episodes", "max_samples", "select", "system", "jobs", "no_sandbox"])]
    write: bool,
}

/// Runs `loongforge data stats`: prints lengths of samples and fill of packs, or writes the statistics of LeRobot sets.
pub fn stats(args: StatsArgs) -> anyhow::Result<ExitCode> {
    if args.write {
        args.input.fetch()?;
        for path in args.input.paths() {
            let set = Arc::new(Set::open(path)?);
            let lerobot::Computed { keys, left_out } = lerobot::write_stats(&set)?;
            println!("{}: statistics of {} over {} frames", path.display(), keys.join(", "), set.info().num_frames);
            for reason in left_out {
                eprintln!("note: {}: {reason}, so no statistics of it are computed", path.display());
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let maker = args.model.open(&args.input)?;
    let inputs = args.input.open_for(maker.as_deref(), args.model.max_tokens())?;
    let console = Console::stderr();
    let bar = Bar::start(&console, "samples", inputs.len());
    let stats = tools::stats(&inputs, maker.as_deref(), args.input.jobs(), |_, _| bar.tick());
    drop(bar);
    print_notes(maker.as_deref());
    let sizes: Vec<usize> = args.pack.iter().map(|&size| size as usize).collect();
    if args.json {
        println!("{:#}", stats.to_json(&sizes));
        return Ok(ExitCode::SUCCESS);
    }
    println!("{}, {} of them bad", counted(inputs.len(), "sample"), stats.bad.len());
    if stats.too_long > 0 {
        let (all, max_tokens) = (inputs.len(), args.model.max_tokens());
        println!("{}; a run skips them", tools::too_long_text(stats.too_long, all, all, max_tokens));
    }
    if let Some(first) = stats.bad.first() {
        println!("the first bad sample: {}", described(first));
    }
    // A language model's data have no pictures.
    for (name, histogram) in stats.histograms.iter().filter(|(_, histogram)| histogram.max() > 0) {
        print!("{}", draw(name, histogram));
    }
    let packs = stats.packs(&sizes);
    if !packs.is_empty() {
        println!("\n{:>10}  {:>10}  {:>8}  {:>9}", "pack", "packs", "fill", "too long");
    }
    for pack in packs {
        println!("{:>10}  {:>10}  {:>8.4}  {:>9}", pack.max_tokens, pack.packs, pack.fill, pack.too_long);
    }
    Ok(ExitCode::SUCCESS)
}

fn draw(name: &str, histogram: &Histogram) -> String {
    let quantile = |part| histogram.quantile(part);
    let mut text = format!(
        "\n{name}: sum {}, mean {:.1}, median {}, 90 % {}, 99 % {}, max {}\n",
        histogram.sum(),
        histogram.mean(),
        quantile(0.5),
        quantile(0.9),
        quantile(0.99),
        histogram.max()
    );
    let bins = histogram.bins(BINS);
    if bins.len() < 2 {
        return text;
    }
    let most = bins.iter().map(|bin| bin.2).max().unwrap_or(1).max(1);
    for (low, high, count) in bins {
        let bar = "█".repeat((count * WIDTH).div_ceil(most) as usize);
        text +=
            &format!("{:>21}  {bar} {count}\n", if low == high { low.to_string() } else { format!("{low} – {high}") });
    }
    text
}
