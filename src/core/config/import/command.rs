//! The command of a launch script that trains, and whose it is.

use super::flags::Flags;
use super::shell::{self, Word};

/// Methods that TRL's command line and its scripts are called by.
pub(super) const METHODS: [&str; 23] = [
    "sft",
    "dpo",
    "orpo",
    "cpo",
    "kto",
    "reward",
    "grpo",
    "rloo",
    "ppo",
    "prm",
    "bco",
    "online_dpo",
    "distillation",
    "gkd",
    "gold",
    "gspo",
    "mpo",
    "nash_md",
    "sdft",
    "sdpo",
    "ssd",
    "tpo",
    "xpo",
];
const NO_COMMAND: &str = "no command in it trains";
/// Says which commands are read.
pub(super) const NEITHER: &str =
    "neither `trl METHOD …` nor `llamafactory-cli train …` with options, nor a script with Megatron's options";
/// Options that only Megatron's and LoongForge's programs that train have; those that convert checkpoints, evaluate or answer have none of
/// them.
const MEGATRON: [&str; 5] =
    ["global_batch_size", "train_iters", "train_samples", "per_device_batch_size", "lr_decay_style"];

/// A command that trains.
pub(super) enum Training {
    Factory { flags: Flags },
    Trl { method: String, flags: Flags },
    Megatron { flags: Flags },
}

/// Finds the command in a script.
///
/// # Errors
/// The script cannot be read, or no command in it trains.
pub(super) fn find(text: &str) -> Result<Training, String> {
    let script = shell::read(text)?;
    let found = script.commands.iter().rev().find_map(|words| of_words(words));
    let Some(mut training) = found else {
        let why = script.commands.iter().find_map(|words| not_translated(words));
        return Err(format!("{NO_COMMAND}: {}", why.unwrap_or_else(|| NEITHER.to_owned())));
    };
    let (Training::Factory { flags } | Training::Trl { flags, .. } | Training::Megatron { flags }) = &mut training;
    flags.under_conditions(&script.conditional);
    Ok(training)
}

/// Returns whether the reason why nothing was found names a command.
pub(super) fn names(why: &str) -> bool {
    why.starts_with(NO_COMMAND) && !why.ends_with(NEITHER)
}

/// Says what a command is that is of another trainer and not translated.
pub(super) fn not_translated(words: &[Word]) -> Option<String> {
    let has = |names: &[&str]| words.iter().any(|word| names.contains(&name(&word.text)));
    let has_option = |options: &[&str]| {
        let is_one = |text: &str| options.contains(&text.split('=').next().unwrap_or_default());
        words.iter().any(|word| is_one(&word.text))
    };
    let config = words.iter().find(|word| word.text.ends_with(".yaml") || word.text.ends_with(".yml"));
    if let Some(config) = config
        && has(&["axolotl", "axolotl.cli.train", "llamafactory-cli", "train.py", "train_bash.py"])
    {
        return Some(format!("the config that it names is what is translated: `loongforge import {}`", config.text));
    }
    if has(&["lerobot-train", "lerobot_train.py", "lerobot.scripts.train", "lerobot.scripts.lerobot_train"]) {
        return Some(
            "lerobot's commands are not translated: docs/policies.md has the keys of a policy's run".to_owned(),
        );
    }
    if has_option(&["--model_id_with_origin_paths", "--trainable_models", "--dataset_metadata_path"]) {
        let keys = "docs/diffusion.md has the keys of a diffusion model's run";
        return Some(format!("DiffSynth-Studio's commands are not translated: {keys}"));
    }
    has_option(&["--job.config_file"]).then(|| {
        "torchtitan's configs are not translated; `loongforge check` names our key for one of theirs".to_owned()
    })
}

/// The last part of a path.
fn name(text: &str) -> &str {
    text.rsplit('/').next().unwrap_or(text)
}

/// The training that the words of a command begin.
pub(super) fn of_words(words: &[Word]) -> Option<Training> {
    const PROGRAMS: [&str; 2] = ["llamafactory-cli", "trl"];
    let is_option = |word: &&Word| word.text.starts_with("--");
    let program = words.iter().position(|word| stem(&word.text).is_some() || PROGRAMS.contains(&name(&word.text)));
    let program = program.filter(|at| words[..*at].iter().all(|word| is_option(&word) || !word.text.contains(' ')))?;
    let called = &words[program].text;
    if name(called) == "llamafactory-cli" {
        words.get(program + 1).filter(|word| word.text == "train")?;
        let flags = Flags::of(&words[program + 2..]);
        return flags.fields.contains_key("model_name_or_path").then_some(Training::Factory { flags });
    }
    if name(called) == "trl" {
        let method = words.get(program + 1).filter(|word| METHODS.contains(&word.text.as_str()))?;
        return Some(Training::Trl { method: method.text.clone(), flags: Flags::of(&words[program + 2..]) });
    }
    // The launcher's options count as well: how many processes there are.
    let launcher = words[..program].iter().skip_while(|word| !is_option(word));
    let all: Vec<Word> = launcher.chain(&words[program + 1..]).cloned().collect();
    let flags = Flags::of(&all);
    let is_factory = ["stage", "finetuning_type"].iter().any(|key| flags.fields.contains_key(*key));
    if is_factory && flags.fields.contains_key("model_name_or_path") {
        return Some(Training::Factory { flags });
    }
    if let Some(method) = stem(called).and_then(method).filter(|_| flags.fields.contains_key("model_name_or_path")) {
        return Some(Training::Trl { method: method.to_owned(), flags });
    }
    let unsaid = flags.unsaid();
    let has = |name: &&str| flags.fields.contains_key(*name) || unsaid.contains(*name);
    MEGATRON.iter().any(has).then_some(Training::Megatron { flags })
}

/// The method of one of TRL's scripts: `sft_vlm` is one of `sft`.
fn method(stem: &str) -> Option<&'static str> {
    // Answers of the model under training are compared: another method, of whose two names this one begins with that of another.
    if stem == "dpo_online" {
        return Some("online_dpo");
    }
    let is = |method: &&str| stem.strip_prefix(method).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
    METHODS.into_iter().find(is)
}

/// The name of a Python file, or of a module of TRL's scripts.
fn stem(word: &str) -> Option<&str> {
    match word.strip_prefix("trl.scripts.") {
        Some(module) => Some(module),
        None => word.strip_suffix(".py")?.rsplit('/').next(),
    }
}
