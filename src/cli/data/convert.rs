//! `loongforge data convert`: converts any format to WebDataset shards, or rewrites a LeRobot data set.

use super::input::InputArgs;
use super::share::ShareArgs;
use super::{UsageError, fraction, verdict};
use crate::cli::forecast::count;
use crate::cli::outputs::local_path;
use clap::{Args, ValueEnum};
use loongforge_core::config::{ImageLimits, Size};
use loongforge_core::data::Limits;
use loongforge_core::data::lerobot::{self, Set};
use loongforge_core::data::tools::{self, BAD, Convert, Look, Share};
use loongforge_core::observe::{Bar, Console, bytes};
use loongforge_core::text::{counted, were};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  loongforge data convert --to webdataset llava.json --out shards
  loongforge data convert --to webdataset a.jsonl b.parquet --out shards --samples 5000 --bytes 500MB
  sbatch --array 0-15 --wrap \"loongforge data convert --to webdataset big.jsonl --out shards --shard auto\"
  loongforge data merge shards                       after the last one
  loongforge data convert --to lerobot-images recordings --out decoded     a LeRobot data set with videos decoded once

If it was stopped, run it again: finished shards are kept. `shards/bad.jsonl` lists the skipped samples.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ConvertArgs {
    #[command(flatten)]
    input: InputArgs,
    /// Format to write
    #[arg(long, default_value = "webdataset")]
    to: Target,
    /// Folder of the shards
    #[arg(long, value_name = "FOLDER", value_parser = local_path())]
    out: PathBuf,
    /// Maximum number of samples in a shard [default: 10000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    samples: Option<u64>,
    /// Maximum size of a shard; a single sample may exceed it [default: 1GB]
    #[arg(long, value_name = "SIZE")]
    bytes: Option<Size>,
    /// Decode every picture instead of only its header
    #[arg(long)]
    decode: bool,
    /// `sample_type` by which Megatron-Energon chooses cookers [default: multi_mix_qa]
    #[arg(long, value_name = "NAME", value_parser = word)]
    sample_type: Option<String>,
    /// Fraction of bad samples above which the exit code is 1 [default: 0.01]
    #[arg(long, value_name = "FRACTION", value_parser = fraction)]
    max_bad: Option<f64>,
    #[command(flatten)]
    share: ShareArgs,
}

/// Options of shards take these values where they are not given.
const SAMPLES: u64 = 10_000;
const BYTES: u64 = 1_000_000_000;
const SAMPLE_TYPE: &str = "multi_mix_qa";
const MAX_BAD: f64 = 0.01;

#[derive(Clone, Copy, ValueEnum)]
enum Target {
    /// Tar shards with Megatron-Energon's metadata
    Webdataset,
    /// A LeRobot data set of version 3.0 with pictures as PNG, from any version
    LerobotImages,
    /// The same with pictures as H.264 videos; reading a frame decodes at most two
    LerobotVideos,
}

fn word(text: &str) -> Result<String, String> {
    let is_word = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if is_word { Ok(text.to_owned()) } else { Err("must consist of letters, digits and _".to_owned()) }
}

/// Writes a LeRobot set anew.
fn rewrite(args: &ConvertArgs) -> anyhow::Result<ExitCode> {
    let of_shards = [
        ("--samples", args.samples.is_some()),
        ("--bytes", args.bytes.is_some()),
        ("--decode", args.decode),
        ("--sample-type", args.sample_type.is_some()),
        ("--max-bad", args.max_bad.is_some()),
        ("--shard", args.share.get()? != Share::WHOLE),
        ("--format", args.input.format().is_some()),
        ("--columns", args.input.renames()),
        ("--media-dir", args.input.names_media()),
        ("--episodes", args.input.chooses_episodes()),
        ("--max-samples", args.input.limits_samples()),
        ("--system", args.input.names_system()),
        ("--jobs", args.input.sets_jobs()),
    ];
    let names: Vec<&str> = of_shards.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name).collect();
    if !names.is_empty() {
        let reason = "not used for a LeRobot set, which is rewritten as it is, without shards: leave it out";
        return Err(UsageError(format!("{}: {reason}", names.join(", "))).into());
    }
    let [path] = args.input.paths() else {
        return Err(UsageError("only one LeRobot set can be converted at a time: name one PATH".to_owned()).into());
    };
    args.input.fetch()?;
    let set = Arc::new(Set::open(path)?);
    let limits = Limits::from(&ImageLimits::default());
    let console = Console::stderr();
    let bar = Bar::start(&console, "frames", set.info().num_frames);
    let as_video = matches!(args.to, Target::LerobotVideos);
    lerobot::rewrite(&set, &args.out, as_video, (&*args.input.decoder(), &limits), || bar.tick())?;
    drop(bar);
    let (episodes, frames) = (count(set.info().num_episodes, "episode"), counted(set.info().num_frames, "frame"));
    println!("{}: {episodes}, {frames}", args.out.display());
    Ok(ExitCode::SUCCESS)
}

/// Runs `loongforge data convert`: writes shards, or rewrites a LeRobot set.
pub fn convert(args: ConvertArgs) -> anyhow::Result<ExitCode> {
    if let Target::LerobotImages | Target::LerobotVideos = args.to {
        return rewrite(&args);
    }
    let share = args.share.get()?;
    let inputs = args.input.open()?;
    let how = Convert {
        max_samples: args.samples.unwrap_or(SAMPLES),
        max_bytes: args.bytes.map_or(BYTES, Size::bytes),
        look: if args.decode { Look::Whole } else { Look::Header },
        sample_type: args.sample_type.unwrap_or_else(|| SAMPLE_TYPE.to_owned()),
    };
    let console = Console::stderr();
    let num_samples = tools::num_samples(&inputs, &how, share);
    let bar = Bar::start(&console, "samples", num_samples);
    let mut num_bad = 0;
    let done = tools::convert(&inputs, &args.out, &how, share, args.input.jobs(), |_, bad| {
        bar.tick();
        if let Some(bad) = bad {
            num_bad += 1;
            bar.say(format!("{num_bad} bad, the last: {bad}"));
        }
    })?;
    drop(bar);
    let kept = if done.kept > 0 { format!(", {} of them kept", done.kept) } else { String::new() };
    let out = args.out.display();
    let (samples, shards) = (counted(done.samples, "sample"), count(done.shards, "shard"));
    println!("{out}: {samples} in {shards}, {}{kept}", bytes(done.bytes));
    if !done.bad.is_empty() {
        let num_bad = done.bad.len() as u64;
        println!("{} {} left out{}", counted(num_bad, "bad sample"), were(num_bad), listed(&args.out, share));
    }
    if share != Share::WHOLE {
        println!("when all {} parts are done: loongforge data merge {out}", share.num);
    }
    Ok(verdict(done.bad.len() as u64, num_samples, args.max_bad.unwrap_or(MAX_BAD)))
}

pub(super) fn listed(out: &std::path::Path, share: Share) -> String {
    match share == Share::WHOLE {
        true => format!("; see {}", out.join(BAD).display()),
        false => String::new(),
    }
}
