//! Keys of configs that differ between runs.

use loongforge_core::observe::PastRun;
use serde_json::Value;
use std::collections::BTreeMap;

/// Keys that differ, each with its value in every run; `None`: the run's config has no such key. What differs only since each run has
/// a name and a folder of its own is no difference.
pub fn differing(runs: &[PastRun]) -> Vec<(String, Vec<Option<Value>>)> {
    let flat: Vec<BTreeMap<String, Value>> = runs.iter().map(|run| flattened(&run.config)).collect();
    let mut keys: Vec<&String> = flat.iter().flat_map(BTreeMap::keys).collect();
    keys.sort();
    keys.dedup();
    let mut differing = Vec::new();
    for key in keys.into_iter().filter(|key| !["run.name", "run.dir"].contains(&key.as_str())) {
        let values: Vec<Option<Value>> = flat.iter().map(|keys| keys.get(key).cloned()).collect();
        if values.windows(2).any(|pair| pair[0] != pair[1]) {
            differing.push((key.clone(), values));
        }
    }
    differing
}

fn flattened(config: &Value) -> BTreeMap<String, Value> {
    let (mut all, dir) = (BTreeMap::new(), config["run"]["dir"].as_str().unwrap_or_default());
    flatten("", config, dir, &mut all);
    all
}

fn flatten(key: &str, value: &Value, dir: &str, all: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (name, value) in map {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                flatten(&key, value, dir, all);
            }
        }
        // A key that is null is not set.
        Value::Null => {}
        Value::String(text) if !dir.is_empty() && text.starts_with(dir) => {
            all.insert(key.to_owned(), text.replacen(dir, "${run.dir}", 1).into());
        }
        value => {
            all.insert(key.to_owned(), value.clone());
        }
    }
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
}
