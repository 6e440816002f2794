//! The command of a launch script that trains, and whose it is.

use super::flags::{Flags, keys_of_file, split_config};
use super::shell::{self, Word};
use super::{ms_swift, musubi, torchtitan, veomni};

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
const NO_COMMAND: &str = "it contains no training command";
/// The commands that are read, for error messages.
pub(super) const NEITHER: &str = "expected `trl METHOD …`, `swift sft …`, `llamafactory-cli train …` or \
                                  `lerobot-train …` with options, or a script with torchtitan's, VeOmni's, \
                                  DiffSynth-Studio's, musubi-tuner's or Megatron's options";
/// Options that only Megatron's and LoongForge's programs that train have; those that convert checkpoints, evaluate or answer have none
/// of them.
const MEGATRON: [&str; 5] =
    ["global_batch_size", "train_iters", "train_samples", "per_device_batch_size", "lr_decay_style"];

/// Scripts of openpi that train, before the name of a config.
const OPENPI: [&str; 2] = ["train.py", "train_pytorch.py"];

/// Ends of the names of musubi-tuner's scripts that encode data.
const CACHES: [&str; 2] = ["_cache_latents", "_cache_text_encoder_outputs"];

/// The names of lerobot's program that trains: its command, its file and its module, of old versions too.
const LEROBOT: [&str; 5] = [
    "lerobot-train",
    "lerobot_train.py",
    "lerobot.scripts.lerobot_train",
    "lerobot.scripts.train",
    "lerobot/scripts/train.py",
];

/// A command that trains.
pub(super) struct Training {
    pub of: Trainer,
    pub flags: Flags,
    /// The script has other commands that train, before this one.
    pub is_last_of_several: bool,
}

/// The trainer that a command calls.
pub(super) enum Trainer {
    Factory,
    Trl { method: String },
    Lerobot,
    DiffSynth,
    Swift { method: String },
    Torchtitan,
    Veomni { program: String },
    Musubi { program: String },
    Megatron,
}

/// Finds the command in a script.
///
/// # Errors
/// The script cannot be read, or no command in it trains.
pub(super) fn find(text: &str) -> Result<Training, String> {
    let script = shell::read(text)?;
    let mut found: Vec<Training> = script.commands.iter().filter_map(|words| of_words(words)).collect();
    let is_last_of_several = found.len() > 1;
    let Some(mut training) = found.pop() else {
        let why = script.commands.iter().find_map(|words| not_translated(words));
        return Err(format!("{NO_COMMAND}: {}", why.unwrap_or_else(|| NEITHER.to_owned())));
    };
    training.flags.under_conditions(&script.conditional);
    Ok(Training { is_last_of_several, ..training })
}

/// Returns whether the reason why nothing was found names a command.
pub(super) fn names(why: &str) -> bool {
    why.starts_with(NO_COMMAND) && !why.ends_with(NEITHER)
}

/// Returns a message about a command of another trainer that is not translated; `None` for other words.
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
        return Some(format!("import the config that it names: `loongforge import {}`", config.text));
    }
    let of_lerobot = words.iter().any(|word| is_lerobot(&word.text));
    if let Some(file) = of_lerobot.then(|| config_path(words)).flatten() {
        return Some(format!("import the config that it names: `loongforge import {file}`"));
    }
    if has_option(&["--pretrained_model_name_or_path"])
        && let Some(script) = words.iter().map(|word| name(&word.text)).find(|name| is_diffusers(name))
    {
        return Some(format!(
            "the diffusion script `{script}` is not translated; the diffusion models that are trained here are Wan and \
             Qwen-Image, and docs/diffusion.md has a first config"
        ));
    }
    let of_openpi = |pair: &&[Word]| OPENPI.contains(&name(&pair[0].text)) && pair[1].text.starts_with("pi0");
    if let Some([_, config]) = words.windows(2).find(of_openpi) {
        return Some(format!(
            "openpi's config `{}` is Python code, which is not read; \"From openpi\" in docs/policies.md has that of \
             pi05_libero, and says what its settings are called here",
            config.text
        ));
    }
    if words.iter().any(|word| CACHES.iter().any(|end| word.text.trim_end_matches(".py").ends_with(end))) {
        let why = "it encodes data ahead of training, as `loongforge data encode` does: import the command that trains";
        return Some(why.to_owned());
    }
    let of_titan = has_option(&["--job.config_file"]);
    of_titan.then(|| "import torchtitan's config that it names: `loongforge import FILE.toml`".to_owned())
}

/// Returns whether a file is named like the example scripts of diffusers.
fn is_diffusers(file: &str) -> bool {
    file.starts_with("train_") && file.ends_with(".py")
}

/// Returns whether a word is lerobot's program that trains.
fn is_lerobot(word: &str) -> bool {
    LEROBOT.iter().any(|called| word.strip_suffix(called).is_some_and(|rest| rest.is_empty() || rest.ends_with('/')))
}

/// Returns the file that a command of lerobot names in place of options.
fn config_path(words: &[Word]) -> Option<&str> {
    let at = words.iter().position(|word| word.text.starts_with("--config_path"))?;
    words[at].text.split_once('=').map(|(_, file)| file).or_else(|| words.get(at + 1).map(|next| next.text.as_str()))
}

/// Returns the last part of a path.
fn name(text: &str) -> &str {
    text.rsplit('/').next().unwrap_or(text)
}

/// Returns whether a word is a Python file, or a module that trains.
fn is_file(word: &str) -> bool {
    stem(word).is_some() || is_lerobot(word) || ms_swift::called(word).is_some() || musubi::is_module(word)
}

/// Returns the training that the words of a command begin.
pub(super) fn of_words(words: &[Word]) -> Option<Training> {
    let is_option = |word: &&Word| word.text.starts_with("--");
    // A path may end like a program: what follows tells.
    let is_program = |at: &usize| {
        let next = words.get(at + 1).map_or("", |next| next.text.as_str());
        match name(&words[*at].text) {
            "llamafactory-cli" => next == "train",
            "swift" => ms_swift::COMMANDS.contains(&next),
            "trl" => METHODS.contains(&next),
            _ => is_file(&words[*at].text),
        }
    };
    let of_titan = |word: &Word| torchtitan::PROGRAMS.contains(&name(&word.text));
    let program = (0..words.len()).find(is_program).or_else(|| words.iter().position(of_titan));
    let program = program.filter(|at| words[..*at].iter().all(|word| is_option(&word) || !word.text.contains(' ')))?;
    let called = &words[program].text;
    let training = |of: Trainer, flags: Flags| Some(Training { of, flags, is_last_of_several: false });
    if name(called) == "llamafactory-cli" {
        words.get(program + 1).filter(|word| word.text == "train")?;
        let (config, options) = split_config(&words[program + 2..], &[".yaml", ".yml", ".json"]);
        let flags = match config {
            Some(path) => Flags::of_assignments(options).with_file(path, keys_of_file(path).map(Flags::of_fields)),
            None => Flags::of(options),
        };
        return training(Trainer::Factory, flags).filter(|it| it.flags.fields.contains_key("model_name_or_path"));
    }
    if name(called) == "trl" {
        let method = words.get(program + 1).filter(|word| METHODS.contains(&word.text.as_str()))?;
        return training(Trainer::Trl { method: method.text.clone() }, Flags::of(&words[program + 2..]));
    }
    // Its command, and the file of it that launchers start.
    let of_swift = match name(called) {
        "swift" => words.get(program + 1).map(|word| (word.text.as_str(), program + 2)),
        _ => ms_swift::called(called).map(|method| (method, program + 1)),
    };
    if let Some((method, behind)) = of_swift {
        let flags = ms_swift::command(method, &words[..program], &words[behind..])?;
        return training(Trainer::Swift { method: method.to_owned() }, flags);
    }
    if let Some(flags) = musubi::command(called, &words[..program], &words[program + 1..]) {
        return training(Trainer::Musubi { program: called.clone() }, flags);
    }
    if let Some(flags) = veomni::command(called, &words[..program], &words[program + 1..]) {
        return training(Trainer::Veomni { program: called.clone() }, flags);
    }
    if let Some(flags) = torchtitan::command(called, &words[..program], &words[program + 1..]) {
        return training(Trainer::Torchtitan, flags);
    }
    // The launcher's options count as well: how many processes there are.
    let flags = Flags::of_command(&words[..program], &words[program + 1..]);
    let unsaid = flags.unsaid();
    let has = |name: &str| flags.fields.contains_key(name) || unsaid.contains(name);
    let is_factory = ["stage", "finetuning_type"].iter().any(|key| flags.fields.contains_key(*key));
    let names_model = flags.fields.contains_key("model_name_or_path");
    let method = stem(called).and_then(method).filter(|_| names_model);
    let of = match method {
        _ if is_lerobot(called) => ["dataset.repo_id", "dataset.root"].into_iter().any(has).then_some(Trainer::Lerobot),
        _ if is_factory && names_model => Some(Trainer::Factory),
        Some(method) => Some(Trainer::Trl { method: method.to_owned() }),
        _ if has("dataset_base_path") && ["model_paths", "model_id_with_origin_paths"].into_iter().any(has) => {
            Some(Trainer::DiffSynth)
        }
        None => MEGATRON.into_iter().any(has).then_some(Trainer::Megatron),
    };
    training(of?, flags)
}

/// Returns the method of one of TRL's scripts: `sft_vlm` is one of `sft`.
fn method(stem: &str) -> Option<&'static str> {
    // Answers of the model under training are compared: another method, of whose two names this one begins with that of another.
    if stem == "dpo_online" {
        return Some("online_dpo");
    }
    let is = |method: &&str| stem.strip_prefix(method).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
    METHODS.into_iter().find(is)
}

/// Returns the name of a Python file, or of a module of TRL's scripts.
fn stem(word: &str) -> Option<&str> {
    match word.strip_prefix("trl.scripts.") {
        Some(module) => Some(module),
        None => word.strip_suffix(".py")?.rsplit('/').next(),
    }
}
