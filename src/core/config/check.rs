//! Checks the tree against the schema: unknown keys, wrong types, values out of range, missing keys.
//!
//! A wrong value is replaced by a valid one, so that the tree can always be typed and rules over several keys are checked in the
//! same pass.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::error::{Problem, Sources, code};
use super::foreign;
use super::node::{Entry, Kind, Node, join};
use super::scalar;
use super::shape::{SCHEMA, is_nullable, named, placeholder, target, type_of, walk};
use super::suggest;
use crate::message::{PoolName, Tower};

/// Keys by which other tools name code to run.
const CODE_KEYS: [&str; 4] = ["_target_", "_args_", "_partial_", "_convert_"];

/// Keys of earlier versions, and what they are called now.
const MOVED: [(&str, &str); 1] = [("model.path", "model.load")];

/// The number of mistakes after which no more suggestions are made.
const MAX_SUGGESTED: usize = 200;

/// The number of keys that a help line lists.
const LISTED: usize = 24;

pub(super) struct Checker<'a> {
    pub sources: &'a Sources,
    pub problems: &'a mut Vec<Problem>,
    /// Paths whose value is not the user's, because that one was wrong or missing.
    pub failed: &'a mut BTreeSet<String>,
}

/// Reports and removes keys with which other tools import and run code.
pub(super) fn refuse_code(node: &mut Node, path: &str, problems: &mut Vec<Problem>) {
    match &mut node.kind {
        Kind::Map(map) => {
            for key in CODE_KEYS {
                if let Some(entry) = map.remove(key) {
                    let message = format!("`{}` is refused: a config cannot name code to run", join(path, key));
                    let help = "remove it; everything that can be configured has its own key (`check --show-origin` lists them)";
                    problems.push(Problem::new(code::REFUSED, entry.key.or(entry.node.pos), message).help(help));
                }
            }
            map.iter_mut().for_each(|(name, entry)| refuse_code(&mut entry.node, &join(path, name), problems));
        }
        Kind::Seq(items) => items.iter_mut().for_each(|item| refuse_code(item, path, problems)),
        _ => {}
    }
}

impl Checker<'_> {
    /// Checks `node` and replaces what does not fit.
    pub fn check(&mut self, node: &mut Node, schema: &Value, path: &str) {
        if self.failed.contains(path) {
            node.kind = placeholder(schema);
            return;
        }
        if node.kind == Kind::Null && is_nullable(schema) {
            return;
        }
        let inner = target(schema);
        if inner["x-one-or-more"] == true && matches!(node.kind, Kind::Text(_) | Kind::Number(_)) {
            node.kind = Kind::Seq(vec![node.clone()]);
        }
        let wrong = if inner["properties"].is_object() {
            self.check_map(node, inner, path)
        } else {
            match type_of(inner) {
                "object" => self.check_entries(node, inner, path),
                "array" => self.check_list(node, inner, path),
                "integer" => scalar::integer(node, inner),
                "number" => scalar::number(node, inner),
                "boolean" => scalar::boolean(node),
                _ => scalar::text(node, inner, self.sources),
            }
        };
        if let Some(mut problem) = wrong {
            problem.pos = node.pos;
            problem.message = format!("`{path}`: {}", problem.message);
            if problem.help.is_none() {
                problem.help = schema["description"].as_str().map(Box::from);
            }
            self.problems.push(problem);
            self.failed.insert(path.to_owned());
            node.kind = placeholder(schema);
        }
    }

    fn check_map(&mut self, node: &mut Node, schema: &Value, path: &str) -> Option<Problem> {
        let pos = node.pos;
        let properties = schema["properties"].as_object()?;
        let Some(map) = node.map_mut() else {
            let word = node.to_text();
            let problem = scalar::expected("a map of keys", node);
            if word == "true" && properties.values().all(|child| child.get("default").is_some()) {
                return Some(problem.label("`{}` is a map in which every key has its default"));
            }
            let meant = key_with_word(&word, properties, path);
            return Some(meant.into_iter().fold(problem, |p, meant| p.label(format!("did you mean `{meant}`?"))));
        };
        let (entries, unknown): (Vec<String>, Vec<String>) = map
            .iter()
            .filter(|(name, _)| !properties.contains_key(*name))
            .map(|(name, entry)| (name.clone(), &entry.node))
            .fold((Vec::new(), Vec::new()), |(mut entries, mut unknown), (name, node)| {
                let is_entry = named(schema).is_some() && is_pool(&name, node);
                if is_entry {
                    entries.push(name)
                } else {
                    unknown.push(name)
                }
                (entries, unknown)
            });
        let mut meant = BTreeSet::new();
        for name in unknown {
            if let Some(entry) = map.remove(&name) {
                let keys = properties.keys().map(String::as_str);
                // A file of another kind has thousands of unknown keys; nobody reads that many suggestions.
                let is_shown = self.problems.len() < MAX_SUGGESTED;
                meant.extend(is_shown.then(|| suggest::nearest(&name, keys.clone())).flatten());
                meant.extend(other_word(&name, path));
                let ours = foreign::ours(&name).and_then(|(key, _)| key.rsplit_once('.'));
                meant.extend(ours.filter(|(parent, _)| *parent == path).map(|(_, last)| last));
                let problem = match MOVED.iter().find(|(old, _)| *old == join(path, &name)) {
                    Some((old, new)) => {
                        // Its new place is not missing as well.
                        self.failed.insert((*new).to_owned());
                        let problem = Problem::new(code::UNKNOWN_KEY, None, format!("`{old}` is now `{new}`"));
                        problem.label(format!("write `{}`", new.rsplit('.').next().unwrap_or(new)))
                    }
                    None => unknown_key(&name, path, keys, is_shown),
                };
                self.problems.push(Problem { pos: entry.key.or(entry.node.pos), ..problem });
            }
        }
        for (name, child) in entries.iter().zip(std::iter::repeat(&schema["additionalProperties"])) {
            let entry = map.get_mut(name).expect("it is one of them");
            self.check(&mut entry.node, child, &join(path, name));
        }
        for (name, child) in properties {
            let child_path = join(path, name);
            if let Some(entry) = map.get_mut(name) {
                // Nor is it left out.
                if meant.contains(name.as_str()) && entry.node.kind == Kind::Null {
                    self.failed.insert(child_path.clone());
                }
                self.check(&mut entry.node, child, &child_path);
                continue;
            }
            // A misspelled key that is reported as such is not missing as well.
            if !meant.contains(name.as_str()) {
                let description = child["description"].as_str().unwrap_or_default();
                let message = format!("missing required key `{child_path}`");
                let problem = Problem::new(code::MISSING_KEY, pos, message);
                self.problems.push(problem.help(format!("`{name}`: {description}")));
            }
            self.failed.insert(child_path);
            map.insert(name.clone(), Entry { key: None, node: Node::new(placeholder(child), None) });
        }
        None
    }

    /// Checks the entries of a map of names that the user chooses; returns a problem where it is no map. Entries that are maps themselves
    /// are read with the whole config.
    fn check_entries(&mut self, node: &mut Node, schema: &Value, path: &str) -> Option<Problem> {
        let Some(map) = node.map_mut() else { return Some(scalar::expected("a map", node)) };
        let entry_schema = &schema["additionalProperties"];
        if entry_schema.is_object() && !matches!(type_of(target(entry_schema)), "object" | "") {
            map.iter_mut().for_each(|(name, entry)| self.check(&mut entry.node, entry_schema, &join(path, name)));
        }
        None
    }

    fn check_list(&mut self, node: &mut Node, schema: &Value, path: &str) -> Option<Problem> {
        let Kind::Seq(items) = &mut node.kind else {
            return Some(scalar::expected("a list", node));
        };
        let len = items.len() as u64;
        let (min, max) = (schema["minItems"].as_u64().unwrap_or(0), schema["maxItems"].as_u64().unwrap_or(u64::MAX));
        if !(min..=max).contains(&len) {
            let wanted = match () {
                () if min == max => format!("{min} items"),
                () if len > max => format!("at most {max} items"),
                () => format!("at least {min} item"),
            };
            return Some(Problem::new(code::OUT_OF_RANGE, None, format!("expected {wanted}, found {len}")));
        }
        for (i, item) in items.iter_mut().enumerate() {
            self.check(item, &schema["items"], &join(path, &i.to_string()));
        }
        None
    }
}

/// Returns whether this is a pool defined by the user: it has the name of a tower, or names its towers. Other names count as
/// misspelled keys.
fn is_pool(name: &str, node: &Node) -> bool {
    let is_tower = Tower::ALL.iter().any(|tower| tower.name() == name);
    let Some(map) = node.map() else { return is_tower };
    let names_towers = map.get("towers").is_some_and(|entry| entry.node.kind != Kind::Null);
    name.parse::<PoolName>().is_ok() && name != PoolName::SCHEDULER.as_str() && (is_tower || names_towers)
}

fn unknown_key<'a>(name: &str, path: &str, keys: impl Iterator<Item = &'a str>, is_shown: bool) -> Problem {
    let keys: Vec<&str> = keys.collect();
    let problem = Problem::new(code::UNKNOWN_KEY, None, format!("unknown key `{}`", join(path, name)));
    if !is_shown {
        return problem;
    }
    if let Some(remark) = foreign::remark(name, path) {
        return problem.help(remark);
    }
    // A whole section of theirs is one at the top alone.
    let named = foreign::ours(name).filter(|(ours, _)| path.is_empty() || ours.contains('.'));
    if let Some((ours, note)) = named {
        // The section may have a key of that name itself, as each part of a model does.
        let own = ours.rsplit('.').next().filter(|last| !path.is_empty() && keys.contains(last));
        let ours = own.map_or(ours.to_owned(), |last| join(path, last));
        let note = if note.is_empty() { String::new() } else { format!(" ({note})") };
        return problem
            .label(format!("did you mean `{ours}`?{note}"))
            .help("`loongforge check FILE --show-origin` lists all keys");
    }
    let other_word = || other_word(name, path).filter(|word| keys.contains(word)).map(str::to_owned);
    let nearest = || {
        let nearest = suggest::nearest(name, keys.iter().copied());
        nearest.or_else(|| suggest::begun(name, &keys)).or_else(|| suggest::ended(name, &keys)).map(str::to_owned)
    };
    let meant = other_word().or_else(nearest).or_else(|| key_elsewhere(name, path));
    let section = if path.is_empty() { "the top level".to_owned() } else { format!("`{path}`") };
    let listed = keys.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
    let more = if keys.len() > LISTED { ", ..." } else { "" };
    let pools = if path == "pools" { ", and encoder pools, named as their tower or with `towers`" } else { "" };
    let problem = problem.help(format!("the keys of {section} are {listed}{more}{pools}"));
    meant.into_iter().fold(problem, |p, meant| p.label(format!("did you mean `{meant}`?")))
}

/// Returns a synonym for a key of the section `path`.
fn other_word(name: &str, path: &str) -> Option<&'static str> {
    match (path, name) {
        (_, "rank") => Some("r"),
        (_, "frozen") => Some("freeze"),
        ("model", "vision_tower" | "mm_vision_tower" | "vision_encoder" | "visual" | "vit") => Some("image_encoder"),
        ("model", "mm_projector" | "multi_modal_projector" | "projector" | "aligner") => Some("image_projector"),
        ("model", "audio_tower") => Some("audio_encoder"),
        ("model", "language_model" | "llm") => Some("foundation"),
        ("pools", "image_encoder" | "vision_tower" | "vision_encoder" | "vit") => Some("encoder"),
        ("data", "path" | "paths" | "file" | "files") => Some("train"),
        ("model", "name" | "path") => Some("load"),
        ("checkpoint", "folder") => Some("dir"),
        ("checkpoint" | "eval" | "sample", "every") => Some("every_steps"),
        ("eval", "metrics") => Some("scores"),
        _ => None,
    }
}

/// Returns the key that `name` means in the section `path`: one of that section's own, or the only key of that name elsewhere. If
/// several other sections have the name, none is meant.
fn key_elsewhere(name: &str, path: &str) -> Option<String> {
    let found = keys_called(name);
    let section = |key: &str| key.split('.').next().unwrap_or_default().to_owned();
    let is_own = found.iter().any(|key| section(key) == section(path));
    (path.is_empty() || is_own || found.len() == 1).then(|| nearest_of(found, path)).flatten()
}

/// Returns the key whose value may be `word`, which was written for the whole map of `path`: one of its own keys, as
/// `train.optimizer.type`, or one of the same name elsewhere, as `train.preference.loss`.
fn key_with_word(word: &str, properties: &Map<String, Value>, path: &str) -> Option<String> {
    let takes = |schema: &Value| {
        let choices = target(schema)["enum"].as_array().into_iter().flatten();
        let choices: Vec<&str> = choices.filter_map(Value::as_str).collect();
        choices.contains(&word.replace('-', "_").as_str()) || foreign::our_value(word, &choices).is_some()
    };
    let own = properties.iter().find(|(_, schema)| takes(schema)).map(|(name, _)| join(path, name));
    own.or_else(|| {
        let mut found = Vec::new();
        walk(&SCHEMA, "", &mut |other, schema| {
            let is_namesake = other != path && other.rsplit('.').next() == path.rsplit('.').next();
            if is_namesake && !other.contains(".0.") && takes(schema) {
                found.push(other.to_owned());
            }
        });
        nearest_of(found, path)
    })
}

/// Returns the key that another trainer calls `name`, or whose last part is `name`: the one that shares most of its path with the
/// section `near`, then the first of the least nested ones, of parts and pools that of the foundation.
///
/// ```
/// use loongforge_core::config::key_called;
///
/// assert_eq!(key_called("learning_rate", "").as_deref(), Some("train.lr"));
/// assert_eq!(key_called("frobnicate", ""), None);
/// ```
pub fn key_called(name: &str, near: &str) -> Option<String> {
    if let Some((ours, _)) = foreign::ours(name) {
        return Some(ours.to_owned());
    }
    nearest_of(keys_called(name), near)
}

/// Returns what there is instead of a key for what other trainers call `name`.
pub fn remark_on(name: &str) -> Option<&'static str> {
    foreign::remark(name, "")
}

/// Returns the keys whose last part is `name`, except those in lists.
fn keys_called(name: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    walk(&SCHEMA, "", &mut |path, _| {
        if path.rsplit('.').next() == Some(name) && !path.contains(".0.") {
            found.push(path.to_owned());
        }
    });
    found
}

fn nearest_of(found: Vec<String>, near: &str) -> Option<String> {
    let shared = |path: &str| path.split('.').zip(near.split('.')).take_while(|(a, b)| a == b).count();
    let is_foundation = |path: &str| path.split('.').any(|part| part == "foundation");
    found.into_iter().min_by_key(|path| (Reverse(shared(path)), path.matches('.').count(), !is_foundation(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_vision_language_models_are_answered_with_ours() {
        let words = [
            ("model", "vision_tower", "image_encoder"),
            ("model", "mm_projector", "image_projector"),
            ("model", "audio_tower", "audio_encoder"),
            ("model", "llm", "foundation"),
            ("model.image_encoder", "frozen", "freeze"),
            ("pools", "vision_tower", "encoder"),
        ];
        for (path, theirs, ours) in words {
            assert_eq!(other_word(theirs, path), Some(ours));
            assert!(keys_called(ours).contains(&join(path, ours)), "{path}.{ours}");
        }
    }

    #[test]
    fn limits_of_media_and_rates_of_parts_are_found_under_the_names_of_other_trainers() {
        let found = |name| key_called(name, "");
        assert_eq!(found("vit_lr").as_deref(), Some("pools.encoder.lr"));
        assert_eq!(found("mm_projector_lr").as_deref(), Some("model.image_projector.lr_ratios"));
        assert_eq!(found("max_pixels").as_deref(), Some("data.image.max_pixels"));
        assert_eq!(found("video_max_frames").as_deref(), Some("data.video.max_frames"));
        assert_eq!(found("max_duration_in_seconds").as_deref(), Some("data.audio.max_seconds"));
        assert!(remark_on("sampling_rate").is_some_and(|remark| remark.contains("preprocessor_config.json")));
    }
}
