//! The config's JSON schema as data: the schema of a key, its default, and a valid placeholder.
//!
//! The schema is generated from the Rust types, so that every rule about a single key is written once.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Number, Value};

use super::RunConfig;
use super::node::{Entry, Kind, Node, join};

/// The JSON schema of [`RunConfig`].
pub(super) static SCHEMA: LazyLock<Value> = LazyLock::new(|| schemars::schema_for!(RunConfig).to_value());

/// Resolves a reference, and the non-`null` part of an optional value.
pub(super) fn target(schema: &Value) -> &Value {
    if let Some(variants) = schema["anyOf"].as_array() {
        return variants.iter().find(|v| v["type"] != "null").map_or(schema, target);
    }
    match schema["$ref"].as_str().and_then(|reference| reference.strip_prefix("#/$defs/")) {
        Some(name) => &SCHEMA["$defs"][name],
        None => schema,
    }
}

/// Returns the schema of a map's entries with names chosen by the user.
pub(super) fn named(schema: &Value) -> Option<&Value> {
    Some(&schema["additionalProperties"]).filter(|named| named.is_object() && schema["properties"].is_object())
}

/// Returns whether a key may be null.
pub(super) fn is_nullable(schema: &Value) -> bool {
    let has_null = |types: &Value| types.as_array().is_some_and(|types| types.iter().any(|t| t == "null"));
    has_null(&schema["type"]) || schema["anyOf"].as_array().is_some_and(|v| v.iter().any(|v| v["type"] == "null"))
}

/// Returns the JSON type of a key, the first if there are several; empty if the schema gives none.
pub(super) fn type_of(schema: &Value) -> &str {
    let names = &schema["type"];
    names.as_str().or_else(|| names[0].as_str()).unwrap_or("")
}

/// Visits every key of the schema with its path and schema; list items are `name.0`.
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

/// Returns the key whose value a text in place of the map stands for: `path` of a data set.
pub(super) fn short_key(schema: &Value) -> Option<&str> {
    target(schema)["x-short"].as_str()
}

/// Expands short forms: a text for a map with one key ([`short_key`]), and a single item for a list.
pub(super) fn spell_out(node: &mut Node, schema: &Value) {
    let schema = target(schema);
    // What `${…}` stands for is not known yet; of the environment it is a text.
    let is_text =
        |kind: &Kind| matches!(kind, Kind::Text(text) if !text.starts_with("${") || text.starts_with("${oc.env:"));
    if let Some(key) = schema.get("items").and_then(short_key)
        && (is_text(&node.kind) || node.map().is_some_and(|map| map.contains_key(key)))
    {
        node.kind = Kind::Seq(vec![Node::new(node.kind.clone(), node.pos)]);
    }
    if let Some(key) = short_key(schema).filter(|_| is_text(&node.kind)) {
        let value = Node::new(node.kind.clone(), node.pos);
        node.kind = Kind::Map(BTreeMap::from([(key.to_owned(), Entry { key: node.pos, node: value })]));
    }
    match &mut node.kind {
        Kind::Map(map) => {
            for (name, entry) in map {
                schema["properties"].get(name).into_iter().for_each(|child| spell_out(&mut entry.node, child));
            }
        }
        Kind::Seq(items) => {
            for item in items {
                schema.get("items").into_iter().for_each(|child| spell_out(item, child));
            }
        }
        _ => {}
    }
}

/// Adds the schema's defaults to every map that exists; a required map is created so that it can be filled.
pub(super) fn fill_defaults(node: &mut Node, schema: &Value) {
    let schema = target(schema);
    if let Some(properties) = schema["properties"].as_object() {
        if node.kind == Kind::Null {
            node.kind = Kind::Map(BTreeMap::new());
        }
        let Some(map) = node.map_mut() else { return };
        if let Some(named) = named(schema) {
            let entries = map.iter_mut().filter(|(name, _)| !properties.contains_key(*name));
            entries.for_each(|(_, entry)| fill_defaults(&mut entry.node, named));
        }
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
            map.insert(name.clone(), Entry { key: None, node: value });
        }
    } else if let (Kind::Seq(items), Some(_)) = (&mut node.kind, schema.get("items")) {
        items.iter_mut().filter(|item| item.kind != Kind::Null).for_each(|item| fill_defaults(item, &schema["items"]));
    }
}

/// Returns a value that fits the schema, to replace one that does not.
pub(super) fn placeholder(schema: &Value) -> Kind {
    if let Some(default) = schema.get("default") {
        return Node::from_json(default, None).kind;
    }
    let inner = target(schema);
    if let Some(first) = inner["enum"].get(0) {
        return Node::from_json(first, None).kind;
    }
    match (type_of(inner), inner["format"].as_str()) {
        (_, Some("size")) => Kind::Text("1MiB".to_owned()),
        (_, Some("episodes")) => Kind::Number(0.into()),
        ("integer", _) => Kind::Number(1.into()),
        ("number", _) => Kind::Number(Number::from_f64(1.0).expect("finite")),
        ("boolean", _) => Kind::Bool(false),
        ("array", _) => {
            let len = inner["minItems"].as_u64().unwrap_or(0);
            Kind::Seq((0..len).map(|_| Node::new(placeholder(&inner["items"]), None)).collect())
        }
        ("object", _) => {
            let properties = inner["properties"].as_object().into_iter().flatten();
            let entry = |child| Entry { key: None, node: Node::new(placeholder(child), None) };
            Kind::Map(properties.map(|(name, child)| (name.clone(), entry(child))).collect())
        }
        _ => Kind::Text("none".to_owned()),
    }
}
