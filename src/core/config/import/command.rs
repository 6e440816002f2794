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
/// Options that only Megatron's and LoongForge's programs have.
const MEGATRON: [&str; 6] = [
    "micro_batch_size",
    "global_batch_size",
    "tensor_model_parallel_size",
    "train_iters",
    "per_device_batch_size",
    "lr_decay_style",
];

/// A command that trains.
pub(super) enum Training {
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
    let mut training =
        found.ok_or("no command in it trains: neither `trl METHOD …` nor a script with Megatron's options")?;
    let (Training::Trl { flags, .. } | Training::Megatron { flags }) = &mut training;
    flags.under_conditions(&script.conditional);
    Ok(training)
}

/// The training that the words of a command begin.
pub(super) fn of_words(words: &[Word]) -> Option<Training> {
    let is_option = |word: &&Word| word.text.starts_with("--");
    let program =
        words.iter().position(|word| stem(&word.text).is_some() || word.text.rsplit('/').next() == Some("trl"));
    let program = program.filter(|at| words[..*at].iter().all(|word| is_option(&word) || !word.text.contains(' ')))?;
    let name = &words[program].text;
    if name.rsplit('/').next() == Some("trl") {
        let method = words.get(program + 1).filter(|word| METHODS.contains(&word.text.as_str()))?;
        return Some(Training::Trl { method: method.text.clone(), flags: Flags::of(&words[program + 2..]) });
    }
    // The launcher's options count as well: how many processes there are.
    let launcher = words[..program].iter().skip_while(|word| !is_option(word));
    let all: Vec<Word> = launcher.chain(&words[program + 1..]).cloned().collect();
    let flags = Flags::of(&all);
    if let Some(method) = stem(name).and_then(method).filter(|_| flags.fields.contains_key("model_name_or_path")) {
        return Some(Training::Trl { method: method.to_owned(), flags });
    }
    MEGATRON.iter().any(|name| flags.fields.contains_key(*name)).then_some(Training::Megatron { flags })
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
