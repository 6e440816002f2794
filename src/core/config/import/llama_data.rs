//! LLaMA-Factory's data sets: names in `dataset_info.json`, which says where their samples are and what the fields are called.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::hub;
use super::sheet::{REPEATED, Sheet, take_random};
use crate::files;

/// Columns of theirs, and our fields.
const COLUMNS: [(&str, &str); 12] = [
    ("prompt", "instruction"),
    ("query", "input"),
    ("response", "output"),
    ("history", "history"),
    ("system", "system"),
    ("tools", "tools"),
    ("images", "images"),
    ("videos", "videos"),
    ("audios", "audios"),
    ("chosen", "chosen"),
    ("rejected", "rejected"),
    ("kto_tag", "kto_tag"),
];

/// Tags of theirs, and the values of each that need no translation.
const TAGS: [(&str, &[&str]); 7] = [
    ("role_tag", &["from", "role"]),
    ("content_tag", &["value", "content"]),
    ("user_tag", &["human", "user"]),
    ("assistant_tag", &["gpt", "assistant"]),
    ("observation_tag", &["observation", "tool"]),
    ("function_tag", &["function_call", "tool_call"]),
    ("system_tag", &["system"]),
];

/// The `dataset_dir` whose names are ids of the hub.
const ONLINE: &str = "ONLINE";
/// The begin of a `dataset_dir` whose `dataset_info.json` is in a data set of the hub.
const REMOTE: &str = "REMOTE:";
/// The reason why data sets are not translated that a `dataset_info.json` on the hub describes.
pub(super) const OF_REMOTE_INFO: &str = "dataset_info.json is on the Hugging Face hub and is not read: download it and \
                                         name its folder as dataset_dir, or name each data set in data.train \
                                         (hf://datasets/ORG/NAME)";

/// Returns the names of data sets in a list, or in a text that has commas between them.
pub(super) fn names(value: &Value) -> Vec<String> {
    match value {
        Value::Array(list) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        other => other.as_str().unwrap_or_default().split(',').map(|name| name.trim().to_owned()).collect(),
    }
}

/// Translates `eval_dataset`: one data set is `eval.path`, and several are `eval.sets`, by their names. To be read before `media_dir`
/// is taken.
pub(super) fn held_out(sheet: &mut Sheet, info: &DatasetInfo, notes: &mut Vec<&'static str>) {
    let names = sheet.get("eval_dataset").map(names).unwrap_or_default();
    let sets: Vec<Value> = match info.is_remote() {
        true => Vec::new(),
        false => names.iter().map(|name| info.set(name, notes)).collect(),
    };
    let is_plain = |name: &String| name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let differ = sets.windows(2).any(|pair| pair[0]["columns"] != pair[1]["columns"]);
    let ours = if sets.len() > 1 { "eval.sets" } else { "eval.path" };
    sheet.with("eval_dataset", ours, |_| match &sets[..] {
        _ if info.is_remote() => Err(OF_REMOTE_INFO),
        [] => Err("it must name a data set"),
        [one] => Ok(one["path"].clone()),
        _ if differ => Err("list each set under eval.sets: eval.columns is the same for all, but their fields differ"),
        _ if !names.iter().all(is_plain) => {
            Err("list each set under eval.sets by a name of letters, digits, -, _ and .")
        }
        several => Ok(names.iter().zip(several).map(|(name, set)| (name.clone(), set["path"].clone())).collect()),
    });
    if let Some(first) = sets.first().filter(|_| sheet.has_set(ours)) {
        sheet.describe_held_out(first);
        if let Some(media) = sheet.get("media_dir").cloned() {
            sheet.set("eval.media_dir", media);
        }
    }
}

/// The data sets in a folder, with their descriptions where they are known.
pub(super) struct DatasetInfo {
    /// The path of `dataset_dir`.
    folder: String,
    /// The entries of the folder's `dataset_info.json`, by name; `None`: the file is not here.
    sets: Option<Map<String, Value>>,
    /// Every token of a sample is learned.
    is_pretraining: bool,
}

impl DatasetInfo {
    /// Reads the description of the folder under `dataset_dir`.
    pub fn of(sheet: &Sheet) -> Self {
        let folder = sheet.get("dataset_dir").and_then(Value::as_str).unwrap_or("data").to_owned();
        let info = Self { folder, sets: None, is_pretraining: sheet.is("stage", "pt") };
        if info.is_online() || info.is_remote() {
            return info;
        }
        let text = files::read_text(&Path::new(&info.folder).join("dataset_info.json")).ok();
        Self { sets: text.and_then(|text| serde_json::from_str(&text).ok()), ..info }
    }

    /// Returns whether the names of data sets are ids of the hub.
    pub fn is_online(&self) -> bool {
        self.folder == ONLINE
    }

    /// Returns whether the `dataset_info.json` is on the hub, where it is not read.
    pub fn is_remote(&self) -> bool {
        self.folder.starts_with(REMOTE)
    }

    /// Returns whether there is a `dataset_info.json`.
    pub fn is_here(&self) -> bool {
        self.sets.is_some()
    }

    /// Returns the data set of a name as `data.train` has it. Parts of it that have no counterpart are added to `notes`.
    pub fn set(&self, name: &str, notes: &mut Vec<&'static str>) -> Value {
        if self.is_online() {
            let is_here = name.starts_with(['.', '/', '~']) || Path::new(name).exists();
            return json!({ "path": if is_here { name.to_owned() } else { hub::path(name, &[]) } });
        }
        // Most files are called as their set.
        let alone = || json!({ "path": format!("{}/{name}.json", self.folder) });
        let Some(sets) = &self.sets else { return alone() };
        let Some(set) = sets.get(name) else {
            notes.push("a data set is not in dataset_info.json, and was taken for a file of its name");
            return alone();
        };
        let text = |key: &str| set[key].as_str();
        let mut ours = match (text("hf_hub_url"), text("cloud_file_name"), text("file_name")) {
            (Some(id), ..) => {
                let split = text("split").filter(|split| hub::is_split(split) && *split != "train");
                let revised = text("revision").map_or_else(|| id.to_owned(), |revision| format!("{id}@{revision}"));
                json!({ "path": hub::path(&revised, &[text("folder"), text("subset"), split]) })
            }
            (None, Some(address), _) => json!({ "path": address }),
            (None, None, Some(file)) => json!({ "path": format!("{}/{file}", self.folder) }),
            (None, None, None) => {
                notes.push("a data set of dataset_info.json has no file and no id of the Hugging Face hub");
                alone()
            }
        };
        self.columns(set).into_iter().for_each(|(column, field)| ours["columns"][column] = field.into());
        let is_known = |(tag, known): &(&str, &[&str])| set["tags"][tag].as_str().is_none_or(|it| known.contains(&it));
        if !TAGS.iter().all(is_known) {
            notes.push(
                "a data set has tags that are not read: write its turns with from and value (human, gpt), or role and \
                 content",
            );
        }
        if let Some(count) = set["num_samples"].as_u64().filter(|count| *count > 0) {
            take_random(&mut ours, count);
            notes.push(REPEATED);
        }
        ours
    }

    /// Fields with other names than ours.
    fn columns<'a>(&self, set: &'a Value) -> Vec<(&'static str, &'a str)> {
        let columns = &set["columns"];
        let field = |theirs: &str| columns[theirs].as_str();
        let turns = if set["tags"]["role_tag"] == "role" { "messages" } else { "conversations" };
        let is_chat = set["formatting"] == "sharegpt" || set["formatting"] == "openai";
        let named = COLUMNS.iter().filter(|(theirs, _)| !(is_chat || self.is_pretraining) || *theirs != "prompt");
        let named = named.filter_map(|(theirs, ours)| Some((*ours, field(theirs)?)));
        let texts = field("prompt").filter(|_| self.is_pretraining && !is_chat).map(|field| ("text", field));
        let chats = field("messages").filter(|_| is_chat).map(|field| (turns, field));
        let all = named.chain(texts).chain(chats);
        // A label may have either name.
        all.filter(|(ours, field)| ours != field && (*ours, *field) != ("kto_tag", "label")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::import;
    use super::super::tests::missing;
    use super::*;
    use crate::config::yaml;

    #[test]
    fn a_set_has_the_path_and_the_fields_that_dataset_info_says() {
        let sets = json!({
            "alpaca": { "file_name": "a.json", "columns": { "prompt": "instruction", "response": "answer" } },
            "chat": { "file_name": "c.jsonl", "formatting": "sharegpt", "columns": { "messages": "dialogue", "tools": "tools" } },
            "openai": { "file_name": "o.json", "formatting": "sharegpt", "columns": { "messages": "messages" },
                "tags": { "role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant" } },
            "pairs": { "hf_hub_url": "org/pairs", "subset": "en", "split": "train", "ranking": true,
                "columns": { "prompt": "question", "chosen": "good", "rejected": "bad" } },
            "pinned": { "hf_hub_url": "org/pinned", "revision": "v1.0", "split": "test" },
            "kto": { "file_name": "k.json", "columns": { "prompt": "instruction", "kto_tag": "label" } },
            "odd": { "file_name": "x.json", "formatting": "sharegpt", "tags": { "user_tag": "me" }, "num_samples": 9 },
            "none": { "script_url": "x" }
        });
        let info =
            |is_pretraining| DatasetInfo { folder: "data".to_owned(), sets: sets.as_object().cloned(), is_pretraining };
        let set = |name: &str| {
            let mut notes = Vec::new();
            (info(false).set(name, &mut notes), notes.len())
        };
        assert_eq!(set("alpaca"), (json!({"path": "data/a.json", "columns": {"output": "answer"}}), 0));
        assert_eq!(set("chat"), (json!({"path": "data/c.jsonl", "columns": {"conversations": "dialogue"}}), 0));
        assert_eq!(set("openai"), (json!({"path": "data/o.json"}), 0));
        let columns = json!({"instruction": "question", "chosen": "good", "rejected": "bad"});
        assert_eq!(set("pairs"), (json!({"path": "hf://datasets/org/pairs/en", "columns": columns}), 0));
        assert_eq!(set("pinned"), (json!({"path": "hf://datasets/org/pinned@v1.0/test"}), 0));
        assert_eq!(set("kto"), (json!({"path": "data/k.json"}), 0));
        assert_eq!(set("odd"), (json!({"path": "data/x.json", "max_samples": 9, "select": "random"}), 2));
        assert_eq!(set("none"), (json!({"path": "data/none.json"}), 1));
        assert_eq!(set("gone"), (json!({"path": "data/gone.json"}), 1));
        let texts = info(true).set("alpaca", &mut Vec::new());
        assert_eq!(texts, json!({"path": "data/a.json", "columns": {"output": "answer", "text": "instruction"}}));
    }

    #[test]
    fn held_out_sets_keep_the_names_of_their_fields_and_their_folder() {
        let folder = tempfile::tempdir().unwrap();
        let sets = json!({
            "own": { "file_name": "own.json", "columns": { "prompt": "q", "response": "a" } },
            "more": { "file_name": "more.json", "columns": { "prompt": "q", "response": "a" } },
            "other": { "file_name": "other.json" }
        });
        std::fs::write(folder.path().join("dataset_info.json"), sets.to_string()).unwrap();
        let dir = folder.path().display();
        let of = |names: &str| {
            let text = format!(
                "model_name_or_path: a/b\nstage: sft\ndataset_dir: {dir}\ndataset: other\nmedia_dir: pictures\n\
                 eval_dataset: {names}\n"
            );
            let imported = import(&text).unwrap();
            let eval = yaml::parse(&imported.yaml, 0, 0).unwrap().to_json()["eval"].clone();
            (eval, missing(&imported).join(" "))
        };
        let columns = json!({ "instruction": "q", "output": "a" });
        let [own, more, other] = ["own", "more", "other"].map(|name| format!("{dir}/{name}.json"));
        let one = json!({ "path": own, "columns": columns, "media_dir": "pictures" });
        assert_eq!(of("own"), (one, String::new()));
        let several = json!({ "sets": { "own": own, "more": more }, "columns": columns, "media_dir": "pictures" });
        assert_eq!(of("own, more"), (several, String::new()));
        assert_eq!(of("other"), (json!({ "path": other, "media_dir": "pictures" }), String::new()));
        assert_eq!(of("own,other"), (Value::Null, "eval_dataset".to_owned()), "one key holds the columns of all");
    }

    #[test]
    fn names_of_sets_on_the_hub_become_its_paths_or_are_told() {
        let of = |dir: &str, names: &str| {
            let text = format!("model_name_or_path: a/b\nstage: sft\ndataset_dir: {dir}\n{names}");
            let imported = import(&text).unwrap();
            let node = yaml::parse(&imported.yaml, 0, 0).unwrap().to_json();
            (node, missing(&imported).join(" "))
        };
        let (node, left) = of("ONLINE", "dataset: org/one, ./two\neval_dataset: org/held\n");
        assert_eq!(node["data"]["train"], json!([{ "path": "hf://datasets/org/one" }, { "path": "./two" }]));
        assert_eq!((&node["eval"]["path"], left.as_str()), (&json!("hf://datasets/org/held"), ""));
        let (node, left) = of("REMOTE:org/info", "dataset: one\neval_dataset: held\n");
        assert_eq!((&node["data"]["train"], &node["eval"]["path"]), (&Value::Null, &Value::Null));
        assert_eq!(left, "dataset dataset_dir eval_dataset");
    }
}
