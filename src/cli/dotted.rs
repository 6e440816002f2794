//! Accepts `--train.lr 2e-5`, as torchtitan and others do, for `train.lr=2e-5`.

use super::{Cli, exit};
use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::{Arg, Command, CommandFactory, FromArgMatches, Id};
use loongforge_core::config::{key_called, remark_on};
use std::ffi::OsString;

/// Returns the command line; a mistake in it ends the program. Unknown options whose names are keys', as `--lr`, get the keys named, of
/// commands that take keys.
pub fn parse(words: impl Iterator<Item = OsString>) -> Cli {
    let words = overrides(words);
    let parsed = parse_words(&words).and_then(|cli| expect_needed(&words).map(|()| cli));
    parsed.unwrap_or_else(|error| {
        let Some(text) = told(error.kind(), &words) else { error.exit() };
        eprintln!("{text}");
        std::process::exit(exit::USAGE.into())
    })
}

/// Returns the message about all unknown options, if one of them has a tip what to write instead; `None`: clap's own message stays.
fn told(kind: ErrorKind, words: &[OsString]) -> Option<String> {
    let unknown = if kind == ErrorKind::UnknownArgument { unknown_options(words) } else { Vec::new() };
    unknown.iter().any(|option| tip(option).is_some()).then(|| refusal(&unknown))
}

fn parse_words(words: &[OsString]) -> Result<Cli, clap::Error> {
    let parsed = with_negatives(Cli::command()).try_get_matches_from(words)?;
    Cli::from_arg_matches(&parsed)
}

/// A number below 0 is an option's value, of which the option says whether it takes it.
fn with_negatives(command: Command) -> Command {
    let takes = |argument: &Arg| !argument.is_positional() && argument.get_action().takes_values();
    command
        .mut_args(|argument| if takes(&argument) { argument.allow_negative_numbers(true) } else { argument })
        .mut_subcommands(with_negatives)
}

/// Sees to it that what an option needs is there. clap lets an option pass without it where another one excludes it, and the option would
/// have no effect then.
fn expect_needed(words: &[OsString]) -> Result<(), clap::Error> {
    without_conflicts(with_negatives(Cli::command())).try_get_matches_from(words).map(drop)
}

fn without_conflicts(command: Command) -> Command {
    command.mut_args(|argument| argument.conflicts_with(Resettable::<Id>::Reset)).mut_subcommands(without_conflicts)
}

/// Returns the options that the command which these words call does not have; none where it takes no keys.
fn unknown_options(words: &[OsString]) -> Vec<String> {
    let cli = Cli::command();
    let called = words.iter().skip(1).try_fold(&cli, |command, word| {
        // The first word that is no command ends the search.
        command.find_subcommand(word).ok_or(command)
    });
    let (Ok(called) | Err(called)) = called;
    if !called.get_positionals().any(|argument| argument.get_id() == "overrides") {
        return Vec::new();
    }
    let is_known = |name: &str| name == "help" || called.get_arguments().any(|it| it.get_long() == Some(name));
    let options = words.iter().take_while(|word| *word != "--").filter_map(|word| word.to_str()?.strip_prefix("--"));
    let names = options.map(|option| option.split('=').next().unwrap_or(option));
    names.filter(|name| !is_known(name)).map(|name| format!("--{name}")).collect()
}

/// Returns the lines about unknown options, each with what to write instead, where that is known.
fn refusal(options: &[String]) -> String {
    let refused = |option: &String| {
        let tip = tip(option).map_or(String::new(), |tip| format!("\n\n  tip: {tip}"));
        format!("error: unexpected argument '{option}' found{tip}")
    };
    options.iter().map(refused).collect::<Vec<_>>().join("\n\n")
}

/// Returns a tip about what to write instead of an option without dots.
fn tip(option: &str) -> Option<String> {
    let remark = remark_on(&name_of(option)?).map(str::to_owned);
    remark.or_else(|| key_of(option).map(|key| format!("did you mean `--{key} VALUE` or `{key}=VALUE`?")))
}

/// Returns the key that an option without dots means.
fn key_of(option: &str) -> Option<String> {
    key_called(&name_of(option)?, "")
}

fn name_of(option: &str) -> Option<String> {
    Some(option.strip_prefix("--")?.split('=').next()?.replace('-', "_"))
}

/// Turns the options of a command line whose name has a dot, as none of ours has, into overrides.
pub fn overrides(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let (mut words, mut all) = (words.peekable(), Vec::new());
    while let Some(word) = words.next() {
        // What follows is another program's, as in `import -- lerobot-train --policy.type=pi05`.
        if word == "--" {
            all.push(word);
            all.extend(words);
            return all;
        }
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
        assert_eq!((key_of("--frobnicate"), tip("--frobnicate")), (None, None));
        assert!(tip("--resume-from-checkpoint=x").is_some_and(|tip| tip.contains("--resume=CHECKPOINT")));
        assert_eq!(tip("--lr").as_deref(), Some("did you mean `--train.lr VALUE` or `train.lr=VALUE`?"));
        for (theirs, ours) in [
            ("--tensor-model-parallel-size", "pools.foundation.tensor_parallel"),
            ("--pipeline-model-parallel-size=2", "pools.foundation.pipeline_parallel"),
            ("--expert-model-parallel-size", "pools.foundation.expert_parallel"),
            ("--context-parallel-size", "pools.foundation.context_parallel"),
            ("--sequence-parallel", "pools.foundation.sequence_parallel"),
            ("--tensor-parallel", "pools.foundation.tensor_parallel"),
            ("--split", "data.val_size"),
            ("--save", "checkpoint.dir"),
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
    fn all_unknown_options_are_told_at_once() {
        let words =
            |line: &str| -> Vec<OsString> { format!("loongforge {line}").split(' ').map(OsString::from).collect() };
        let unknown = |line: &str| unknown_options(&words(line));
        let found =
            unknown("run a.yaml --resume --lr 3 --micro-batch-size=2 train.steps=1 --processes --frobnicate -- --x");
        assert_eq!(found, ["--lr", "--micro-batch-size", "--frobnicate"]);
        let text = refusal(&found);
        assert_eq!((text.matches("error: ").count(), text.matches("tip: did you mean").count()), (3, 2), "{text}");
        assert!(unknown("top --lr 3").is_empty() && unknown("run a.yaml --resume=b --tls c").is_empty());
        // Whichever of them comes first.
        let told = |line: &str| told(ErrorKind::UnknownArgument, &words(line)).unwrap_or_default();
        assert_eq!(told("run a.yaml --frobnicate --lr 3").matches("error: ").count(), 2);
        assert_eq!(["run a.yaml --frobnicate", "top --lr 3"].map(told), ["", ""]);
    }

    #[test]
    fn an_option_needs_what_it_is_for_whatever_else_is_there() {
        let parsed = |line: &str| {
            let words: Vec<OsString> = format!("loongforge {line}").split(' ').map(OsString::from).collect();
            parse_words(&words).and_then(|_| expect_needed(&words)).map_err(|error| error.to_string())
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
            if parse_words(&words).is_ok() {
                parsed(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            }
        }
    }

    #[test]
    fn an_option_says_what_is_wrong_with_a_number_below_0() {
        for (line, option, reason) in [
            ("generate m --prompt a --temperature -1", "--temperature", "-1"),
            ("generate m --prompt a --top-k -1", "--top-k", "-1"),
            ("generate m --prompt a --max-new-tokens -3", "--max-new-tokens", "-3"),
            ("plan a.yaml --simulate --jitter -0.5", "--jitter", "must be 0 or more"),
            ("plan a.yaml --simulate --latency -1", "--latency", "must be 0 or more"),
            ("plan a.yaml --simulate --cores 0", "--cores", "must be above 0"),
            ("plan a.yaml --simulate --bandwidth 0", "--bandwidth", "must be above 0"),
            ("plan a.yaml --simulate --device H200 --mfu nan", "--mfu", "must be above 0"),
            ("plan a.yaml --simulate --device H200 --mfu 2", "--mfu", "at most 1"),
            ("plan a.yaml --simulate --samples 0", "--samples", "1 or more"),
            ("plan a.yaml --simulate --device H200 --stages 0", "--stages", "0 is not in 1.."),
            ("launch a.yaml --on slurm --tls a --cpus 0", "--cpus", "0 is not in 1.."),
            ("launch a.yaml --on slurm --tls a --port 0", "--port", "0 is not in 1.."),
            ("checkpoint diff a b --tolerance -1", "--tolerance", "must be 0 or more"),
            ("sample m --prompt a --guidance -2", "--guidance", "must be 0 or more"),
            ("plan a.yaml --steps 0", "--steps", "0 is not in 1.."),
            ("data stats a --jobs 0", "--jobs", "1 or more"),
            ("data pack a.yaml --jobs 0", "--jobs", "1 or more"),
            ("data encode a.yaml --jobs 0", "--jobs", "1 or more"),
            ("data inspect a --model m --max-tokens 0", "--max-tokens", "1 or more"),
            ("data stats a --format jsonl", "--format", "expected one of `auto`"),
            ("evaluate m a --format jsonl", "--format", "expected one of `auto`"),
        ] {
            let words: Vec<OsString> = format!("loongforge {line}").split(' ').map(OsString::from).collect();
            let error = parse_words(&words).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.starts_with("error: invalid value '"), "{line}: {error}");
            assert!(error.contains(&format!("for '{option} ")) && error.contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn keys_are_named_where_a_command_takes_them() {
        let takes = |line: &str| !unknown_options(&line.split(' ').map(OsString::from).collect::<Vec<_>>()).is_empty();
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
        let theirs = "import -- lerobot-train --policy.type=pi05 --steps 3 --dataset.repo_id a/b";
        assert_eq!(of(theirs), theirs);
    }
}
