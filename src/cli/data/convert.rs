//! `loongforge data convert`: any format to WebDataset shards.

use super::input::InputArgs;
use super::share::ShareArgs;
use super::{UsageError, fraction, verdict};
use crate::cli::forecast::count;
use clap::{Args, ValueEnum};
use loongforge_core::config::{ImageLimits, Size};
use loongforge_core::data::Limits;
use loongforge_core::data::lerobot::{self, Set};
use loongforge_core::data::tools::{self, BAD, Convert, Look, Share};
use loongforge_core::observe::{Bar, Console, bytes};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  loongforge data convert --to webdataset llava.json --out shards
  loongforge data convert --to webdataset a.jsonl b.parquet --out shards --samples 5000 --bytes 500MB
  srun --array 0-15 loongforge data convert --to webdataset big.jsonl --out shards --shard auto
  loongforge data merge shards                       after the last of them
  loongforge data convert --to lerobot-images recordings --out decoded     a LeRobot set whose videos are decoded once

Run it again after it was stopped: shards that are done are kept. `shards/bad.jsonl` lists what was left out.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ConvertArgs {
    #[command(flatten)]
    input: InputArgs,
    /// Format to write
    #[arg(long, default_value = "webdataset")]
    to: Target,
    /// Folder of the shards
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// Maximum number of samples in a shard
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    samples: u64,
    /// Maximum size of a shard, unless one sample is larger
    #[arg(long, value_name = "SIZE", default_value = "1GB")]
    bytes: Size,
    /// Decode every picture, not only its header
    #[arg(long)]
    decode: bool,
    /// `sample_type` that Megatron-Energon's cookers are chosen by
    #[arg(long, value_name = "NAME", default_value = "multi_mix_qa", value_parser = word)]
    sample_type: String,
    /// Fraction of bad samples above which the exit code is 1
    #[arg(long, value_name = "FRACTION", default_value = "0.01", value_parser = fraction)]
    max_bad: f64,
    #[command(flatten)]
    share: ShareArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Target {
    /// Tar shards with Megatron-Energon's metadata
    Webdataset,
    /// A LeRobot set of version 3.0 with pictures as PNG, of one of any version
    LerobotImages,
    /// The same with pictures as videos of H.264, of which any frame costs two
    LerobotVideos,
}

fn word(text: &str) -> Result<String, String> {
    let is_word = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if is_word { Ok(text.to_owned()) } else { Err("not a word of letters, digits and _".to_owned()) }
}

/// Writes a LeRobot set anew.
fn rewrite(args: &ConvertArgs) -> anyhow::Result<ExitCode> {
    let [path] = args.input.paths() else {
        return Err(UsageError("one LeRobot set is converted at a time: name one PATH".to_owned()).into());
    };
    let set = Arc::new(Set::open(path)?);
    let limits = Limits::from(&ImageLimits::default());
    let console = Console::stderr();
    let bar = Bar::start(&console, "frames", set.info().num_frames);
    let as_video = matches!(args.to, Target::LerobotVideos);
    lerobot::rewrite(&set, &args.out, as_video, (&*args.input.decoder(), &limits), || bar.tick())?;
    drop(bar);
    println!("{}: {} episodes, {} frames", args.out.display(), set.info().num_episodes, set.info().num_frames);
    Ok(ExitCode::SUCCESS)
}

pub fn convert(args: ConvertArgs) -> anyhow::Result<ExitCode> {
    if let Target::LerobotImages | Target::LerobotVideos = args.to {
        return rewrite(&args);
    }
    let share = args.share.get()?;
    let inputs = args.input.open()?;
    let how = Convert {
        max_samples: args.samples,
        max_bytes: args.bytes.bytes(),
        look: if args.decode { Look::Whole } else { Look::Header },
        sample_type: args.sample_type,
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
    println!("{out}: {} samples in {}, {}{kept}", done.samples, count(done.shards, "shard"), bytes(done.bytes));
    if !done.bad.is_empty() {
        println!("{} bad samples were left out{}", done.bad.len(), listed(&args.out, share));
    }
    if share != Share::WHOLE {
        println!("when all {} parts are done: loongforge data merge {out}", share.num);
    }
    Ok(verdict(done.bad.len() as u64, num_samples, args.max_bad))
}

pub(super) fn listed(out: &std::path::Path, share: Share) -> String {
    match share == Share::WHOLE {
        true => format!("; {} lists them", out.join(BAD).display()),
        false => String::new(),
    }
}
