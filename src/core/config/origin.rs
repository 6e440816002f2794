//! The origin of each value of a config, and the values that it replaced.

use super::error::{Origin, Sources};
use super::node::{Node, Pos, float, join};

/// One value of the config and its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyOrigin {
    /// Dotted, `data.train.0.path`.
    pub path: String,
    pub value: String,
    /// The origin in words: `command line (override #1)`, `vlm.yaml:41`, `schema default`.
    pub from: String,
    /// The values that it replaced, newest first, in words: `file set 1e-05 (vlm.yaml:41)`.
    pub replaced: Vec<String>,
}

/// Returns the history of every value in `tree`. `order` gives the order of sections and keys.
pub(super) fn origins(tree: &Node, order: &serde_json::Value, sources: &Sources) -> Vec<KeyOrigin> {
    let mut found = Vec::new();
    visit(order, "", &mut |path, value| {
        let node = tree.get(path);
        let from = match node.and_then(|node| node.pos) {
            Some(pos) => from(sources, pos),
            None => "schema default".to_owned(),
        };
        let replaced =
            node.map(|node| node.replaced.iter().rev().map(|(pos, value)| said(sources, *pos, value)).collect());
        found.push(KeyOrigin { path: path.to_owned(), value, from, replaced: replaced.unwrap_or_default() });
    });
    found
}

/// Renders one line per value, aligned.
pub(super) fn render(origins: &[KeyOrigin]) -> String {
    let assigned: Vec<String> = origins.iter().map(|o| format!("{} = {}", o.path, o.value)).collect();
    let width = assigned.iter().map(|text| text.chars().count()).filter(|len| *len <= 60).max().unwrap_or(0);
    let mut out = String::new();
    for (assigned, origin) in assigned.iter().zip(origins) {
        let history: String = origin.replaced.iter().map(|said| format!("; {said}")).collect();
        out += &format!("{assigned:<width$}   from {}{history}\n", origin.from);
    }
    out
}

/// Visits scalars, and empty lists and maps, in the order of the typed config.
fn visit(value: &serde_json::Value, path: &str, leaf: &mut dyn FnMut(&str, String)) {
    match value {
        serde_json::Value::Object(map) if !map.is_empty() => {
            map.iter().for_each(|(name, child)| visit(child, &join(path, name), leaf));
        }
        serde_json::Value::Array(items) if !items.is_empty() => {
            items.iter().enumerate().for_each(|(i, child)| visit(child, &join(path, &i.to_string()), leaf));
        }
        serde_json::Value::Number(number) if number.is_f64() => leaf(path, float(number.as_f64().unwrap_or(0.0))),
        serde_json::Value::String(text) => leaf(path, text.clone()),
        other => leaf(path, other.to_string()),
    }
}

fn place(sources: &Sources, pos: Pos) -> String {
    match sources.origin(pos) {
        Origin::File(path) => format!("{}:{}", path.display(), pos.line),
        Origin::Override(number) => format!("override #{number}"),
        Origin::Env(name) => name.clone(),
    }
}

fn from(sources: &Sources, pos: Pos) -> String {
    let place = place(sources, pos);
    match sources.origin(pos) {
        Origin::File(_) => place,
        Origin::Override(_) => format!("command line ({place})"),
        Origin::Env(_) => format!("environment ({place})"),
    }
}

fn said(sources: &Sources, pos: Pos, value: &str) -> String {
    let who = match sources.origin(pos) {
        Origin::File(_) => "file",
        Origin::Override(_) => "command line",
        Origin::Env(_) => "environment",
    };
    format!("{who} set {value} ({})", place(sources, pos))
}
