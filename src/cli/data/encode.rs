//! `loongforge data encode`: computes the features of a run's frozen towers ahead of time.

use super::share::ShareArgs;
use super::{UsageError, environment, tell_ignored};
use crate::cli::asking::at_least_one;
use crate::cli::decode_worker::decoder;
use crate::model::hub_data;
use crate::run::compose::Composition;
use crate::run::encode::{EncodeError, EncodeJob};
use anyhow::Result;
use clap::Args;
use loongforge_core::config;
use loongforge_core::data::tools;
use loongforge_core::observe::{Bar, Console, bytes, init_logging, safe};
use loongforge_core::text::counted;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  loongforge data encode run.yaml                                  fills cache_dir of the run's encoder pools
  loongforge data encode run.yaml pools.text.cache_dir=features    the same, with a folder that the config does not name
  loongforge data encode run.yaml pools.vae.replicas=8             with eight encoders, one GPU each
  loongforge data encode run.yaml --shard 1/4                      the second of four processes that share the work
  loongforge run run.yaml pools.text.replicas=0                    then trains without the text tower";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct EncodeArgs {
    /// Config of the run
    #[arg(value_name = "CONFIG")]
    file: PathBuf,
    /// Overrides: key=value, +new=value, ~key, group=option
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Number of threads that read samples [default: number of cores]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    jobs: Option<usize>,
    #[command(flatten)]
    share: ShareArgs,
}

/// Runs `loongforge data encode`: fills `cache_dir` of a run's encoder pools, and prints what was encoded.
pub fn encode(args: EncodeArgs) -> Result<ExitCode> {
    let start = Instant::now();
    let loaded =
        config::load(&args.file, &args.overrides, environment()).map_err(|report| UsageError(report.to_string()))?;
    tell_ignored(&loaded);
    let console = Console::stderr();
    init_logging(&loaded.config.log, &console)?;
    hub_data::fetch_data(&loaded.config).map_err(UsageError::of)?;
    let warnings = console.clone();
    let decoder = decoder(loaded.config.security.sandbox, move |warning| warnings.line(&format!("warning: {warning}")));
    let composition = Composition::new(loaded.config).map_err(UsageError::of)?;
    let composition = composition.decoder(decoder.clone());
    let kind = composition.folder().model_kind();
    composition.config().expect_keys_of(kind).map_err(UsageError::of)?;
    let job = EncodeJob::new(composition, &decoder, args.share.get()?).map_err(wrong)?;
    job.notes().iter().for_each(|note| console.line(note));
    let bar = Bar::start(&console, "samples", job.num_visits());
    let encoded = job.run(args.jobs.unwrap_or_else(tools::default_jobs), |_| bar.tick());
    drop(bar);
    let encoded = encoded.map_err(wrong)?;
    for (tower, totals) in &encoded.towers {
        let (made, folder) = (totals.items - totals.found, totals.folder.display());
        println!(
            "{tower}: {}, {made} encoded ({}), {} found in {folder}",
            counted(totals.items, "item"),
            bytes(totals.bytes),
            totals.found
        );
    }
    if let Some(first) = encoded.bad.first() {
        let bad = counted(encoded.bad.len() as u64, "bad sample");
        println!("{bad}; the first: {}", safe(&first.to_string()));
    }
    let [train, held_out] = encoded.visits;
    println!(
        "{train} visits of training and {held_out} of held-out samples and prompts, in {:.1} s",
        start.elapsed().as_secs_f64()
    );
    Ok(ExitCode::SUCCESS)
}

/// Makes a usage error of an error that the user can mend, and leaves others as they are.
fn wrong(error: EncodeError) -> anyhow::Error {
    match error {
        EncodeError::Encoder { .. } => error.into(),
        _ => UsageError::of(error).into(),
    }
}
