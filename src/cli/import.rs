//! `loongforge import`: a config of another trainer as one of ours.

use super::UsageError;
use anyhow::Context;
use clap::Args;
use loongforge_core::config::{Fate, Imported, KeyFate, import as translate};
use loongforge_core::observe::safe;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "\
Examples:
  loongforge import llama3_lora_dpo.yaml -o dpo.yaml    # a config of LLaMA-Factory
  loongforge import lora-1b.yml                         # a config of axolotl; the result goes to standard output
  loongforge import theirs.yaml -o ours.yaml && loongforge check ours.yaml")]
pub struct ImportArgs {
    /// Config of LLaMA-Factory or axolotl, in YAML
    file: PathBuf,
    /// File to write the config to [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Bytes of a config.
const MAX_BYTES: u64 = 1 << 20;

pub fn import(args: ImportArgs) -> anyhow::Result<ExitCode> {
    let file = loongforge_core::files::open(&args.file).with_context(|| args.file.display().to_string());
    let mut text = String::new();
    file.and_then(|file| Ok(file.take(MAX_BYTES + 1).read_to_string(&mut text)?))
        .map_err(|error| UsageError::of(error.as_ref()))?;
    let imported = translate(&text)
        .map_err(|error| UsageError::of(anyhow::anyhow!("{}: {error}", args.file.display()).as_ref()))?;
    eprint!("{}", report(&imported));
    let yaml = format!("# From {} of {}.\n{}", args.file.display(), imported.from, imported.yaml);
    match &args.output {
        Some(output) => {
            let mut new = std::fs::File::create_new(output)
                .map_err(|error| UsageError::of(anyhow::anyhow!("{}: {error}", output.display()).as_ref()))?;
            std::io::Write::write_all(&mut new, yaml.as_bytes())?;
            eprintln!("wrote {0}; next: loongforge check {0}", output.display());
        }
        None => print!("{yaml}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists what became of every key, first those without a counterpart.
fn report(imported: &Imported) -> String {
    let line = |key: &KeyFate, what: String| format!("  {}: {}{what}\n", safe(&key.key), safe(&key.value));
    let (mut missing, mut settled, mut arrived) = (String::new(), String::new(), 0);
    let (mut num_missing, mut num_settled) = (0, 0);
    for key in &imported.keys {
        match &key.fate {
            Fate::Arrived(_) => arrived += 1,
            Fate::Settled(why) => {
                num_settled += 1;
                settled += &line(key, format!("  ({why})"));
            }
            Fate::Missing(why) => {
                num_missing += 1;
                missing += &line(key, format!("  ({why})"));
            }
        }
    }
    let mut text = format!("{}: {} keys, {arrived} translated\n", imported.from, imported.keys.len());
    for (count, what, lines) in [
        (num_missing, "without a counterpart, left out", missing),
        (num_settled, "of which nothing has to be said here", settled),
    ] {
        if count > 0 {
            text += &format!("{count} {what}:\n{lines}");
        }
    }
    text
}
