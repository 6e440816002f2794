//! Data sets as the configs of alignment-handbook name them, which are TRL's otherwise: `dataset_mixer` and `dataset_mixture`.

use serde_json::{Value, json};

use super::hub;
use super::sheet::Sheet;

/// The remark on a share of a data set.
const PART: &str = "the original uses a part of a data set: set max_samples of it in data.train";

/// Translates both keys; each is read where it is there.
pub(super) fn read(sheet: &mut Sheet) {
    mixer(sheet);
    mixture(sheet);
}

/// Returns the path of a data set, with its configuration and split if it is one of the hub.
fn path(name: &str, config: Option<&str>, split: Option<&str>) -> String {
    match hub::is_of_hub(name) {
        true => hub::path(name, &[config, split.filter(|split| *split != "train")]),
        false => name.to_owned(),
    }
}

/// Translates `dataset_mixer`, from names to the shares that are used, with the lists `dataset_splits` and `dataset_configs`.
fn mixer(sheet: &mut Sheet) {
    let Some(mixer) = sheet.get("dataset_mixer").and_then(Value::as_object).cloned() else { return };
    let [splits, configs] = ["dataset_splits", "dataset_configs"].map(|key| {
        let list = sheet.get(key).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<String>>()
    });
    let split = |part: &str| splits.iter().map(String::as_str).find(|split| split.contains(part));
    let config = |at: usize| configs.get(at).map(String::as_str);
    let set = |(at, name): (usize, &String)| json!({ "path": path(name, config(at), split("train")) });
    let sets: Vec<Value> = mixer.keys().enumerate().map(set).collect();
    if sets.len() > 1 {
        sheet.once_per_epoch();
    }
    sheet.set("data.train", sets);
    if mixer.values().any(|share| share.as_f64() != Some(1.0)) {
        sheet.note(PART);
    }
    let is_on = |key: &&str| sheet.get(key).is_some_and(|it| it != "no" && *it != Value::Bool(false));
    let is_evaluated = ["do_eval", "eval_strategy", "evaluation_strategy"].iter().any(is_on);
    let mut arrived = "data.train";
    match (split("test").filter(|_| is_evaluated), mixer.keys().next()) {
        // Of a folder here the path has no split: its training samples would be held out.
        (Some(test), Some(name)) if mixer.len() == 1 && hub::is_of_hub(name) => {
            sheet.set("eval.path", path(name, config(0), Some(test)));
            arrived = "data.train, eval.path";
        }
        (Some(_), Some(_)) => {
            sheet.note("dataset_splits has a held-out split: name that of each data set in eval.sets")
        }
        _ => {}
    }
    sheet.arrived("dataset_splits", arrived);
    ["dataset_mixer", "dataset_configs"].iter().for_each(|key| sheet.arrived(key, "data.train"));
}

/// Translates `dataset_mixture`, whose `datasets` are a list.
fn mixture(sheet: &mut Sheet) {
    let Some(mixture) = sheet.get("dataset_mixture").cloned() else { return };
    let one = |set: &Value| {
        let text = |key: &str| set[key].as_str();
        let split = text("split").unwrap_or("train");
        let name = text("id").or(text("path")).filter(|_| hub::is_split(split))?;
        Some(json!({ "path": path(name, text("config"), Some(split)) }))
    };
    let theirs = mixture["datasets"].as_array().cloned().unwrap_or_default();
    let sets: Option<Vec<Value>> = theirs.iter().map(one).collect();
    let Some(sets) = sets.filter(|sets| !sets.is_empty()) else {
        return sheet.missing("name the files of each set in data.train", &["dataset_mixture"]);
    };
    if sets.len() > 1 {
        sheet.once_per_epoch();
    }
    sheet.set("data.train", sets);
    if theirs.iter().any(|set| set["weight"].as_f64().is_some_and(|share| share != 1.0)) {
        sheet.note(PART);
    }
    let mut arrived = "data.train";
    if let Some(share) = mixture["test_split_size"].as_f64().filter(|share| *share > 0.0) {
        sheet.set("data.val_size", share);
        if sheet.get("eval_steps").is_none() {
            sheet.set("eval.every_steps", 100);
        }
        arrived = "data.train, data.val_size";
    }
    sheet.arrived("dataset_mixture", arrived);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::import;
    use super::super::tests::{json_of, missing};

    #[test]
    fn a_config_of_alignment_handbook_is_one_of_trl_with_its_data_sets() {
        let of = |more: &str| {
            let imported = import(&format!("model_name_or_path: a/b\nlearning_rate: 1e-5\n{more}")).unwrap();
            assert_eq!((imported.from, missing(&imported)), ("TRL", vec![]), "{more}");
            let is_part = imported.notes.iter().any(|note| note.contains("set max_samples"));
            (json_of(&imported), is_part)
        };
        let mixer = "dataset_mixer: {x/chat: 1.0}\ndataset_splits: [train_sft, test_sft]\nmax_seq_length: 512\n";
        let (found, is_part) = of(&format!("{mixer}eval_strategy: epoch\nattn_implementation: flash_attention_2\n"));
        assert_eq!(found["data"]["train"], json!([{ "path": "hf://datasets/x/chat/train_sft" }]));
        assert_eq!(found["eval"]["path"], json!("hf://datasets/x/chat/test_sft"));
        assert_eq!((&found["data"]["pack"]["max_tokens"], is_part), (&json!(512), false));
        assert_eq!(found["model"]["foundation"], Value::Null, "all weights are trained");
        let (found, is_part) = of("dataset_mixer: {./a.jsonl: 0.5, x/b: 1.0}\nbeta: 0.01\n");
        assert_eq!(found["data"]["train"], json!([{ "path": "./a.jsonl" }, { "path": "hf://datasets/x/b" }]));
        let (beta, eval) = (&found["train"]["preference"]["beta"], &found["eval"]);
        assert_eq!((beta, eval, is_part), (&json!(0.01), &Value::Null, true));
        let local =
            "model_name_or_path: a/b\ndataset_mixer: {./a: 1.0}\ndataset_splits: [train, test]\ndo_eval: true\n";
        assert!(json_of(&import(local).unwrap())["eval"].is_null(), "a folder here is not its own held-out split");
        let set = "{id: x/a, config: all, split: part, columns: [messages]}";
        let (found, is_part) = of(&format!("dataset_mixture: {{datasets: [{set}], test_split_size: 0.1}}\n"));
        assert_eq!(found["data"]["train"], json!([{ "path": "hf://datasets/x/a/all/part" }]));
        let (share, every) = (&found["data"]["val_size"], &found["eval"]["every_steps"]);
        assert_eq!((share, every, is_part), (&json!(0.1), &json!(100), false));
    }
}
