//! `loongforge data merge`: merges the shards that several processes wrote.

use crate::cli::forecast::count;
use clap::Args;
use loongforge_core::data::tools::{self, BAD};
use loongforge_core::observe::bytes;
use loongforge_core::text::{counted, were};
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
    let (samples, shards) = (counted(done.samples, "sample"), count(done.shards, "shard"));
    println!("{out}: {samples} in {shards}, {}", bytes(done.bytes));
    if !done.bad.is_empty() {
        let num_bad = done.bad.len() as u64;
        let (bad, were) = (counted(num_bad, "bad sample"), were(num_bad));
        println!("{bad} {were} left out; see {}", args.out.join(BAD).display());
    }
    Ok(ExitCode::SUCCESS)
}
