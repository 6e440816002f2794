//! `loongforge data pack`: a run's data, packed ahead of time.

use super::convert::listed;
use super::input::jobs;
use super::share::ShareArgs;
use super::{UsageError, environment, fraction, verdict};
use crate::cli::decode_worker::decoder;
use crate::cli::forecast::count;
use crate::model::folder::ModelFolder;
use crate::model::hub_data;
use clap::Args;
use loongforge_core::config::{self, Size};
use loongforge_core::data::tools::{Order, PackJob, PackProgress, Packed, Share, model_spec, too_long_text};
use loongforge_core::data::{Dataset, ProcessorOptions};
use loongforge_core::observe::{Bar, Console, bytes, safe};
use loongforge_core::schedule::PackLimits;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  loongforge data pack run.yaml --out packs                         packs as a run with data.pack.mode=stream makes them
  loongforge data pack run.yaml --out packs --offline               fuller: best fit over all samples
  loongforge data pack run.yaml --out packs data.pack.max_tokens=8192
  srun --array 0-15 loongforge data pack run.yaml --out packs --shard auto     twice: to measure, then to write
  loongforge data merge packs

Then train on them: data.train: [{ path: packs, format: packed }], data.shuffle: false for the order of the packs.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct PackArgs {
    /// Config of the run
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Overrides: key=value, +new=value, ~key, group=option
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Folder of the packs
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// Pack by best fit over all samples instead of in the stream's order
    #[arg(long)]
    offline: bool,
    /// Number of samples to pack [default: one epoch]
    #[arg(long, value_name = "N")]
    samples: Option<u64>,
    /// Maximum number of packs in a shard
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    packs: u64,
    /// Maximum size of a shard, unless one pack is larger
    #[arg(long, value_name = "SIZE", default_value = "1GB")]
    bytes: Size,
    /// Number of threads [default: number of cores]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Fraction of bad samples above which the exit code is 1
    #[arg(long, value_name = "FRACTION", default_value = "0.01", value_parser = fraction)]
    max_bad: f64,
    #[command(flatten)]
    share: ShareArgs,
}

pub fn pack(args: PackArgs) -> anyhow::Result<ExitCode> {
    let share = args.share.get()?;
    let loaded =
        config::load(&args.file, &args.overrides, environment()).map_err(|report| UsageError(report.to_string()))?;
    let config = loaded.config;
    hub_data::fetch_data(&config).map_err(|error| UsageError::of(&error))?;
    let pack = &config.data.pack;
    let folder = ModelFolder::open(&config.model).map_err(|error| UsageError::of(&error))?;
    let options = ProcessorOptions::new(&config.data, &config.train);
    let console = Console::stderr();
    let warnings = console.clone();
    let decoder = decoder(config.security.sandbox, move |warning| warnings.line(&format!("warning: {warning}")));
    let processor = folder.processor(&options)?.with_decoder(decoder);
    let dataset = Dataset::open(&config.data, processor, config.run.seed)?;
    let spec = json!({
        "data": loaded.composed["data"],
        "phase": config.train.phase,
        "learn": config.train.learn,
        "template_kwargs": config.data.template_kwargs,
        "seed": config.run.seed,
        "model": model_spec(&folder.path)?,
    });
    let job = PackJob {
        spec,
        num_samples: args.samples.unwrap_or(dataset.len() as u64),
        limits: PackLimits {
            max_images: pack.max_images.unwrap_or(usize::MAX),
            max_visual_tokens: pack.max_visual_tokens.unwrap_or(usize::MAX),
            max_samples: config.train.micro_batch_size.unwrap_or(usize::MAX),
            ..PackLimits::tokens(pack.max_tokens)
        },
        order: if args.offline { Order::Offline } else { Order::Stream { look_ahead: pack.look_ahead } },
        max_packs: args.packs,
        max_bytes: args.bytes.bytes(),
    };
    let (mut bar, mut first_bad): (Option<Bar>, Option<String>) = (None, None);
    let packed = job.run(&dataset, &args.out, share, jobs(args.jobs), |progress| match progress {
        PackProgress::Measures(total) => bar = Some(Bar::start(&console, "measured", total)),
        PackProgress::Writes(total) => bar = Some(Bar::start(&console, "packs", total)),
        PackProgress::Measured(bad) | PackProgress::Written(bad) => {
            if let Some(bad) = bad.filter(|bad| !bad.too_long) {
                first_bad.get_or_insert_with(|| safe(&bad.to_string()));
            }
            if let Some(bar) = &bar {
                bar.tick();
                if let Some(bad) = bad.filter(|bad| !bad.too_long) {
                    bar.say(format!("bad: {}", safe(&bad.to_string())));
                }
            }
        }
    })?;
    drop(bar);
    let out = args.out.display();
    let (done, stats) = match packed {
        Packed::Measured { missing } => {
            println!("{out}: this part is measured, {missing} blocks of the others are not: run all parts again then");
            return Ok(ExitCode::SUCCESS);
        }
        Packed::Written(done, stats) => (done, stats),
    };
    println!("{out}: {} packs in {}, {}", done.samples, count(done.shards, "shard"), bytes(done.bytes));
    println!("all packs: {} of {} samples, {:.2} % full", stats.packs, stats.samples, 100.0 * stats.fill());
    let ratio = stats.samples as f64 / stats.packs.max(1) as f64;
    println!("padding compression: {ratio:.1}x fewer rows than one sample a row, padded to {} tokens", pack.max_tokens);
    let bad = stats.bad + done.bad.len() as u64;
    if bad > 0 {
        let first = first_bad.map_or_else(String::new, |first| format!("; the first: {first}"));
        println!("{bad} bad samples were left out{}{first}", listed(&args.out, share));
    }
    if stats.too_long > 0 {
        let all = job.num_samples;
        println!("{} and were left out", too_long_text(stats.too_long, all, all, pack.max_tokens));
    }
    if share != Share::WHOLE {
        println!("when all {} parts are done: loongforge data merge {out}", share.num);
    }
    Ok(verdict(bad, job.num_samples, args.max_bad))
}
