//! `loongforge import`: translates a config, launch script or command line of another trainer.

use super::UsageError;
use clap::Args;
use loongforge_core::config::{Fate, Imported, KeyFate, import as translate, import_words};
use loongforge_core::files;
use loongforge_core::observe::safe;
use loongforge_core::text::{counted, shell_word};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "\
Examples:
  loongforge import llama3_lora_dpo.yaml -o dpo.yaml    # a config of LLaMA-Factory
  loongforge import lora-1b.yml                         # a config of axolotl; the result goes to standard output
  loongforge import qwen3.yaml                          # a config of VeOmni
  loongforge import -- bash train.sh tasks/train_text.py qwen3.yaml --train.optimizer.lr 1e-5   # with options of its command
  loongforge import llama3_8b.toml                      # a config of torchtitan
  loongforge import -- swift sft --model Qwen/Qwen3-0.6B --tuner_type lora --dataset my.jsonl      # ms-swift
  loongforge import sft_qwen3_8b.sh -o sft.yaml         # a launch script of Megatron-LM or LoongForge; it is not executed
  loongforge import -- trl sft --model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/Capybara
  loongforge import -- lerobot-train --policy.path=lerobot/smolvla_base --dataset.repo_id=lerobot/svla_so101_pickplace --steps=20000
  loongforge import outputs/train/smolvla/checkpoints/last/pretrained_model/train_config.json     # what lerobot wrote itself
  loongforge import Wan2.1-T2V-1.3B.sh -o lora.yaml     # a script of DiffSynth-Studio
  loongforge import -- accelerate launch wan_train_network.py --dit wan.safetensors --dataset_config sets.toml     # musubi-tuner
  loongforge import train_lora_qwen_image_24gb.yaml -o lora.yaml     # a config of ai-toolkit
  loongforge import theirs.yaml -o ours.yaml && loongforge check ours.yaml")]
pub struct ImportArgs {
    /// YAML config of LLaMA-Factory, axolotl, TRL, VeOmni, ms-swift or ai-toolkit (also JSON), TOML config of torchtitan or
    /// musubi-tuner, `train_config.json` of lerobot, or launch script of Megatron-LM, LoongForge, TRL, VeOmni, ms-swift, torchtitan, lerobot,
    /// DiffSynth-Studio or musubi-tuner
    #[arg(required_unless_present = "command", conflicts_with = "command")]
    file: Option<PathBuf>,
    /// Instead of a file, a command line of LLaMA-Factory, TRL, VeOmni, ms-swift, torchtitan, lerobot, DiffSynth-Studio,
    /// musubi-tuner or Megatron-LM
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// File to write the config to [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the output file
    #[arg(long, requires = "output")]
    overwrite: bool,
}

/// Bytes of a config.
const MAX_BYTES: u64 = 1 << 20;

/// Runs `loongforge import`: writes another trainer's settings as a config, and lists the keys that have no counterpart.
pub fn import(args: ImportArgs) -> anyhow::Result<ExitCode> {
    if let Some(output) = args.output.as_ref().filter(|output| output.exists() && !args.overwrite) {
        let message = format!("{} exists: name another file, or replace it with --overwrite", output.display());
        return Err(UsageError(message).into());
    }
    let (imported, source) = match &args.file {
        Some(file) => (of_file(file), file.display().to_string()),
        None => (import_words(&args.command).map_err(anyhow::Error::from), "a command line".to_owned()),
    };
    let imported = imported.map_err(|error| UsageError::of_any(error.context(source.clone())))?;
    eprint!("{}", report(&imported));
    let yaml = format!("# From {source} of {}.\n{}", imported.from, imported.yaml);
    match &args.output {
        Some(output) => {
            files::replace_shared(output, yaml.as_bytes(), 0o644)
                .map_err(|error| UsageError::of_any(anyhow::anyhow!("{}: {error}", output.display())))?;
            eprintln!("wrote {}; next: loongforge check {}", output.display(), shell_word(output));
        }
        None => print!("{yaml}"),
    }
    Ok(ExitCode::SUCCESS)
}

fn of_file(path: &Path) -> anyhow::Result<Imported> {
    let mut text = String::new();
    files::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    anyhow::ensure!(text.len() as u64 <= MAX_BYTES, "it has more than {MAX_BYTES} bytes");
    Ok(translate(&text)?)
}

/// Returns a list of the fate of every key, first those without a counterpart.
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
    let keys = counted(imported.keys.len() as u64, "key");
    let mut text = format!("{}: {keys}, {arrived} translated\n", imported.from);
    imported.notes.iter().for_each(|note| text += &format!("note: {note}\n"));
    for (count, what, lines) in
        [(num_missing, "without a counterpart, left out", missing), (num_settled, "that need no key here", settled)]
    {
        if count > 0 {
            text += &format!("{count} {what}:\n{lines}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_only_with_overwrite() {
        let dir = tempfile::tempdir().unwrap();
        let (theirs, ours) = (dir.path().join("theirs.yaml"), dir.path().join("ours.yaml"));
        std::fs::write(&theirs, "model_name_or_path: a/b\nstage: sft\n").unwrap();
        std::fs::write(&ours, "mine\n").unwrap();
        let write = |overwrite: bool| {
            let (file, output) = (Some(theirs.clone()), Some(ours.clone()));
            import(ImportArgs { file, command: Vec::new(), output, overwrite })
        };
        let error = write(false).unwrap_err().to_string();
        assert!(error.contains("ours.yaml exists") && error.contains("--overwrite"), "{error}");
        assert_eq!(std::fs::read_to_string(&ours).unwrap(), "mine\n");
        write(true).unwrap();
        assert!(std::fs::read_to_string(&ours).unwrap().contains("load: a/b"));
    }
}
