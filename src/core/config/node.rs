//! The untyped config tree: the values from YAML, environment and command line, with their places.
//!
//! Paths are dotted: `data.train.0.path`.

use std::collections::BTreeMap;

use serde_json::{Number, Value};

/// A place in one of the [`super::error::Sources`]; `line` and `column` count from 1, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pos {
    pub source: usize,
    pub line: usize,
    pub column: usize,
    pub len: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    Seq(Vec<Node>),
    Map(BTreeMap<String, Entry>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    /// Place of the key; `None` for a schema default.
    pub key: Option<Pos>,
    pub node: Node,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub kind: Kind,
    /// `None` for a schema default.
    pub pos: Option<Pos>,
    /// The values that this one replaced, oldest first.
    pub replaced: Vec<(Pos, String)>,
}

impl Node {
    /// Creates a value written at `pos`; `None` if the program set it.
    pub fn new(kind: Kind, pos: Option<Pos>) -> Self {
        Self { kind, pos, replaced: Vec::new() }
    }

    /// Creates a map without keys, at `pos`.
    pub fn empty_map(pos: Option<Pos>) -> Self {
        Self::new(Kind::Map(BTreeMap::new()), pos)
    }

    /// Creates a tree from JSON; all of it counts as written at `pos`.
    pub fn from_json(value: &Value, pos: Option<Pos>) -> Self {
        let kind = match value {
            Value::Null => Kind::Null,
            Value::Bool(b) => Kind::Bool(*b),
            Value::Number(n) => Kind::Number(n.clone()),
            Value::String(s) => Kind::Text(s.clone()),
            Value::Array(items) => Kind::Seq(items.iter().map(|v| Self::from_json(v, pos)).collect()),
            Value::Object(map) => {
                let entry = |v| Entry { key: pos, node: Self::from_json(v, pos) };
                Kind::Map(map.iter().map(|(k, v)| (k.clone(), entry(v))).collect())
            }
        };
        Self::new(kind, pos)
    }

    /// Returns the tree as JSON, without places.
    pub fn to_json(&self) -> Value {
        match &self.kind {
            Kind::Null => Value::Null,
            Kind::Bool(b) => Value::Bool(*b),
            Kind::Number(n) => Value::Number(n.clone()),
            Kind::Text(s) => Value::String(s.clone()),
            Kind::Seq(items) => Value::Array(items.iter().map(Self::to_json).collect()),
            Kind::Map(map) => Value::Object(map.iter().map(|(k, e)| (k.clone(), e.node.to_json())).collect()),
        }
    }

    /// Returns the entries; `None` if this is not a map.
    pub fn map(&self) -> Option<&BTreeMap<String, Entry>> {
        if let Kind::Map(map) = &self.kind { Some(map) } else { None }
    }

    /// Returns the entries to change; `None` if this is not a map.
    pub fn map_mut(&mut self) -> Option<&mut BTreeMap<String, Entry>> {
        if let Kind::Map(map) = &mut self.kind { Some(map) } else { None }
    }

    /// Returns the value at a dotted path, in which list elements are numbers.
    pub fn get(&self, path: &str) -> Option<&Node> {
        path.split('.').try_fold(self, |node, segment| match &node.kind {
            Kind::Map(map) => map.get(segment).map(|entry| &entry.node),
            Kind::Seq(items) => items.get(segment.parse::<usize>().ok()?),
            _ => None,
        })
    }

    /// Describes the value in words, for a message.
    pub fn describe(&self) -> String {
        match &self.kind {
            Kind::Null => "null".to_owned(),
            Kind::Seq(_) => "a list".to_owned(),
            Kind::Map(_) => "a map".to_owned(),
            _ => format!("`{}`", self.brief()),
        }
    }

    /// Returns a scalar as it would be written inside a longer text.
    pub fn to_text(&self) -> String {
        match &self.kind {
            Kind::Text(text) => text.clone(),
            Kind::Number(number) if number.is_f64() => float(number.as_f64().unwrap_or_default()),
            _ => self.to_json().to_string(),
        }
    }

    /// Returns the value on one line, truncated if it is long.
    pub fn brief(&self) -> String {
        let text = self.to_text();
        if text.chars().count() <= 60 { text } else { text.chars().take(57).chain("...".chars()).collect() }
    }

    /// Returns every scalar, empty list and empty map below this value, with its path.
    pub fn leaves<'a>(&'a self, path: &str, visit: &mut impl FnMut(&str, &'a Node)) {
        match &self.kind {
            Kind::Map(map) if !map.is_empty() => {
                map.iter().for_each(|(name, entry)| entry.node.leaves(&join(path, name), visit));
            }
            Kind::Seq(items) if !items.is_empty() => {
                items.iter().enumerate().for_each(|(i, item)| item.leaves(&join(path, &i.to_string()), visit));
            }
            _ => visit(path, self),
        }
    }

    /// Replaces this value and records the old one.
    pub fn replace(&mut self, new: Node) {
        let mut replaced = std::mem::take(&mut self.replaced);
        if let Some(pos) = self.pos {
            replaced.push((pos, self.brief()));
        }
        replaced.extend(new.replaced);
        *self = Node { kind: new.kind, pos: new.pos, replaced };
    }

    /// Merges `over` into this value: maps are merged key by key, everything else is replaced.
    pub fn merge(&mut self, over: Node) {
        match (&mut self.kind, over) {
            (Kind::Map(base), Node { kind: Kind::Map(over), .. }) => {
                for (name, entry) in over {
                    match base.get_mut(&name) {
                        Some(old) => {
                            old.node.merge(entry.node);
                            old.key = entry.key;
                        }
                        None => drop(base.insert(name, entry)),
                    }
                }
            }
            (_, over) => self.replace(over),
        }
    }
}

/// Keys that contain the keys of a `config.json`.
const FREE_FORM: [&str; 3] = ["model.overrides", "model.config", "data.template_kwargs"];
/// The same for each part of the model.
const FREE_FORM_OF_PARTS: [&str; 5] = ["config", "overrides", "lr_ratios", "lora.rank_pattern", "lora.alpha_pattern"];
/// Sections of `model` that are parts of the model, as in [`super::Model::parts`].
pub(super) const PARTS: [&str; 8] = [
    "image_encoder",
    "image_projector",
    "audio_encoder",
    "audio_projector",
    "text_encoder",
    "text_projector",
    "vae",
    "foundation",
];

/// Returns whether `path` is inside a part of the tree whose keys are not ours.
pub(super) fn is_free_form(path: &str) -> bool {
    let is_within =
        |path: &str, free: &str| path.strip_prefix(free).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let of_part =
        path.strip_prefix("model.").and_then(|path| path.split_once('.')).filter(|(part, _)| PARTS.contains(part));
    FREE_FORM.iter().any(|free| is_within(path, free))
        || of_part.is_some_and(|(_, key)| FREE_FORM_OF_PARTS.iter().any(|free| is_within(key, free)))
}

/// Replaces `-` by `_` in a key, except in parts that are passed on unchanged.
pub(super) fn canonical(parent: &str, name: &str) -> String {
    if is_free_form(parent) { name.to_owned() } else { name.replace('-', "_") }
}

/// Returns the dotted path of `name` in the section `parent`; the root's is empty.
pub(super) fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") }
}

/// Formats a float as Python does, which is how people write learning rates: `2e-05`.
pub(super) fn float(value: f64) -> String {
    let text = format!("{value:?}");
    match text.split_once("e-") {
        Some((mantissa, exponent)) if exponent.len() == 1 => format!("{mantissa}e-0{exponent}"),
        _ => text,
    }
}
