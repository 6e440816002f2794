//! `loongforge data`: inspects, checks and measures data sets, converts them to shards, and packs them ahead of time.

mod convert;
mod diffusion;
mod digits;
mod emoji;
mod encode;
mod episode;
mod fraction;
mod heard_and_seen;
mod input;
mod inspect;
mod merge;
mod pack;
mod packing;
mod pads;
mod roll_call;
mod share;
mod spoken_digits;
mod stats;
mod verify;

use clap::{Args, Subcommand};
use loongforge_core::data::DataError;
use std::process::ExitCode;

use fraction::verdict;
pub(super) use input::{described, format};

use super::{UsageError, environment, tell_ignored};

pub(super) use fraction::fraction;
pub(super) use pack::make_packs;

const EXAMPLES: &str = "\
Examples:
  loongforge data inspect train.jsonl --model Qwen/Qwen3-VL-2B-Instruct     its samples as the model sees them
  loongforge data verify train.jsonl --quarantine bad.jsonl                 read and decode everything
  loongforge data stats train.jsonl --model Qwen/Qwen3-VL-2B-Instruct       lengths, and how full packs would be
  loongforge data convert --to webdataset train.jsonl --out shards          shards for this program and Megatron-Energon
  loongforge data pack run.yaml --out packs                                 packs to train on
  loongforge data encode run.yaml                                           features of the run's frozen towers
  loongforge data merge shards                                              merge the shards of several processes";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DataArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Show format, fields and samples with their pictures
    Inspect(inspect::InspectArgs),
    /// Read and decode every sample, and list bad ones
    Verify(verify::VerifyArgs),
    /// Print histograms of lengths and how full packs would be
    Stats(stats::StatsArgs),
    /// Convert any format to WebDataset shards, or rewrite a LeRobot data set
    Convert(convert::ConvertArgs),
    /// Pack a run's data ahead of time
    Pack(pack::PackArgs),
    /// Encode a run's data ahead of time, into its encoder pools' cache_dir
    Encode(encode::EncodeArgs),
    /// Merge the shards that several processes wrote
    Merge(merge::MergeArgs),
    /// Make the quick start's data: pictures of handwritten numbers and a tiny Qwen3-VL to read them
    Digits(digits::DigitsArgs),
    /// Make a data set of emoji pictures with dialogues, and a small Qwen3-VL for it
    Emoji(emoji::EmojiArgs),
    /// Make a data set of digits spoken by synthetic voices, and a small Qwen2-Audio for it
    SpokenDigits(spoken_digits::SpokenDigitsArgs),
    /// Make a data set of spoken digits paired with pictures of handwritten ones, and a small Qwen2.5-Omni for it
    HeardAndSeen(heard_and_seen::HeardAndSeenArgs),
    /// Make a text-to-image data set of handwritten numbers, and a tiny Qwen-Image for it
    DiffusionDigits(diffusion::DigitsArgs),
    /// Make a data set of digits that move as a word says, and a tiny Wan for it
    DiffusionMotion(diffusion::MotionArgs),
    /// Make demonstrations of the task Pads as a LeRobot data set, and a tiny Pi0.5 for it
    Pads(pads::PadsArgs),
    /// Make a data set of sequences of real voices from installed or unpacked Debian packages, and a small Qwen2-Audio for it
    RollCall(roll_call::RollCallArgs),
}

/// Runs the commands of `loongforge data`.
pub fn data(args: DataArgs) -> anyhow::Result<ExitCode> {
    let done = match args.action {
        Action::Inspect(args) => inspect::inspect(args),
        Action::Verify(args) => verify::verify(args),
        Action::Stats(args) => stats::stats(args),
        Action::Convert(args) => convert::convert(args),
        Action::Pack(args) => pack::pack(args),
        Action::Encode(args) => encode::encode(args),
        Action::Merge(args) => merge::merge(args),
        Action::Digits(args) => digits::digits(args),
        Action::Emoji(args) => emoji::emoji(args),
        Action::SpokenDigits(args) => spoken_digits::spoken_digits(args),
        Action::HeardAndSeen(args) => heard_and_seen::heard_and_seen(args),
        Action::DiffusionDigits(args) => diffusion::digits(args),
        Action::DiffusionMotion(args) => diffusion::motion(args),
        Action::Pads(args) => pads::pads(args),
        Action::RollCall(args) => roll_call::roll_call(args),
    };
    // Files that are not what they should be are for the user to change; a disk that is full is not.
    done.map_err(|error| match error.downcast_ref::<DataError>() {
        Some(DataError::Write { .. }) | None => error,
        Some(wrong) => UsageError::of_dyn(wrong).into(),
    })
}
