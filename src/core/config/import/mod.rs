//! Translates what other trainers are given: the YAML of LLaMA-Factory, axolotl, TRL, VeOmni, ms-swift and ai-toolkit, the TOML of
//! torchtitan and musubi-tuner, command lines of LLaMA-Factory, TRL, VeOmni, ms-swift, torchtitan, lerobot, DiffSynth-Studio and musubi-tuner, the
//! `train_config.json` of lerobot, and the launch scripts of Megatron-LM and LoongForge. Every key and option of theirs is accounted for.
//! Nothing is run.

mod ai_toolkit;
#[cfg(test)]
mod ai_toolkit_tests;
mod axolotl;
mod axolotl_sets;
mod command;
mod deepspeed;
#[cfg(test)]
mod defaults_tests;
mod diffsynth;
mod diffsynth_model;
#[cfg(test)]
mod diffsynth_tests;
mod flags;
mod held_out;
mod hub;
mod launcher;
mod lerobot;
mod lerobot_policy;
mod lerobot_rates;
#[cfg(test)]
mod lerobot_tests;
mod llama_data;
mod llama_factory;
mod llama_parts;
mod megatron;
mod ms_swift;
mod ms_swift_media;
mod ms_swift_sets;
#[cfg(test)]
mod ms_swift_tests;
mod ms_swift_train;
mod musubi;
mod musubi_data;
mod musubi_levels;
#[cfg(test)]
mod musubi_tests;
mod musubi_train;
mod sheet;
mod shell;
#[cfg(test)]
mod shell_tests;
#[cfg(test)]
mod tests;
mod toml;
mod torchtitan;
mod torchtitan_layout;
#[cfg(test)]
mod torchtitan_tests;
mod trainer;
#[cfg(test)]
mod trainer_tests;
mod trl;
mod trl_loss;
mod trl_mixture;
mod variables;
mod veomni;
mod veomni_model;
#[cfg(test)]
mod veomni_tests;
mod veomni_train;

use super::shape::SCHEMA;
use super::yaml;
use serde_json::{Map, Value};

use command::{Trainer, Training};
use flags::Flags;
use sheet::Sheet;
pub use sheet::{Fate, KeyFate};

/// The translation of a config or a launch script of another trainer.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The trainer that it was written for.
    pub from: &'static str,
    /// The YAML of a run.
    pub yaml: String,
    /// Each key of theirs, and what became of it; in the order of their names.
    pub keys: Vec<KeyFate>,
    /// Facts that no key shows and that the user should know, a sentence each.
    pub notes: Vec<&'static str>,
}

/// The reason why a text is not translated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    #[error("not valid YAML: {0}")]
    Yaml(String),
    #[error("not valid TOML: {0}")]
    Toml(String),
    #[error("it is not a YAML config, and cannot be read as a launch script: {0}")]
    Script(String),
    #[error("the command is not supported: {0}")]
    Command(String),
    #[error("{0}")]
    Method(String),
    #[error(
        "it is a Python program, which is not read: write its arguments as the command of a trainer's script \
         (`loongforge import -- trl sft --model_name_or_path MODEL --dataset_name DATA --max_length 4096`), or as YAML of \
         the same names (`max_length: 4096`), and import that"
    )]
    Python,
    #[error(
        "unknown trainer: LLaMA-Factory's and TRL's configs have `model_name_or_path`, axolotl's `base_model`, \
         lerobot's `policy` and `dataset`, ms-swift's `model`, `dataset` and a key such as `tuner_type`, VeOmni's \
         `train` and `model.model_path` or `data.train_path`, ai-toolkit's `job` and `config.process`; the keys found \
         are {0}"
    )]
    Unknown(String),
}

/// Translates a config or a launch script. Of what it names only configs are read: those of DeepSpeed, a model's `config.json`,
/// LLaMA-Factory's `dataset_info.json`, and those that commands of LLaMA-Factory, ms-swift, VeOmni, torchtitan and musubi-tuner name.
///
/// ```
/// let text = "model_name_or_path: org/model\nstage: sft\ndataset: a\nlearning_rate: 1e-4\n";
/// let imported = loongforge_core::config::import(text).unwrap();
/// assert_eq!((imported.from, imported.keys.len()), ("LLaMA-Factory", 4));
/// assert!(imported.yaml.contains("load: org/model"));
/// ```
///
/// # Errors
/// It is neither, or of no trainer that is known here.
pub fn import(text: &str) -> Result<Imported, ImportError> {
    let found = match text.starts_with("#!") {
        true => Err(String::new()),
        false => yaml::read_yaml(text),
    };
    match found {
        Ok(Value::Object(fields)) => of_yaml(fields),
        // A command is a scalar of YAML, or none at all.
        found => {
            let training = command::find(text);
            let is_named = training.as_ref().err().is_some_and(|why| command::names(why));
            let is_plain = !is_named && !text.contains("--");
            match (training, found) {
                (Ok(training), _) => of_command(training),
                (Err(_), _) if !is_named && is_python(text) => Err(ImportError::Python),
                (Err(_), _) if is_toml(text) => of_toml(text),
                (Err(_), Err(error)) if is_plain && !error.is_empty() => Err(ImportError::Yaml(error)),
                (Err(_), Ok(_)) if is_plain => Err(ImportError::Unknown("none".to_owned())),
                (Err(error), _) => Err(ImportError::Script(error)),
            }
        }
    }
}

const TOML: &str = "of TOML files only torchtitan's are translated, which have `training` and `model` or `job`, and \
                    musubi-tuner's, which have `dit` and `dataset_config`; `loongforge init` writes a first config, \
                    and `loongforge check` answers keys of others with ours";
const SETS: &str = "it names the data sets of a trainer: import the command that trains, whose --dataset_config names \
                    this file (of musubi-tuner's scripts, those of Wan and Qwen-Image are translated)";

/// Returns whether a text is a program in Python: a line of it imports a module, and none says that a shell runs it.
fn is_python(text: &str) -> bool {
    let is_module =
        |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "_.,".contains(c)) && !name.starts_with(',');
    let imports = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        match [words.next(), words.next(), words.next()] {
            [Some("from"), Some(module), Some("import")] | [Some("import"), Some(module), _] => is_module(module),
            _ => false,
        }
    };
    let of_shell = text.lines().next().is_some_and(|line| line.starts_with("#!") && !line.contains("python"));
    !of_shell && text.lines().any(imports)
}

/// Returns whether a text that is no map of YAML has values of TOML, with sections or alone.
fn is_toml(text: &str) -> bool {
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    let section = |line: &str| {
        let line = line.trim();
        let listed = line.strip_prefix("[[").and_then(|line| line.strip_suffix("]]"));
        listed.or_else(|| line.strip_prefix('[')?.strip_suffix(']')).is_some_and(is_name)
    };
    let value = |line: &str| line.split_once(" = ").is_some_and(|(name, _)| is_name(name.trim()));
    let mut lines = text.lines().filter(|line| !line.trim().is_empty() && !line.trim().starts_with('#'));
    text.lines().any(value) && (text.lines().any(section) || lines.all(value))
}

/// Translates the words of a command, as a shell has read them.
///
/// # Errors
/// It is no command of a trainer that is known here.
pub fn import_words(words: &[String]) -> Result<Imported, ImportError> {
    let words: Vec<shell::Word> = words.iter().map(shell::Word::known).collect();
    match command::of_words(&words) {
        Some(training) => of_command(training),
        None => {
            let why = command::not_translated(&words).unwrap_or_else(|| command::NEITHER.to_owned());
            Err(ImportError::Command(why))
        }
    }
}

fn of_yaml(fields: Map<String, Value>) -> Result<Imported, ImportError> {
    if let Some(keys) = ai_toolkit::flat(&fields) {
        return match ai_toolkit::refused(&keys) {
            Some(why) => Err(ImportError::Method(why)),
            None => Ok(finish("ai-toolkit", Flags::of_fields(keys), ai_toolkit::read)),
        };
    }
    let has = |key: &str| fields.contains_key(key);
    let is_trl = has("model_name_or_path") && !llama_factory::OWN.iter().any(|key| has(key));
    if let Some(key) = trl::OF_REWARDS.iter().find(|key| is_trl && has(key)) {
        return Err(ImportError::Method(format!(
            "`{key}` belongs to TRL's reinforcement learning methods (grpo, rloo), which have no counterpart: only \
             sft, dpo, orpo, cpo and kto are translated"
        )));
    }
    let (from, read): (_, fn(&mut Sheet)) = match () {
        () if is_trl && trl::OWN.iter().any(|key| has(key)) => {
            // The command says which method; a config alone shows it by its keys.
            let is_pairs = trl::OF_PAIRS.iter().any(|key| has(key));
            let is_labeled = trl::OF_LABELS.iter().any(|key| has(key));
            let method = if is_labeled {
                "kto"
            } else if is_pairs {
                "dpo"
            } else {
                "sft"
            };
            return of_trl(method, Flags::of_fields(fields));
        }
        () if has("model_name_or_path") => {
            if let Some(why) = llama_factory::refused(&fields) {
                return Err(ImportError::Method(why));
            }
            ("LLaMA-Factory", llama_factory::read)
        }
        () if lerobot::is_config(&fields) => return of_lerobot(lerobot::flat(fields), lerobot::file),
        () if ms_swift::is_config(&fields) => {
            let method = if has("rlhf_type") { "rlhf" } else { "sft" };
            return of_swift(method, ms_swift::renamed(Flags::of_fields(fields)));
        }
        () if veomni::is_config(&fields) => return of_veomni("", veomni::flat(fields)),
        () if has("base_model") => {
            if let Some(method) = axolotl::refused(&fields) {
                return Err(ImportError::Method(format!(
                    "axolotl's `{method}` has no counterpart: only fine-tuning, also of lora and qlora, pretraining \
                     and `rl` of dpo, ipo, orpo, simpo and kto are translated"
                )));
            }
            ("axolotl", axolotl::read)
        }
        () if has("model") && (has("train") || has("stages")) && fields.keys().all(|key| is_own(key)) => {
            let why = "it is a config of this program already: `loongforge check` checks it";
            return Err(ImportError::Method(why.to_owned()));
        }
        () => {
            let keys: Vec<&str> = fields.keys().take(12).map(String::as_str).collect();
            return Err(ImportError::Unknown(keys.join(", ")));
        }
    };
    let mut sheet = Sheet::new(fields);
    read(&mut sheet);
    sheet.keep_rounded_whole();
    let (config, keys, notes) = sheet.finish();
    Ok(Imported { from, yaml: yaml::dump(&config), keys, notes })
}

/// Returns the trainer that a file was written for which has no key of ours, if it is one whose files are translated.
pub(super) fn trainer(text: &str) -> Option<&'static str> {
    // That of ms-swift is a name.
    let is_ours = |key: &str, value: &Value| is_own(key) && (key != "model" || value.is_object());
    match yaml::read_yaml(text) {
        Ok(Value::Object(fields)) if fields.iter().any(|(key, value)| is_ours(key, value)) => None,
        _ => import(text).ok().map(|imported| imported.from),
    }
}

/// Returns whether this is a key at the top of a config of ours.
fn is_own(key: &str) -> bool {
    key == "defaults" || key == "stages" || SCHEMA["properties"].get(key).is_some()
}

fn of_command(training: Training) -> Result<Imported, ImportError> {
    let Training { of, flags, is_last_of_several } = training;
    let mut imported = match of {
        Trainer::Factory => match llama_factory::refused(&flags.fields) {
            Some(why) => Err(ImportError::Method(why)),
            None => Ok(finish("LLaMA-Factory", flags, llama_factory::read)),
        },
        Trainer::Trl { method } => of_trl(&method, flags),
        Trainer::Swift { method } => of_swift(&method, flags),
        Trainer::Torchtitan => of_torchtitan(flags),
        Trainer::Veomni { program } => of_veomni(&program, flags),
        Trainer::Musubi { program } => of_musubi(&program, flags),
        Trainer::Lerobot => of_lerobot(lerobot::texts(flags), lerobot::command),
        Trainer::DiffSynth => match diffsynth::refused(&flags.fields) {
            Some(why) => Err(ImportError::Method(why)),
            None => Ok(finish("DiffSynth-Studio", flags, diffsynth::read)),
        },
        Trainer::Megatron => Ok(finish("Megatron", flags, megatron::read)),
    }?;
    if is_last_of_several {
        imported.notes.push(
            "the script has several training commands and only the last is translated: import the others one by one",
        );
    }
    Ok(imported)
}

fn of_lerobot(flags: Flags, read: fn(&mut Sheet)) -> Result<Imported, ImportError> {
    match lerobot_policy::refused(&flags.fields) {
        Some(why) => Err(ImportError::Method(why)),
        None => Ok(finish("lerobot", flags, read)),
    }
}

fn of_swift(method: &str, flags: Flags) -> Result<Imported, ImportError> {
    let read: fn(&mut Sheet) = match method {
        "rlhf" => ms_swift::rlhf,
        "pt" => ms_swift::pt,
        _ => ms_swift::sft,
    };
    match ms_swift::refused(&flags.fields) {
        Some(why) => Err(ImportError::Method(why)),
        None => Ok(finish("ms-swift", flags, read)),
    }
}

fn of_toml(text: &str) -> Result<Imported, ImportError> {
    let fields = toml::read(text).map_err(ImportError::Toml)?;
    match () {
        () if torchtitan::is_config(&fields) => of_torchtitan(torchtitan::renamed(Flags::of_fields(fields))),
        () if musubi::is_config(&fields) => of_musubi("", musubi::of_fields(fields)),
        () if fields.get("datasets").is_some_and(Value::is_array) => Err(ImportError::Method(SETS.to_owned())),
        () => Err(ImportError::Method(TOML.to_owned())),
    }
}

fn of_musubi(program: &str, flags: Flags) -> Result<Imported, ImportError> {
    let read = musubi::reader(program, &flags.fields).map_err(ImportError::Method)?;
    Ok(finish("musubi-tuner", flags, read))
}

fn of_torchtitan(flags: Flags) -> Result<Imported, ImportError> {
    match torchtitan::refused(&flags.fields) {
        Some(why) => Err(ImportError::Method(why)),
        None => Ok(finish("torchtitan", flags, torchtitan::read)),
    }
}

fn of_veomni(program: &str, flags: Flags) -> Result<Imported, ImportError> {
    match veomni::refused(program, &flags.fields) {
        Some(why) => Err(ImportError::Method(why)),
        None => Ok(finish("VeOmni", flags, veomni::read)),
    }
}

fn of_trl(method: &str, flags: Flags) -> Result<Imported, ImportError> {
    let read: fn(&mut Sheet) = match method {
        "sft" => trl::sft,
        "dpo" => trl::dpo,
        "orpo" => trl::orpo,
        "cpo" => trl::cpo,
        "kto" => trl::kto,
        other => {
            return Err(ImportError::Method(format!(
                "TRL's method `{other}` has no counterpart: only sft, dpo, orpo, cpo and kto are translated"
            )));
        }
    };
    Ok(finish("TRL", flags, read))
}

fn finish(from: &'static str, mut flags: Flags, read: fn(&mut Sheet)) -> Imported {
    let mut sheet = Sheet::new(std::mem::take(&mut flags.fields)).unsaid(flags.unsaid());
    read(&mut sheet);
    sheet.keep_rounded_whole();
    let (config, keys, notes) = sheet.finish();
    Imported { from, yaml: yaml::dump(&config), keys: flags.account(keys), notes }
}
