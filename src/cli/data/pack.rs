//! `loongforge data pack`: packs a run's data ahead of time.

use super::convert::listed;
use super::input::jobs;
use super::packing::Packing;
use super::share::ShareArgs;
use super::{UsageError, environment, fraction, tell_ignored, verdict};
use crate::cli::asking::at_least_one;
use crate::cli::decode_worker::decoder;
use crate::cli::forecast::count;
use crate::cli::outputs::local_path;
use crate::cli::run::{RunLock, ShareLock, expect_no_shares};
use crate::model::folder::ModelFolder;
use crate::model::hub_data;
use crate::run::packs::{MAX_BYTES, MAX_PACKS, WantedPacks, of_model};
use clap::Args;
use loongforge_actors::launch::is_takeover;
use loongforge_core::config::{self, RunConfig, Size};
use loongforge_core::data::tools::{PackJob, PackOrder, Packed, Share, too_long_text};
use loongforge_core::data::{Dataset, ProcessorOptions, fingerprint};
use loongforge_core::engine::fault;
use loongforge_core::observe::{Console, bytes};
use loongforge_core::schedule::PackLimits;
use loongforge_core::text::{counted, shell_word, were};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  loongforge data pack run.yaml --out packs                         packs as a run with data.pack.mode=stream makes them
  loongforge data pack run.yaml --out packs --offline               fuller: best fit over all samples
  loongforge data pack run.yaml --out packs data.pack.max_tokens=8192
  loongforge data pack run.yaml data.pack.mode=offline              the packs that `run` makes before its first step, in its folder
  sbatch --array 0-15 --wrap \"loongforge data pack run.yaml --out packs --shard auto\"    twice: to measure, then to write
  loongforge data merge packs

To train on them: data.train: [{ path: packs, format: packed }], and data.shuffle: false to keep their order.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct PackArgs {
    /// Config of the run
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Overrides: key=value, +new=value, ~key, group=option
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Folder of the packs [default with data.pack.mode=offline: where `run` looks for them]
    #[arg(long, value_name = "FOLDER", value_parser = local_path())]
    out: Option<PathBuf>,
    /// Pack by best fit over all samples instead of in stream order, as data.pack.mode=offline does
    #[arg(long)]
    offline: bool,
    /// Number of samples to pack [default: one epoch]
    #[arg(long, value_name = "N")]
    samples: Option<u64>,
    /// Maximum number of packs in a shard [default: 1000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    packs: Option<u64>,
    /// Maximum size of a shard; a single pack may exceed it [default: 1GB]
    #[arg(long, value_name = "SIZE")]
    bytes: Option<Size>,
    /// Number of threads [default: number of cores]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    jobs: Option<usize>,
    /// Fraction of bad samples above which the exit code is 1
    #[arg(long, value_name = "FRACTION", default_value = "0.01", value_parser = fraction)]
    max_bad: f64,
    #[command(flatten)]
    share: ShareArgs,
}

/// Runs `loongforge data pack`: writes packs into the folder of `--out`, or those of a run with `data.pack.mode: offline`.
pub fn pack(args: PackArgs) -> anyhow::Result<ExitCode> {
    let share = args.share.get()?;
    let loaded =
        config::load(&args.file, &args.overrides, environment()).map_err(|report| UsageError(report.to_string()))?;
    tell_ignored(&loaded);
    let config = loaded.config;
    hub_data::fetch_data(&config).map_err(UsageError::of)?;
    let console = Console::stderr();
    let Some(out) = &args.out else { return pack_for_run(&args, &config, share, &console) };
    let folder = ModelFolder::open(&config.model).map_err(UsageError::of)?;
    let dataset = open(&config, &folder, &console)?;
    let spec = json!({
        "data": loaded.composed["data"],
        "files": fingerprint(&config.data)?.sets,
        "phase": config.train.phase,
        "learn": config.train.learn,
        "template_kwargs": config.data.template_kwargs,
        "seed": config.run.seed,
        "model": of_model(&folder)?,
    });
    let is_offline = args.offline || config.packs_first();
    let job = PackJob {
        spec,
        num_samples: args.samples.or(config.data.pack.samples).unwrap_or(dataset.len() as u64),
        limits: PackLimits::of_run(&config),
        order: if is_offline {
            PackOrder::Offline
        } else {
            PackOrder::Stream { look_ahead: config.data.pack.look_ahead }
        },
        max_packs: args.packs.unwrap_or(MAX_PACKS),
        max_bytes: args.bytes.map_or(MAX_BYTES, Size::bytes),
        batch: config.train.global_batch_size as u64,
    };
    let Packing { packed, first_bad } = Packing::run(&job, &dataset, out, share, jobs(args.jobs), &console)?;
    let (done, stats) = match packed {
        Packed::Measured { missing } => return Ok(measured(out, missing)),
        Packed::Written(done, stats) => (done, stats),
    };
    let max_tokens = config.data.pack.max_tokens;
    let (packs, samples) = (counted(done.samples, "pack"), counted(stats.samples, "sample"));
    println!("{}: {packs} in {}, {}", out.display(), count(done.shards, "shard"), bytes(done.bytes));
    println!("all packs: {} of {samples}, {:.2} % full", stats.packs, 100.0 * stats.fill());
    println!("{}", stats.compression_text(max_tokens));
    let bad = stats.bad + done.bad.len() as u64;
    if bad > 0 {
        let first = first_bad.map_or_else(String::new, |first| format!("; the first: {first}"));
        println!("{} {} left out{}{first}", counted(bad, "bad sample"), were(bad), listed(out, share));
    }
    if stats.too_long > 0 {
        let all = job.num_samples;
        println!("{} and were left out", too_long_text(stats.too_long, all, all, max_tokens));
    }
    if share != Share::WHOLE {
        println!("when all {} parts are done: loongforge data merge {}", share.num, shell_word(out));
    }
    Ok(verdict(bad, job.num_samples, args.max_bad))
}

/// Makes the packs that the run would make, or a share of them.
fn pack_for_run(args: &PackArgs, config: &RunConfig, share: Share, console: &Console) -> anyhow::Result<ExitCode> {
    if !config.packs_first() {
        let reason =
            "name a folder with --out; without --out only the packs of a run with data.pack.mode=offline can be made";
        return Err(UsageError(reason.to_owned()).into());
    }
    let of_folder =
        [("--samples", args.samples.is_some()), ("--packs", args.packs.is_some()), ("--bytes", args.bytes.is_some())];
    if let Some((name, _)) = of_folder.into_iter().find(|(_, is_given)| *is_given) {
        let reason =
            "the config determines the packs of a run (data.pack.samples): leave it out, or name a folder with --out";
        return Err(UsageError(format!("{name}: {reason}")).into());
    }
    let mut settled = config.clone();
    let folder = ModelFolder::open_settled(&mut settled).map_err(UsageError::of)?;
    let wanted = WantedPacks::new(&settled, &folder)?;
    let run = &settled.run.dir;
    // Data that cannot be packed are refused before anything is made.
    let opened = || open_unpacked(&settled, &folder, console);
    let dataset = wanted.find()?.is_none().then(opened).transpose()?;
    if share == Share::WHOLE {
        let _lock = RunLock::take(&[("run.dir", run)], std::process::id(), console)?;
        expect_no_shares(run, None, console)?;
        wanted.restore()?;
        if wanted.find()?.is_none() {
            make_packs_of(&wanted, &dataset.map_or_else(opened, Ok)?, console, args.jobs)?;
        }
        wanted.expect()?.lines(&settled).iter().for_each(|line| println!("{line}"));
        return Ok(ExitCode::SUCCESS);
    }
    // One that comes late touches nothing, also where a run trains on them already.
    if wanted.find()?.is_none() {
        let lock = ShareLock::take(run, share, wanted.short_key(), console)?;
        lock.alone(|| {
            if wanted.replaces()? {
                lock.expect_no_other()?;
            }
            begin(&wanted, console)
        })?;
        if wanted.find()?.is_none() {
            return make_share(&dataset.map_or_else(opened, Ok)?, &wanted, args, share, console);
        }
    }
    println!("{}: all packs already exist", wanted.dir.display());
    wanted.expect()?.lines(&settled).iter().for_each(|line| println!("{line}"));
    Ok(ExitCode::SUCCESS)
}

/// Makes a share of the packs of a run.
fn make_share(
    dataset: &Dataset,
    wanted: &WantedPacks<'_>,
    args: &PackArgs,
    share: Share,
    console: &Console,
) -> anyhow::Result<ExitCode> {
    let job = wanted.job(dataset.len() as u64);
    let packing = Packing::run(&job, dataset, &wanted.dir, share, jobs(args.jobs), console)?;
    if let Packed::Measured { missing } = packing.packed {
        return Ok(measured(&wanted.dir, missing));
    }
    let file = args.file.display();
    println!("when all {} parts are done: loongforge data pack {file}, which joins them; `run` does, too", share.num);
    Ok(ExitCode::SUCCESS)
}

/// Makes the packs of a run with `data.pack.mode: offline` that are not there yet. The run's folder is this process's.
///
/// # Errors
/// The data cannot be read, the packs not be written, or more samples are bad or too long than the config allows.
pub fn make_packs(
    wanted: &WantedPacks<'_>,
    folder: &ModelFolder,
    console: &Console,
    num_jobs: Option<usize>,
) -> anyhow::Result<()> {
    make_packs_of(wanted, &open_unpacked(wanted.config, folder, console)?, console, num_jobs)
}

fn make_packs_of(
    wanted: &WantedPacks<'_>,
    dataset: &Dataset,
    console: &Console,
    num_jobs: Option<usize>,
) -> anyhow::Result<()> {
    begin(wanted, console)?;
    console.line(&format!("making packs of {} tokens in {}", wanted.config.data.pack.max_tokens, wanted.dir.display()));
    let job = wanted.job(dataset.len() as u64);
    let packing = Packing::run(&job, dataset, &wanted.dir, Share::WHOLE, jobs(num_jobs), console)?;
    let Packed::Written(done, stats) = packing.packed else { unreachable!("one process measures everything") };
    if !is_takeover() {
        fault::of_packs("packs_done");
    }
    let finished = wanted.finish(job.num_samples, stats, done.bad.len() as u64);
    finished.map_err(UsageError::of)?;
    Ok(())
}

/// Makes the folder ready, and tells what is moved aside.
fn begin(wanted: &WantedPacks<'_>, console: &Console) -> anyhow::Result<()> {
    if wanted.begin().map_err(UsageError::of)? {
        let dir = wanted.dir.display();
        console.line(&format!(
            "{dir}: the packs of other data, settings or another model are moved aside, and removed when the run takes its first step"
        ));
    }
    Ok(())
}

fn open_unpacked(config: &RunConfig, folder: &ModelFolder, console: &Console) -> anyhow::Result<Dataset> {
    let dataset = open(config, folder, console)?;
    dataset.expect_unpacked()?;
    Ok(dataset)
}

fn open(config: &RunConfig, folder: &ModelFolder, console: &Console) -> anyhow::Result<Dataset> {
    let warnings = console.clone();
    let decoder = decoder(config.security.sandbox, move |warning| warnings.line(&format!("warning: {warning}")));
    let processor = folder.processor(&ProcessorOptions::new(&config.data, &config.train))?.with_decoder(decoder);
    Ok(Dataset::open(&config.data, processor, config.run.seed)?)
}

fn measured(out: &Path, missing: u64) -> ExitCode {
    let out = out.display();
    println!(
        "{out}: this part is measured, but {missing} blocks of the other parts are not yet: run all parts again once they are"
    );
    ExitCode::SUCCESS
}
