//! The options of a command as keys with values, and what a script does not say of them.

use super::sheet::{Fate, KeyFate};
use super::shell::{Conditional, Word};
use crate::config::yaml;
use crate::files;
use serde_json::{Map, Number, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const NOT_SAID: &str = "its value is not in the script: it comes from the environment, an argument or a command";
const NEVER: &str = "the script adds it under a condition that does not hold";
const PERHAPS: &str = "the script adds it under a condition that cannot be evaluated: set it if it applies";
const NO_OPTION: &str = "it is not an option";

/// The options of a command.
#[derive(Default)]
pub(super) struct Flags {
    /// The values, by their names with underscores.
    pub fields: Map<String, Value>,
    /// The spelling of each name in the command.
    written: BTreeMap<String, String>,
    /// The options that are reported beside those that are read.
    told: Vec<KeyFate>,
}

impl Flags {
    /// Keys that no command line has.
    pub fn of_fields(fields: Map<String, Value>) -> Self {
        Self { fields, ..Self::default() }
    }

    /// Reads the options among words; a later one replaces an earlier one.
    pub fn of(words: &[Word]) -> Self {
        let mut flags = Self::default();
        let mut words = words.iter().peekable();
        while let Some(word) = words.next() {
            let Some(name) = option(&word.text) else {
                flags.tell(&word.text, "", Fate::Missing(NO_OPTION));
                continue;
            };
            let (name, own) = name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value)));
            let mut values = Vec::new();
            if let Some(own) = own {
                values.push(Word { text: own.to_owned(), ..word.clone() });
            }
            while own.is_none()
                && let Some(value) = words.next_if(|next| option(&next.text).is_none())
            {
                values.push(value.clone());
            }
            flags.add(name, &values);
        }
        flags
    }

    /// Reads words `NAME=VALUE`; a later one replaces an earlier one.
    pub fn of_assignments(words: &[Word]) -> Self {
        let mut flags = Self::default();
        for word in words {
            match word.text.split_once('=') {
                None => flags.tell(&word.text, "", Fate::Missing(NO_OPTION)),
                Some((name, value)) if !word.is_said() => flags.tell(name, value, Fate::Missing(NOT_SAID)),
                Some((name, value)) => {
                    flags.fields.insert(name.to_owned(), scalar(value));
                }
            }
        }
        flags
    }

    /// Reads the options behind a program, and those of a launcher before it.
    pub fn of_command(before: &[Word], after: &[Word]) -> Self {
        let launcher = before.iter().skip_while(|word| !word.text.starts_with("--"));
        let all: Vec<Word> = launcher.chain(after).filter(|word| word.text != "-m").cloned().collect();
        Self::of(&all)
    }

    fn add(&mut self, name: &str, values: &[Word]) {
        let key = name.replace('-', "_");
        let text: Vec<&str> = values.iter().map(|value| value.text.as_str()).collect();
        if values.iter().any(|value| !value.is_said()) {
            self.tell(&format!("--{name}"), &text.join(" "), Fate::Missing(NOT_SAID));
            return;
        }
        let value = match text.as_slice() {
            [] => Value::Bool(true),
            [one] => scalar(one),
            many => many.iter().map(|text| scalar(text)).collect(),
        };
        self.written.insert(key.clone(), format!("--{name}"));
        self.fields.insert(key, value);
    }

    /// Adds a variable before a command, `NAME=value`, if its name is among these.
    pub fn variable(&mut self, names: &[&str], word: &Word) {
        let Some((name, value)) = word.text.split_once('=').filter(|(name, _)| names.contains(name)) else { return };
        if !word.is_said() {
            self.tell(name, value, Fate::Missing(NOT_SAID));
        } else if !value.is_empty() {
            self.fields.insert(name.to_owned(), scalar(value));
        }
    }

    /// Reads a key under the name that later versions have, unless that is there as well; it is told as it is written.
    pub fn rename(&mut self, old: &str, new: &str) {
        if self.fields.contains_key(new) {
            return;
        }
        let Some(value) = self.fields.remove(old) else { return };
        let written = self.written.remove(old).unwrap_or_else(|| old.to_owned());
        self.written.insert(new.to_owned(), written);
        self.fields.insert(new.to_owned(), value);
    }

    /// Adds the keys of the config that a command names, except those that it has itself; `None`: it cannot be read here.
    pub fn with_file(mut self, path: &str, file: Option<Flags>) -> Self {
        let Some(mut file) = file else {
            let why = "this config cannot be read here: import it where it is, or by itself, and set these options";
            self.tell(path, "", Fate::Missing(why));
            return self;
        };
        let why = "its keys are translated, except those that an option replaces";
        self.tell(path, "", Fate::Settled(why));
        for (key, value) in std::mem::take(&mut file.fields) {
            if self.fields.contains_key(&key) {
                continue;
            }
            if let Some(written) = file.written.remove(&key) {
                self.written.insert(key.clone(), written);
            }
            self.fields.insert(key, value);
        }
        self
    }

    /// Records the fate of something that is none of the keys that are read.
    pub fn tell(&mut self, key: &str, value: &str, fate: Fate) {
        self.told.push(KeyFate { key: key.to_owned(), value: value.to_owned(), fate });
    }

    /// Adds options that a script has under conditions.
    pub fn under_conditions(&mut self, conditional: &[Conditional]) {
        for Conditional { option, is_off } in conditional {
            let fate = if *is_off { Fate::Settled(NEVER) } else { Fate::Missing(PERHAPS) };
            self.tell(option, "", fate);
        }
    }

    /// Returns the keys of options that are there, or may be, without a value that is known; those of variables in small letters.
    pub fn unsaid(&self) -> BTreeSet<String> {
        let is_unsaid = |key: &&KeyFate| matches!(key.fate, Fate::Missing(NOT_SAID | PERHAPS));
        let unsaid = self.told.iter().filter(is_unsaid);
        unsaid.map(|key| key.key.trim_start_matches('-').replace('-', "_").to_lowercase()).collect()
    }

    /// Returns all that became of the command's options, in the order of their names as they are written.
    pub fn account(self, keys: Vec<KeyFate>) -> Vec<KeyFate> {
        let named = |key: KeyFate| KeyFate { key: self.written.get(&key.key).cloned().unwrap_or(key.key), ..key };
        let mut all: Vec<KeyFate> = keys.into_iter().map(named).chain(self.told).collect();
        all.sort_by(|one, other| one.key.cmp(&other.key));
        all
    }
}

/// Returns the config that may be the first of the words behind a program, by the ends of its name, and the words behind it.
pub(super) fn split_config<'a>(words: &'a [Word], ends: &[&str]) -> (Option<&'a str>, &'a [Word]) {
    match words.split_first() {
        Some((first, rest)) if ends.iter().any(|end| first.text.ends_with(end)) => (Some(first.text.as_str()), rest),
        _ => (None, words),
    }
}

/// Returns the keys of a file of YAML or JSON; `None`: it cannot be read here.
pub(super) fn keys_of_file(path: &str) -> Option<Map<String, Value>> {
    match yaml::read_yaml(&files::read_text(Path::new(path)).ok()?) {
        Ok(Value::Object(fields)) => Some(fields),
        _ => None,
    }
}

/// Returns the name behind the dashes.
fn option(text: &str) -> Option<&str> {
    text.strip_prefix("--").filter(|name| name.starts_with(|c: char| c.is_ascii_alphabetic()))
}

/// Returns a value of the command line as it would stand in YAML.
fn scalar(text: &str) -> Value {
    let number = || {
        let is_number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
        let number = text.parse::<f64>().ok().filter(|_| is_number)?;
        Number::from_f64(number)
    };
    match text {
        "true" | "True" => Value::Bool(true),
        "false" | "False" => Value::Bool(false),
        _ => match text.parse::<i64>() {
            Ok(whole) => whole.into(),
            Err(_) => number().map_or_else(|| text.into(), Value::Number),
        },
    }
}
