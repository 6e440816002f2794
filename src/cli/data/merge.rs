//! `loongforge data merge`: merges the shards that several processes wrote.

use crate::cli::forecast::count;
use clap::Args;
use loongforge_core::data::tools::{self, BAD};
use loongforge_core::observe::bytes;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Example:
  loongforge data merge shards        exit code 2 with a list of what is missing, if a part is not done; may be repeated";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct MergeArgs {
    /// Folder that `data convert --shard` or `data pack --shard` wrote
    #[arg(value_name = "FOLDER")]
    out: PathBuf,
}

/// Runs `loongforge data merge`: joins the shards that several processes made.
pub fn merge(args: MergeArgs) -> anyhow::Result<ExitCode> {
    let done = tools::merge(&args.out)?;
    let out = args.out.display();
    println!("{out}: {} samples in {}, {}", done.samples, count(done.shards, "shard"), bytes(done.bytes));
    if !done.bad.is_empty() {
        println!("{} bad samples were left out; {} lists them", done.bad.len(), args.out.join(BAD).display());
    }
    Ok(ExitCode::SUCCESS)
}
