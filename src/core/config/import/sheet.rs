//! The keys of a config that is translated, taken one by one, and the config that comes of them.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// The result of a key's translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is this key, or these keys, of ours.
    Arrived(String),
    /// The key needs no counterpart, for this reason.
    Settled(&'static str),
    /// The key has no counterpart; the text says why, or what to do about it.
    Missing(&'static str),
}

/// A key of another trainer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFate {
    pub key: String,
    /// Its value on one line.
    pub value: String,
    pub fate: Fate,
}

/// Keys that are still to be read, and what came of the others.
pub(super) struct Sheet {
    fields: Map<String, Value>,
    /// Keys that a number was looked for in, and that have something else.
    no_numbers: RefCell<BTreeSet<String>>,
    /// Keys that are there, and whose value is not said.
    unsaid: BTreeSet<String>,
    config: Value,
    keys: Vec<KeyFate>,
    notes: Vec<&'static str>,
}

const NO_COUNTERPART: &str = "no counterpart";
const NO_NUMBER: &str = "it must be a number";

impl Sheet {
    /// Begins with all keys untranslated; words such as `yes` become truth values where a key is a switch.
    pub fn new(mut fields: Map<String, Value>) -> Self {
        fields.iter_mut().for_each(|(key, value)| read_switch(key, value));
        let (no_numbers, unsaid) = Default::default();
        Self { fields, no_numbers, unsaid, config: json!({}), keys: Vec::new(), notes: Vec::new() }
    }

    /// Adds the keys that a script gives a value that it does not say, or gives under a condition that is not known.
    pub fn unsaid(self, unsaid: BTreeSet<String>) -> Self {
        Self { unsaid, ..self }
    }

    /// Returns whether a key is there without a value that is known.
    pub fn is_unsaid(&self, key: &str) -> bool {
        self.unsaid.contains(key)
    }

    /// Returns the config, each key in the order of their names, and what else should be known; what nobody has read is missing.
    pub fn finish(mut self) -> (Value, Vec<KeyFate>, Vec<&'static str>) {
        for (key, value) in std::mem::take(&mut self.fields) {
            // A key without a value says nothing.
            let fate = if value.is_null() { Fate::Settled("it has no value") } else { Fate::Missing(NO_COUNTERPART) };
            self.keys.push(KeyFate { key, value: brief(&value), fate });
        }
        self.keys.sort_by(|one, other| one.key.cmp(&other.key));
        (self.config, self.keys, self.notes)
    }

    /// Says something that no key of theirs says.
    pub fn note(&mut self, note: &'static str) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Reads every sample of all data sets once per epoch, as the original does.
    pub fn once_per_epoch(&mut self) {
        self.set("data.mix", "samples");
    }

    /// Returns whether a key of ours was set.
    pub fn has_set(&self, ours: &str) -> bool {
        self.ours(ours).is_some()
    }

    /// Returns the value of a key without taking it.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.fields.get(key).filter(|value| !value.is_null())
    }

    /// Returns whether a key is there without a value.
    pub fn is_null(&self, key: &str) -> bool {
        self.fields.get(key).is_some_and(Value::is_null)
    }

    /// Returns whether a key that is still unread has exactly this text.
    pub fn is(&self, key: &str, text: &str) -> bool {
        self.get(key).and_then(Value::as_str) == Some(text)
    }

    /// Returns whether a key that is still unread is `true`.
    pub fn is_true(&self, key: &str) -> bool {
        self.get(key) == Some(&Value::Bool(true))
    }

    /// Returns the keys that begin so.
    pub fn begin_with(&self, begin: &str) -> Vec<String> {
        self.fields.keys().filter(|key| key.starts_with(begin)).cloned().collect()
    }

    /// Takes a key; `None`: it is not there, or has no value.
    fn take(&mut self, key: &str) -> Option<Value> {
        self.get(key)?;
        self.fields.remove(key)
    }

    /// Records the fate of a key, or of a part of one, that was read in another way.
    pub fn tell(&mut self, key: &str, value: &Value, fate: Fate) {
        self.keys.push(KeyFate { key: key.to_owned(), value: brief(value), fate });
    }

    /// Sets a key of ours, which may be dotted.
    pub fn set(&mut self, ours: &str, value: impl Into<Value>) {
        let mut place = &mut self.config;
        for part in ours.split('.') {
            if !place.is_object() {
                *place = json!({});
            }
            place = &mut place[part];
        }
        *place = value.into();
    }

    /// Takes back a key of a section.
    pub fn unset(&mut self, section: &str, key: &str) {
        if let Some(section) = self.config.get_mut(section).and_then(Value::as_object_mut) {
            section.remove(key);
        }
    }

    /// Sets the names of fields in all data sets, and in held-out files.
    pub fn columns_of_sets(&mut self, columns: &Value) {
        if self.has_set("eval.path") {
            self.set("eval.columns", columns.clone());
        }
        let sets = self.config["data"]["train"].as_array_mut();
        sets.into_iter().flatten().for_each(|set| set["columns"] = columns.clone());
    }

    /// Gives held-out files the names of fields and the folder of media files that `set`, one of `data.train`, has.
    pub fn describe_held_out(&mut self, set: &Value) {
        for key in ["columns", "media_dir"] {
            if let Some(value) = set.get(key) {
                self.set(&format!("eval.{key}"), value.clone());
            }
        }
    }

    /// Limits each data set to its first samples, whose number is under `key`.
    pub fn limit_sets(&mut self, key: &str) {
        let most = self.number(key).filter(|most| *most >= 1.0 && most.fract() == 0.0).map(|most| most as u64);
        let sets = self.config.pointer_mut("/data/train").and_then(Value::as_array_mut);
        let (Some(most), Some(sets)) = (most, sets) else {
            return self.missing("set max_samples of each data set in data.train, a number from 1 on", &[key]);
        };
        for set in sets {
            let own = set["max_samples"].as_u64().unwrap_or(u64::MAX);
            set["max_samples"] = most.min(own).into();
        }
        self.arrived(key, "data.train[].max_samples");
    }

    /// Takes the system message of conversations that have none.
    pub fn default_system(&mut self, key: &str) {
        self.with(key, "data.system", |value| match value.as_str() {
            Some(text) if !text.is_empty() => Ok(value.clone()),
            _ => Err("it must be a text that is not empty"),
        });
    }

    /// Returns the value that a key of ours was set to.
    pub fn ours(&self, ours: &str) -> Option<&Value> {
        self.config.pointer(&format!("/{}", ours.replace('.', "/")))
    }

    /// Returns the number that a key of ours was set to.
    pub fn set_number(&self, ours: &str) -> Option<f64> {
        self.ours(ours)?.as_f64()
    }

    /// Returns the keys that nobody has read yet.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.fields
    }

    /// Returns the number of the run's steps, where it is set already.
    pub fn steps(&self) -> Option<u64> {
        self.config["train"]["steps"].as_u64()
    }

    /// Their key is ours, with the same value.
    pub fn copy(&mut self, theirs: &str, ours: &str) {
        self.with(theirs, ours, |value| Ok(value.clone()));
    }

    /// Copies the values of keys, each to a key of ours.
    pub fn copy_all(&mut self, keys: &[(&str, &str)]) {
        keys.iter().for_each(|(theirs, ours)| self.copy(theirs, ours));
    }

    /// Their key is ours, with another value; an error says why it is not.
    pub fn with(&mut self, theirs: &str, ours: &str, change: impl FnOnce(&Value) -> Result<Value, &'static str>) {
        let Some(value) = self.take(theirs) else { return };
        let fate = match change(&value) {
            Ok(changed) => {
                self.set(ours, changed);
                Fate::Arrived(ours.to_owned())
            }
            Err(why) => Fate::Missing(why),
        };
        self.tell(theirs, &value, fate);
    }

    /// Their key was read together with others, and is a part of ours. What was to be a number and is none was not read.
    pub fn arrived(&mut self, theirs: &str, ours: &str) {
        if let Some(value) = self.take(theirs) {
            let fate = match self.no_numbers.borrow().contains(theirs) {
                true => Fate::Missing(NO_NUMBER),
                false => Fate::Arrived(ours.to_owned()),
            };
            self.tell(theirs, &value, fate);
        }
    }

    /// Reports that these keys need no counterpart, for the reason `why`.
    pub fn settled(&mut self, why: &'static str, keys: &[&str]) {
        for key in keys {
            if let Some(value) = self.take(key) {
                self.tell(key, &value, Fate::Settled(why));
            }
        }
    }

    /// Reports that the keys that begin so need no counterpart, for the reason `why`.
    pub fn settled_all(&mut self, why: &'static str, begins: &[&str]) {
        let keys: Vec<String> = begins.iter().flat_map(|begin| self.begin_with(begin)).collect();
        self.settled(why, &keys.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Reports that these keys have no counterpart, unless they are off.
    pub fn missing(&mut self, why: &'static str, keys: &[&str]) {
        for key in keys {
            let Some(value) = self.take(key) else { continue };
            let is_off = value == Value::Bool(false) || value.as_f64() == Some(0.0) || value == "none" || value == "no";
            self.tell(key, &value, if is_off { Fate::Settled("it is off") } else { Fate::Missing(why) });
        }
    }

    /// Takes a number, also written as text, if the key has one.
    pub fn number(&self, key: &str) -> Option<f64> {
        let value = self.get(key)?;
        let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
        if number.is_none() {
            self.no_numbers.borrow_mut().insert(key.to_owned());
        }
        number
    }

    /// Copies learning rates and the like, which YAML takes for text where they are written `1e-5`.
    pub fn copy_number(&mut self, theirs: &str, ours: &str) {
        let number = self.number(theirs);
        self.with(theirs, ours, |value| match number {
            Some(_) if value.is_number() => Ok(value.clone()),
            Some(number) => Ok(number.into()),
            None => Err(NO_NUMBER),
        });
    }
}

/// Words that Python's YAML takes for truth values, and ours for texts. Names stay texts. Of a strategy `no` is a value, which Python's YAML
/// reads as `false` without quotes, and so writes again.
fn read_switch(key: &str, value: &mut Value) {
    let is_name = ["_strategy", "name", "path", "dir", "dataset"].iter().any(|part| key.contains(part));
    let switch = match value.as_str().map(str::to_lowercase).as_deref() {
        Some("yes" | "on" | "true") => true,
        Some("no" | "off" | "false") => false,
        _ if *value == Value::Bool(false) => false,
        _ => return,
    };
    if key.ends_with("_strategy") && !switch {
        *value = "no".into();
    } else if !is_name {
        *value = Value::Bool(switch);
    }
}

/// The remark on a number of samples that a data set may not have.
pub(super) const REPEATED: &str =
    "the original repeats samples of a data set that has fewer than it is to take; here each is read once per epoch";

/// Lets `set` have so many of its samples, chosen at random.
pub(super) fn take_random(set: &mut Value, count: u64) {
    set["max_samples"] = count.into();
    set["select"] = "random".into();
}

/// Returns the scheduler's name in transformers as ours.
pub(super) fn schedule(value: &Value) -> Result<Value, &'static str> {
    match value.as_str().unwrap_or_default() {
        "cosine" | "cosine_with_min_lr" => Ok("cosine".into()),
        "linear" => Ok("linear".into()),
        "constant" | "constant_with_warmup" => Ok("constant".into()),
        "inverse_sqrt" => Ok("inverse_sqrt".into()),
        "warmup_stable_decay" => Ok("wsd".into()),
        _ => Err("train.schedule must be cosine, linear, constant, inverse_sqrt or wsd"),
    }
}

/// Returns a value on one line.
fn brief(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if text.chars().count() <= 48 { text } else { text.chars().take(45).chain("...".chars()).collect() }
}
