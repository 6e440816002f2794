//! `--train.lr 2e-5`, as torchtitan and others have it, for `train.lr=2e-5`.

use super::{Cli, exit};
use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Id, Parser};
use loongforge_core::config::key_called;
use std::ffi::OsString;

/// The command line; a mistake in it ends the program. An unknown option whose name is a key's, as `--lr`, gets the key
/// named, of commands that take keys.
pub fn parse(words: impl Iterator<Item = OsString>) -> Cli {
    let words = overrides(words);
    let parsed = Cli::try_parse_from(&words).and_then(|cli| expect_needed(&words).map(|()| cli));
    parsed.unwrap_or_else(|error| {
        let unknown = match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(option)) if error.kind() == ErrorKind::UnknownArgument && takes_keys(&words) => {
                Some(option)
            }
            _ => None,
        };
        let Some((option, key)) = unknown.and_then(|option| Some((option, key_of(option)?))) else { error.exit() };
        eprintln!(
            "error: unexpected argument '{option}' found\n\n  tip: did you mean `--{key} VALUE` or `{key}=VALUE`?"
        );
        std::process::exit(exit::USAGE.into())
    })
}

/// Sees to it that what an option needs is there. clap lets an option pass without it where another one excludes it, and the option would
/// have no effect then.
fn expect_needed(words: &[OsString]) -> Result<(), clap::Error> {
    without_conflicts(Cli::command()).try_get_matches_from(words).map(drop)
}

fn without_conflicts(command: Command) -> Command {
    command.mut_args(|argument| argument.conflicts_with(Resettable::<Id>::Reset)).mut_subcommands(without_conflicts)
}

/// Returns whether the command that these words call has overrides.
fn takes_keys(words: &[OsString]) -> bool {
    let cli = Cli::command();
    let called = words.iter().skip(1).try_fold(&cli, |command, word| {
        // The first word that is no command ends the search.
        command.find_subcommand(word).ok_or(command)
    });
    let (Ok(called) | Err(called)) = called;
    called.get_positionals().any(|argument| argument.get_id() == "overrides")
}

/// The key that an option without dots means.
fn key_of(option: &str) -> Option<String> {
    key_called(&option.strip_prefix("--")?.split('=').next()?.replace('-', "_"), "")
}

/// The words of a command line in which options whose name has a dot, as none of ours has, are overrides.
pub fn overrides(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let (mut words, mut all) = (words.peekable(), Vec::new());
    while let Some(word) = words.next() {
        let text = word.to_str().and_then(|text| text.strip_prefix("--")).filter(|text| is_key(text));
        let Some(text) = text else {
            all.push(word);
            continue;
        };
        let is_value = |next: &OsString| !next.to_string_lossy().starts_with("--");
        all.push(match (text.contains('='), words.next_if(|next| !text.contains('=') && is_value(next))) {
            (true, _) => text.into(),
            (false, Some(value)) => [text.as_ref(), "=".as_ref(), value.as_os_str()].into_iter().collect(),
            (false, None) => format!("{text}=true").into(),
        });
    }
    all
}

fn is_key(text: &str) -> bool {
    let name = text.split('=').next().unwrap_or_default();
    let is_word = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    name.contains('.') && name.split('.').all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_of_another_trainer_names_our_key() {
        let key = |option: &str| key_of(option).unwrap_or_default();
        assert_eq!(
            (key("--lr"), key("--learning-rate=1"), key("--max_steps")),
            ("train.lr".into(), "train.lr".into(), "train.steps".into())
        );
        assert_eq!(key_of("--frobnicate"), None);
        for (theirs, ours) in [
            ("--tensor-model-parallel-size", "pools.foundation.tensor_parallel"),
            ("--pipeline-model-parallel-size=2", "pools.foundation.pipeline_parallel"),
            ("--expert-model-parallel-size", "pools.foundation.expert_parallel"),
            ("--context-parallel-size", "pools.foundation.context_parallel"),
            ("--sequence-parallel", "pools.foundation.sequence_parallel"),
            ("--use-distributed-optimizer", "pools.foundation.zero"),
            ("--global-batch-size", "train.global_batch_size"),
            ("--micro-batch-size", "train.micro_batch_size"),
            ("--seq-length", "data.pack.max_tokens"),
            ("--train-iters", "train.steps"),
            ("--min-lr", "train.min_lr"),
            ("--lr-warmup-fraction", "train.warmup_ratio"),
            ("--lr-decay-style", "train.schedule"),
            ("--clip-grad", "train.clip_grad"),
            ("--weight-decay", "train.optimizer.weight_decay"),
            ("--adam-beta2", "train.optimizer.betas"),
            ("--bf16", "train.precision"),
            ("--training-phase", "train.phase"),
            ("--hf-tokenizer-path", "model.tokenizer"),
            ("--data-path", "data.train"),
            ("--save-interval", "checkpoint.every_steps"),
            ("--eval-interval", "eval.every_steps"),
            ("--log-interval", "log.every_steps"),
            ("--recompute-granularity", "model.foundation.recompute"),
            ("--moe-aux-loss-coeff", "model.moe.aux_loss_coef"),
            ("--mtp-num-layers", "model.mtp.num_layers"),
        ] {
            assert_eq!(key(theirs), ours, "{theirs}");
        }
    }

    #[test]
    fn an_option_needs_what_it_is_for_whatever_else_is_there() {
        let parsed = |line: &str| {
            let words: Vec<OsString> = format!("loongforge {line}").split(' ').map(OsString::from).collect();
            Cli::try_parse_from(&words).and_then(|_| expect_needed(&words)).map_err(|error| error.to_string())
        };
        for (line, needed) in [
            ("generate m --prompt a --out b", "--prompts"),
            ("generate m --prompt a --out b --batch 2 --overwrite", "--prompts"),
            ("data inspect set --samples 1 --episode 3", "--sheet"),
            ("data stats set --write --template a", "--model"),
            ("judge-policy m --layouts 3 --plots a", "--episodes"),
            ("run a.yaml --overwrite --strict", "--resume"),
            ("run a.yaml --processes --ranks 2", "--role"),
            ("plan a.yaml --simulate --costs a --mfu 0.3", "--device"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains("were not provided") && error.contains(needed), "{line}: {error}");
        }
        for line in [
            "generate m --prompts a --out b --batch 2 --overwrite",
            "generate m --prompt a --image b",
            "generate m --prompt a --raw --temperature 1 --top-k 3",
            "data inspect set --sheet a --episode 3",
            "data stats set --write",
            "judge-policy m --layouts 3 --sheet a",
            "judge-policy m --episodes a --plots b --num-episodes 2",
            "run a.yaml --processes",
            "run a.yaml --resume=a --strict --trust",
            "run a.yaml --role data --join a:1 --tls b",
            "plan a.yaml --simulate --device H100 --mfu 0.3",
            "plan a.yaml --simulate --calibrate a",
            "scale 3 --run a",
            "scale --remove encoder/1",
            "import a.yaml -o b",
            "import -- trl sft --lr 3",
            "completions bash",
            "completions --man a",
            "check a.yaml --show-origin",
            "parity --export a m",
            "launch a.yaml --on slurm --tls a",
            "drill a.yaml --faults a",
            "help run",
        ] {
            let words: Vec<OsString> = format!("loongforge {line}").split(' ').map(OsString::from).collect();
            // What is refused for another reason is refused by both alike.
            if Cli::try_parse_from(&words).is_ok() {
                parsed(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            }
        }
    }

    #[test]
    fn keys_are_named_where_a_command_takes_them() {
        let takes = |line: &str| takes_keys(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(takes("loongforge run a.yaml --lr 1") && takes("loongforge data pack a.yaml --lr 1"));
        assert!(!takes("loongforge data digits --out x --train 3") && !takes("loongforge generate x --video y"));
    }

    #[test]
    fn dotted_options_are_overrides_and_others_are_left_alone() {
        let of = |line: &str| overrides(line.split(' ').map(OsString::from)).join(" ".as_ref()).into_string().unwrap();
        assert_eq!(of("run a.yaml --train.lr 2e-5 --resume"), "run a.yaml train.lr=2e-5 --resume");
        assert_eq!(of("run a.yaml --train.lr=2e-5 --log.jsonl"), "run a.yaml train.lr=2e-5 log.jsonl=true");
        let ours = "launch a.yaml --image x.io/y:1 --hosts=a.b,c.d --out ./a.b -- --.. --a..b";
        assert_eq!(of(ours), ours);
    }
}
