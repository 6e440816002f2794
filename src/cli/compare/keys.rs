//! Keys of configs that differ between runs.

use loongforge_core::observe::PastRun;
use serde_json::Value;
use std::collections::BTreeMap;

/// Returns the keys that differ, each with its value in every run; `None`: the run's config has no such key. A value that differs only
/// since each run has a name and a folder of its own is no difference; nor is a path that two runs have in common, of which it is in
/// one's folder.
pub fn differing(runs: &[PastRun]) -> Vec<(String, Vec<Option<Value>>)> {
    let flat: Vec<BTreeMap<String, Value>> = runs.iter().map(|run| flattened(&run.config)).collect();
    let dirs: Vec<&str> = runs.iter().map(|run| run.config["run"]["dir"].as_str().unwrap_or_default()).collect();
    let mut keys: Vec<&String> = flat.iter().flat_map(BTreeMap::keys).collect();
    keys.sort();
    keys.dedup();
    let mut differing = Vec::new();
    for key in keys.into_iter().filter(|key| !["run.name", "run.dir"].contains(&key.as_str())) {
        let values: Vec<Option<Value>> = flat.iter().map(|keys| keys.get(key).cloned()).collect();
        let own = |(value, dir): (&Option<Value>, &&str)| value.as_ref().map(|value| within(value, dir));
        let within: Vec<Option<Value>> = values.iter().zip(&dirs).map(own).collect();
        let differs = |values: &[Option<Value>]| values.windows(2).any(|pair| pair[0] != pair[1]);
        if differs(&values) && differs(&within) {
            differing.push((key.clone(), values));
        }
    }
    differing
}

fn flattened(config: &Value) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    flatten("", config, &mut all);
    all
}

fn flatten(key: &str, value: &Value, all: &mut BTreeMap<String, Value>) {
    let join = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
    match value {
        Value::Object(map) if !map.is_empty() => map.iter().for_each(|(name, value)| flatten(&join(name), value, all)),
        // A key that is null is not set.
        Value::Null => {}
        // Data sets have keys of their own.
        Value::Array(items) if items.iter().any(Value::is_object) => {
            items.iter().enumerate().for_each(|(index, item)| flatten(&join(&index.to_string()), item, all));
        }
        value => {
            all.insert(key.to_owned(), value.clone());
        }
    }
}

/// Returns paths in a run's folder as those from there; another value as it is.
fn within(value: &Value, dir: &str) -> Value {
    if let Value::Array(items) = value {
        return items.iter().map(|item| within(item, dir)).collect();
    }
    let inner = value.as_str().and_then(|text| text.strip_prefix(dir)).filter(|_| !dir.is_empty());
    let inner = inner.filter(|inner| inner.is_empty() || inner.starts_with('/'));
    inner.map_or_else(|| value.clone(), |inner| format!("${{run.dir}}{inner}").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_and_folders_of_runs_are_no_difference() {
        let run = |config: Value| PastRun {
            dir: "x".into(),
            name: "x".into(),
            config,
            steps: Vec::new(),
            evaluations: Vec::new(),
        };
        let config = |name: &str, lr: f64, eval: Value| {
            json!({"run": {"name": name, "dir": format!("runs/{name}"), "seed": 1}, "train": {"lr": lr, "betas": [0.9, 0.95]},
                "checkpoint": {"dir": format!("runs/{name}/checkpoints")}, "eval": eval})
        };
        let runs = [run(config("a", 1e-3, Value::Null)), run(config("b", 1e-4, json!({"every_steps": 5})))];
        let want = [
            ("eval.every_steps".to_owned(), vec![None, Some(json!(5))]),
            ("train.lr".to_owned(), vec![Some(json!(1e-3)), Some(json!(1e-4))]),
        ];
        assert_eq!(differing(&runs), want);
        assert!(differing(&[runs[0].clone(), runs[0].clone()]).is_empty());
    }

    #[test]
    fn data_sets_differ_by_their_own_keys_and_paths_by_what_they_are() {
        let run = |name: &str, load: &str, sets: Value| PastRun {
            dir: "x".into(),
            name: name.into(),
            config: json!({"run": {"name": name, "dir": format!("runs/{name}")}, "model": {"load": load}, "data": {"train": sets}}),
            steps: Vec::new(),
            evaluations: Vec::new(),
        };
        let set = |path: &str| json!({"path": [path], "format": "auto", "weight": 1.0});
        // The first run's model is in its own folder, which the second one reads, too; `runs/ab` is not in `runs/a`.
        let first = run("a", "runs/a/model", json!([set("runs/a/x.jsonl"), set("runs/ab/y.jsonl")]));
        let second = run("b", "runs/a/model", json!([set("runs/b/x.jsonl"), set("runs/bb/y.jsonl"), set("z.jsonl")]));
        let found = differing(&[first, second]);
        let (keys, values): (Vec<&str>, Vec<_>) = found.iter().map(|(key, values)| (key.as_str(), values)).unzip();
        assert_eq!(keys, ["data.train.1.path", "data.train.2.format", "data.train.2.path", "data.train.2.weight"]);
        assert_eq!(values[0], &vec![Some(json!(["runs/ab/y.jsonl"])), Some(json!(["runs/bb/y.jsonl"]))]);
    }
}
