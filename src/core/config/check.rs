//! The tree against the schema: unknown keys, wrong types, values out of range, missing keys.
//!
//! The schema is the one generated from the Rust types, so it is written once. A wrong value is replaced by one that
//! fits, so that the tree can always be typed and the rules over several keys can be checked in the same pass.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::{Number, Value};

use super::error::{Problem, Sources, code};
use super::node::{Entry, Kind, Node, join};
use super::suggest;
use super::{Device, RunConfig, Size, Threads, TimeSpan};

/// The JSON schema of [`RunConfig`].
pub(super) static SCHEMA: LazyLock<Value> =
    LazyLock::new(|| schemars::schema_for!(RunConfig).to_value());

/// Keys by which other tools name code to run.
const CODE_KEYS: [&str; 4] = ["_target_", "_args_", "_partial_", "_convert_"];

/// How many keys a help line lists.
const LISTED: usize = 24;

pub(super) struct Checker<'a> {
    pub sources: &'a Sources,
    pub problems: &'a mut Vec<Problem>,
    /// Paths whose value is not the user's, because that one was wrong or missing.
    pub failed: &'a mut BTreeSet<String>,
}

/// Follows a reference, and the part of an optional value that is not `null`.
fn target(schema: &Value) -> &Value {
    if let Some(variants) = schema["anyOf"].as_array() {
        return variants
            .iter()
            .find(|v| v["type"] != "null")
            .map_or(schema, target);
    }
    match schema["$ref"]
        .as_str()
        .and_then(|reference| reference.strip_prefix("#/$defs/"))
    {
        Some(name) => &SCHEMA["$defs"][name],
        None => schema,
    }
}

fn is_nullable(schema: &Value) -> bool {
    let has_null = |types: &Value| {
        types
            .as_array()
            .is_some_and(|types| types.iter().any(|t| t == "null"))
    };
    has_null(&schema["type"])
        || schema["anyOf"]
            .as_array()
            .is_some_and(|v| v.iter().any(|v| v["type"] == "null"))
}

fn type_of(schema: &Value) -> &str {
    let names = &schema["type"];
    names.as_str().or_else(|| names[0].as_str()).unwrap_or("")
}

/// Every key of the schema with its path, type schema included; list items are `name.0`.
pub(super) fn walk<'a>(schema: &'a Value, path: &str, visit: &mut dyn FnMut(&str, &'a Value)) {
    let target = target(schema);
    if let Some(properties) = target["properties"].as_object() {
        for (name, child) in properties {
            let path = join(path, name);
            visit(&path, child);
            walk(child, &path, visit);
        }
    } else if target["items"].is_object() {
        walk(&target["items"], &join(path, "0"), visit);
    }
}

/// Adds what the schema says by default to every map that is there; a required map is there, if only to be filled.
pub(super) fn fill_defaults(node: &mut Node, schema: &Value) {
    let schema = target(schema);
    if let Some(properties) = schema["properties"].as_object() {
        if node.kind == Kind::Null {
            node.kind = Kind::Map(BTreeMap::new());
        }
        let Some(map) = node.map_mut() else { return };
        for (name, child) in properties {
            let is_map = target(child)["properties"].is_object() && !is_nullable(child);
            if let Some(entry) = map.get_mut(name) {
                // An optional section stays `null` when it is.
                if is_map || entry.node.kind != Kind::Null {
                    fill_defaults(&mut entry.node, child);
                }
                continue;
            }
            let mut value = match child.get("default") {
                Some(default) => Node::from_json(default, None),
                None if is_map => Node::empty_map(None),
                None => continue,
            };
            if is_map {
                fill_defaults(&mut value, child);
            }
            map.insert(
                name.clone(),
                Entry {
                    key: None,
                    node: value,
                },
            );
        }
    } else if let (Kind::Seq(items), Some(_)) = (&mut node.kind, schema.get("items")) {
        items
            .iter_mut()
            .filter(|item| item.kind != Kind::Null)
            .for_each(|item| fill_defaults(item, &schema["items"]));
    }
}

/// Reports and removes keys that would make other tools import and run code.
pub(super) fn refuse_code(node: &mut Node, path: &str, problems: &mut Vec<Problem>) {
    match &mut node.kind {
        Kind::Map(map) => {
            for key in CODE_KEYS {
                if let Some(entry) = map.remove(key) {
                    let message = format!(
                        "`{}` is refused: a config names no code to run",
                        join(path, key)
                    );
                    let help = "remove it; what is configurable is a key of its own (`check --show-origin` lists all)";
                    problems.push(
                        Problem::new(code::REFUSED, entry.key.or(entry.node.pos), message)
                            .help(help),
                    );
                }
            }
            map.iter_mut().for_each(|(name, entry)| {
                refuse_code(&mut entry.node, &join(path, name), problems)
            });
        }
        Kind::Seq(items) => items
            .iter_mut()
            .for_each(|item| refuse_code(item, path, problems)),
        _ => {}
    }
}

impl Checker<'_> {
    /// Checks `node` and makes it fit.
    pub fn check(&mut self, node: &mut Node, schema: &Value, path: &str) {
        if self.failed.contains(path) {
            node.kind = placeholder(schema);
            return;
        }
        if node.kind == Kind::Null && is_nullable(schema) {
            return;
        }
        let inner = target(schema);
        let wrong = if inner["properties"].is_object() {
            self.check_map(node, inner, path)
        } else {
            match type_of(inner) {
                "object" => node.map().is_none().then(|| expected("a map", node)),
                "array" => self.check_list(node, inner, path),
                "integer" => check_integer(node, inner),
                "number" => check_number(node, inner),
                "boolean" => check_boolean(node),
                _ => self.check_text(node, inner),
            }
        };
        if let Some(mut problem) = wrong {
            problem.pos = node.pos;
            problem.message = format!("`{path}`: {}", problem.message);
            if problem.help.is_none() {
                problem.help = schema["description"].as_str().map(str::to_owned);
            }
            self.problems.push(problem);
            self.failed.insert(path.to_owned());
            node.kind = placeholder(schema);
        }
    }

    fn check_map(&mut self, node: &mut Node, schema: &Value, path: &str) -> Option<Problem> {
        let pos = node.pos;
        let Some(map) = node.map_mut() else {
            return Some(expected("a map of keys", node));
        };
        let properties = schema["properties"].as_object()?;
        let unknown: Vec<String> = map
            .keys()
            .filter(|name| !properties.contains_key(*name))
            .cloned()
            .collect();
        for name in unknown {
            if let Some(entry) = map.remove(&name) {
                let problem = unknown_key(&name, path, properties.keys().map(String::as_str));
                self.problems.push(Problem {
                    pos: entry.key.or(entry.node.pos),
                    ..problem
                });
            }
        }
        for (name, child) in properties {
            let child_path = join(path, name);
            if let Some(entry) = map.get_mut(name) {
                self.check(&mut entry.node, child, &child_path);
                continue;
            }
            let description = child["description"].as_str().unwrap_or_default();
            let problem = Problem::new(
                code::MISSING_KEY,
                pos,
                format!("missing required key `{child_path}`"),
            )
            .help(format!("`{name}`: {description}"));
            self.problems.push(problem);
            self.failed.insert(child_path);
            map.insert(
                name.clone(),
                Entry {
                    key: None,
                    node: Node::new(placeholder(child), None),
                },
            );
        }
        None
    }

    fn check_list(&mut self, node: &mut Node, schema: &Value, path: &str) -> Option<Problem> {
        let Kind::Seq(items) = &mut node.kind else {
            return Some(expected("a list", node));
        };
        let len = items.len() as u64;
        let (min, max) = (
            schema["minItems"].as_u64().unwrap_or(0),
            schema["maxItems"].as_u64().unwrap_or(u64::MAX),
        );
        if !(min..=max).contains(&len) {
            let wanted = if min == max {
                format!("{min} items")
            } else {
                format!("at least {min} item")
            };
            return Some(Problem::new(
                code::OUT_OF_RANGE,
                None,
                format!("expected {wanted}, found {len}"),
            ));
        }
        for (i, item) in items.iter_mut().enumerate() {
            self.check(item, &schema["items"], &join(path, &i.to_string()));
        }
        None
    }

    fn check_text(&self, node: &mut Node, schema: &Value) -> Option<Problem> {
        let format = schema["format"].as_str().unwrap_or("");
        if let (Kind::Number(number), true) =
            (&node.kind, format.is_empty() && schema["enum"].is_null())
        {
            // A name that looks like a number is still a name, as it is written.
            let written = node
                .pos
                .and_then(|pos| self.sources.slice(pos))
                .unwrap_or_else(|| number.to_string());
            node.kind = Kind::Text(written);
        }
        let parsed = match (&node.kind, format) {
            (Kind::Text(text), "size") => text.parse::<Size>().map(drop),
            (Kind::Text(text), "duration") => text.parse::<TimeSpan>().map(drop),
            (Kind::Text(text), "device") => text.parse::<Device>().map(drop),
            (Kind::Text(text), "threads") => text.parse::<Threads>().map(drop),
            (Kind::Number(number), "size") => number.to_string().parse::<Size>().map(drop),
            (Kind::Number(number), "duration") => number.to_string().parse::<TimeSpan>().map(drop),
            (Kind::Number(number), "threads") => number.to_string().parse::<Threads>().map(drop),
            (_, "threads") => Err("expected `auto` or a number from 1 to 1024".to_owned()),
            (_, "device") => Err("expected `cpu`, `cuda` or `cuda:N`".to_owned()),
            (Kind::Text(_), _) => Ok(()),
            _ => {
                return Some(expected(
                    if schema["enum"].is_null() {
                        "text"
                    } else {
                        "a word"
                    },
                    node,
                ));
            }
        };
        if let Err(message) = parsed {
            return Some(Problem::new(
                code::WRONG_TYPE,
                None,
                format!("{message}, found {}", node.describe()),
            ));
        }
        let Kind::Text(text) = &node.kind else {
            return None;
        };
        if let Some(choices) = schema["enum"].as_array() {
            let choices: Vec<&str> = choices.iter().filter_map(Value::as_str).collect();
            // `-` and `_` are the same in words, too.
            if let Some(choice) = choices
                .iter()
                .find(|choice| **choice == text.replace('-', "_"))
            {
                node.kind = Kind::Text((*choice).to_owned());
                return None;
            }
            let near = suggest::nearest(text, choices.iter().copied());
            let problem = expected(&one_of(&choices), node);
            return Some(near.into_iter().fold(problem, |p, near| {
                p.label(format!("did you mean `{near}`?"))
            }));
        }
        let too_short = (text.chars().count() as u64) < schema["minLength"].as_u64().unwrap_or(0);
        too_short.then(|| Problem::new(code::OUT_OF_RANGE, None, "must not be empty"))
    }
}

fn check_integer(node: &mut Node, schema: &Value) -> Option<Problem> {
    if let Kind::Number(number) = &node.kind {
        // `1e4` is a count to a person; above 2^53 a float no longer names one.
        let value = number
            .as_f64()
            .filter(|v| v.fract() == 0.0 && v.abs() <= 9_007_199_254_740_992.0);
        match (number.is_f64(), value) {
            (false, _) => return out_of_range(number, schema),
            (true, Some(value)) => {
                let number = Number::from(value as i64);
                let problem = out_of_range(&number, schema);
                node.kind = Kind::Number(number);
                return problem;
            }
            (true, None) => {}
        }
    }
    Some(expected("an integer", node))
}

fn check_number(node: &mut Node, schema: &Value) -> Option<Problem> {
    match &node.kind {
        Kind::Number(number) => out_of_range(number, schema),
        Kind::Text(text) if text.trim().parse::<f64>().is_ok_and(f64::is_finite) => {
            Some(expected("a number", node).label("a number without quotes"))
        }
        _ => Some(expected("a number", node)),
    }
}

fn check_boolean(node: &mut Node) -> Option<Problem> {
    if matches!(node.kind, Kind::Bool(_)) {
        return None;
    }
    let problem = expected("`true` or `false`", node);
    let meant = match node.to_text().to_lowercase().as_str() {
        "yes" | "on" | "y" | "1" | "true" => "did you mean `true`?",
        "no" | "off" | "n" | "0" | "false" => "did you mean `false`?",
        _ => return Some(problem),
    };
    Some(problem.label(meant))
}

fn out_of_range(number: &Number, schema: &Value) -> Option<Problem> {
    let value = number.as_f64()?;
    let limit = |name: &str| schema[name].as_f64();
    let found = Node::new(Kind::Number(number.clone()), None).describe();
    let message = if let Some(min) = limit("minimum").filter(|min| value < *min) {
        format!("must be at least {min}, found {found}")
    } else if let Some(min) = limit("exclusiveMinimum").filter(|min| value <= *min) {
        format!("must be above {min}, found {found}")
    } else if let Some(max) = limit("maximum").filter(|max| value > *max) {
        format!("must be at most {max}, found {found}")
    } else {
        return None;
    };
    Some(Problem::new(code::OUT_OF_RANGE, None, message))
}

fn expected(what: &str, node: &Node) -> Problem {
    Problem::new(
        code::WRONG_TYPE,
        None,
        format!("expected {what}, found {}", node.describe()),
    )
}

fn one_of(choices: &[&str]) -> String {
    let quoted: Vec<String> = choices.iter().map(|choice| format!("`{choice}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

fn unknown_key<'a>(name: &str, path: &str, keys: impl Iterator<Item = &'a str>) -> Problem {
    let keys: Vec<&str> = keys.collect();
    let problem = Problem::new(
        code::UNKNOWN_KEY,
        None,
        format!("unknown key `{}`", join(path, name)),
    );
    let elsewhere = || {
        let mut found = None;
        walk(&SCHEMA, "", &mut |path, _| {
            if path.rsplit('.').next() == Some(name) && !path.contains(".0.") {
                found.get_or_insert_with(|| path.to_owned());
            }
        });
        found
    };
    let meant = suggest::nearest(name, keys.iter().copied())
        .map(str::to_owned)
        .or_else(elsewhere);
    let section = if path.is_empty() {
        "the top level".to_owned()
    } else {
        format!("`{path}`")
    };
    let listed = keys
        .iter()
        .take(LISTED)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    let more = if keys.len() > LISTED { ", ..." } else { "" };
    let problem = problem.help(format!("the keys of {section} are {listed}{more}"));
    meant.into_iter().fold(problem, |p, meant| {
        p.label(format!("did you mean `{meant}`?"))
    })
}

/// A value that fits the schema, in the place of one that did not.
fn placeholder(schema: &Value) -> Kind {
    if let Some(default) = schema.get("default") {
        return Node::from_json(default, None).kind;
    }
    let inner = target(schema);
    if let Some(first) = inner["enum"].get(0) {
        return Node::from_json(first, None).kind;
    }
    match (type_of(inner), inner["format"].as_str()) {
        (_, Some("size")) => Kind::Text("1MiB".to_owned()),
        ("integer", _) => Kind::Number(1.into()),
        ("number", _) => Kind::Number(Number::from_f64(1.0).expect("finite")),
        ("boolean", _) => Kind::Bool(false),
        ("array", _) => {
            let len = inner["minItems"].as_u64().unwrap_or(0);
            Kind::Seq(
                (0..len)
                    .map(|_| Node::new(placeholder(&inner["items"]), None))
                    .collect(),
            )
        }
        ("object", _) => {
            let properties = inner["properties"].as_object().into_iter().flatten();
            let entry = |child| Entry {
                key: None,
                node: Node::new(placeholder(child), None),
            };
            Kind::Map(
                properties
                    .map(|(name, child)| (name.clone(), entry(child)))
                    .collect(),
            )
        }
        _ => Kind::Text("none".to_owned()),
    }
}
