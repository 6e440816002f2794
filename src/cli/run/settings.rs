//! The config of each attempt at a run, and how it differs from the one that a checkpoint was written with.

use anyhow::{Context, Result};
use loongforge_core::files::if_there;
use serde_json::{Map, Value};
use std::fs;
use std::path::Path;

/// The composed config of the newest attempt in a run's folder; earlier ones are `config-1.yaml`, `config-2.yaml`, …
const CONFIG: &str = "config.yaml";

/// Writes an attempt's composed config. The one before keeps its text under the next number, unless the two are equal.
///
/// # Errors
/// A file cannot be read or written.
pub fn keep_config(dir: &Path, yaml: &str) -> Result<()> {
    let path = dir.join(CONFIG);
    let named = || path.display().to_string();
    match if_there(fs::read_to_string(&path)).with_context(named)? {
        Some(before) if before == yaml => return Ok(()),
        Some(_) => {
            let earlier = (1u64..).map(|number| dir.join(format!("config-{number}.yaml")));
            let free = earlier.into_iter().find(|path| !path.exists()).expect("some number is free");
            fs::rename(&path, free).with_context(named)?;
        }
        None => {}
    }
    fs::write(&path, yaml).with_context(named)
}

/// Returns a line for each key whose value has changed: `train.lr 0.001 → 0.0001`.
pub fn differences(before: &Value, now: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    compare("", before, now, &mut lines);
    lines
}

fn compare(key: &str, before: &Value, now: &Value, lines: &mut Vec<String>) {
    let empty = Map::new();
    let map = |value: &Value| match value {
        Value::Object(map) => Some(map.clone()),
        Value::Null => Some(empty.clone()),
        _ => None,
    };
    if before == now {
        return;
    }
    let is_map = before.is_object() || now.is_object();
    if let (true, Some(old), Some(new)) = (is_map, map(before), map(now)) {
        for name in old.keys().chain(new.keys().filter(|name| !old.contains_key(*name))) {
            let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
            compare(&key, old.get(name).unwrap_or(&Value::Null), new.get(name).unwrap_or(&Value::Null), lines);
        }
        return;
    }
    // Data sets have keys of their own.
    let list = |value: &Value| match value {
        Value::Array(items) if items.iter().all(Value::is_object) => Some(items.clone()),
        _ => None,
    };
    if let (Some(old), Some(new)) = (list(before), list(now)) {
        for index in 0..old.len().max(new.len()) {
            let at = |items: &[Value]| items.get(index).cloned().unwrap_or_default();
            compare(&format!("{key}.{index}"), &at(&old), &at(&new), lines);
        }
        return;
    }
    let told = |value: &Value| match value {
        Value::Null => "(not set)".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    lines.push(format!("{key} {} → {}", told(before), told(now)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn data_sets_are_compared_key_by_key() {
        let set = |path: &str, weight: u64| json!({"path": [path], "weight": weight, "caption": null});
        let data = |sets: Vec<Value>| json!({ "data": { "train": sets } });
        let (before, now) = (data(vec![set("a", 1)]), data(vec![set("a", 2), set("b", 1)]));
        let more = [
            "data.train.0.weight 1 → 2",
            r#"data.train.1.path (not set) → ["b"]"#,
            "data.train.1.weight (not set) → 1",
        ];
        assert_eq!(differences(&before, &now), more);
        assert_eq!(differences(&now, &before).len(), 3);
        assert_eq!(differences(&json!({"betas": []}), &json!({"betas": [0.9]})), ["betas [] → [0.9]"]);
    }

    #[test]
    fn only_keys_that_differ_are_lines() {
        let before =
            json!({"train": {"lr": 0.001, "steps": 3, "betas": [0.9, 0.95]}, "eval": null, "run": {"name": "a"}});
        let now = json!({"train": {"lr": 0.0001, "steps": 3, "betas": [0.9, 0.99]}, "eval": {"path": "x"}, "new": 1,
            "run": {"name": "b"}});
        let want = [
            "train.lr 0.001 → 0.0001",
            "train.betas [0.9,0.95] → [0.9,0.99]",
            "eval.path (not set) → x",
            "run.name a → b",
            "new (not set) → 1",
        ];
        assert_eq!(differences(&before, &now), want);
        assert!(differences(&now, &now).is_empty());
    }

    #[test]
    fn every_attempts_config_is_kept_once() {
        let dir = tempfile::tempdir().unwrap();
        ["one", "one", "two", "two", "one"].iter().for_each(|text| keep_config(dir.path(), text).unwrap());
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!([read(CONFIG), read("config-1.yaml"), read("config-2.yaml")], ["one", "one", "two"]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
