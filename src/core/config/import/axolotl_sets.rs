//! `datasets` of axolotl, whose keys are told one by one.

use serde_json::{Value, json};

use super::hub;
use super::sheet::{Fate, Sheet};

/// A key within a data set, its value, and where it goes.
type Part = (String, Value, Fate);

/// Families of `type` that the first sample shows: `alpaca:chat` and `chat_template.default` are of them.
const SHOWN: [&str; 12] = [
    "alpaca",
    "alpaca_chat",
    "bradley_terry",
    "chat_template",
    "chatml",
    "completion",
    "llama3",
    "mistral",
    "orpo",
    "pretrain",
    "sharegpt",
    "user_defined",
];

/// Returns whether all samples of `datasets` are texts, every token of which is learned.
pub(super) fn are_texts(sheet: &Sheet) -> bool {
    let is_text = |set: &Value| set["type"].as_str().is_some_and(|kind| kind == "completion" || kind == "pretrain");
    let sets = sheet.get("datasets").and_then(Value::as_array);
    sets.is_some_and(|sets| !sets.is_empty() && sets.iter().all(is_text))
}

/// Translates the data sets under `key` as `data.train`. Their fields have other names where answers are compared in pairs.
pub(super) fn train(sheet: &mut Sheet, key: &str, is_pairs: bool) {
    let read = read(sheet, key, is_pairs);
    if let Ok((sets, _)) = &read
        && sets.len() > 1
    {
        sheet.once_per_epoch();
    }
    if sheet.get(key).and_then(Value::as_array).is_some_and(|sets| sets.iter().any(has_headings)) {
        sheet.note(
            "axolotl writes records of the type alpaca with headings (### Instruction:, ### Response:); here they are \
             conversations in the chat template",
        );
    }
    take(sheet, key, "data.train", read.map(|(sets, parts)| (sets.into(), parts)));
}

/// Returns whether a data set's records are written with headings in the place of a chat template.
fn has_headings(set: &Value) -> bool {
    set["type"].as_str().is_some_and(|kind| kind == "alpaca")
}

/// Translates the data set under `key` as `eval.path`, with the names of its fields.
pub(super) fn held_out(sheet: &mut Sheet, key: &str, is_pairs: bool) {
    let mut set = Value::Null;
    let one = read(sheet, key, is_pairs).and_then(|(sets, mut parts)| match &sets[..] {
        [one] => {
            set = one.clone();
            if let Some(most) = one.get("max_samples") {
                let why = "eval.path has all samples of its split: eval.max_samples limits evaluations during the run";
                parts.push((format!("{key}[0].split"), most.clone(), Fate::Missing(why)));
            }
            Ok((one["path"].clone(), parts))
        }
        _ => Err("list each set under eval.sets"),
    });
    take(sheet, key, "eval.path", one);
    sheet.describe_held_out(&set);
}

fn take(sheet: &mut Sheet, key: &str, ours: &str, found: Result<(Value, Vec<Part>), &'static str>) {
    let (value, parts) = match found {
        Ok((value, parts)) => (Ok(value), parts),
        Err(why) => (Err(why), Vec::new()),
    };
    sheet.with(key, ours, |_| value);
    parts.into_iter().for_each(|(name, value, fate)| sheet.tell(&name, &value, fate));
}

fn read(sheet: &Sheet, key: &str, is_pairs: bool) -> Result<(Vec<Value>, Vec<Part>), &'static str> {
    // Their documentation has a map or a text in the place of a list of one, too.
    let sets = match sheet.get(key) {
        Some(Value::Array(sets)) => sets.clone(),
        Some(one @ (Value::Object(_) | Value::String(_))) => vec![one.clone()],
        _ => return Err("it must be a list of data sets"),
    };
    let mut parts = Vec::new();
    let read = sets.iter().enumerate().map(|(at, set)| {
        let set = if set.is_string() { json!({ "path": set }) } else { set.clone() };
        one(&set, &format!("{key}[{at}]"), is_pairs, &mut parts)
    });
    let ours: Option<Vec<Value>> = read.collect();
    Ok((ours.ok_or("a data set has no `path`")?, parts))
}

fn one(set: &Value, name: &str, is_pairs: bool, parts: &mut Vec<Part>) -> Option<Value> {
    let text = |key: &str| set[key].as_str();
    let path = text("path")?;
    let files: Vec<&str> = match &set["data_files"] {
        Value::Array(files) => files.iter().filter_map(Value::as_str).collect(),
        file => file.as_str().into_iter().collect(),
    };
    let is_hub = hub::is_of_hub(path);
    let first = text("split").and_then(hub::first_of);
    let split = first.map(|(split, _)| split).or(text("split").filter(|split| hub::is_split(split)));
    let revised = text("revision").map_or(path.to_owned(), |revision| format!("{path}@{revision}"));
    let of_hub = |file: Option<&str>| {
        let parts = if file.is_none() { [text("name"), split.filter(|split| *split != "train")] } else { [file, None] };
        Value::from(hub::path(&revised, &parts))
    };
    let path: Value = match (is_hub, &files[..]) {
        (true, []) => of_hub(None),
        (true, [file]) => of_hub(Some(*file)),
        (true, files) => files.iter().map(|file| of_hub(Some(*file))).collect(),
        (false, []) => path.into(),
        (false, [file]) => (*file).into(),
        (false, files) => files.to_vec().into(),
    };
    let mut ours = json!({ "path": path });
    if let Some((_, most)) = first {
        ours["max_samples"] = most.into();
    }
    for (theirs, column) in columns(is_pairs) {
        if let Some(field) = text(theirs).filter(|field| field != column) {
            ours["columns"][*column] = field.into();
        }
    }
    for (key, value) in set.as_object()? {
        let is_read = match key.as_str() {
            "path" | "data_files" => true,
            "name" | "revision" => is_hub,
            "split" => split.is_some_and(|split| split == "train" || (is_hub && files.is_empty())),
            key => value.is_string() && columns(is_pairs).iter().any(|(theirs, _)| *theirs == key),
        };
        if !is_read && !value.is_null() {
            parts.push((format!("{name}.{key}"), value.clone(), of_part(key, value)));
        }
    }
    Some(ours)
}

/// Names of fields, and of our columns.
fn columns(is_pairs: bool) -> &'static [(&'static str, &'static str)] {
    match is_pairs {
        true => &[("field_messages", "prompt"), ("field_chosen", "chosen"), ("field_rejected", "rejected")],
        false => &[
            ("field_messages", "messages"),
            ("field", "text"),
            ("text_column", "text"),
            ("field_tools", "tools"),
            ("field_system", "system"),
            ("field_instruction", "instruction"),
            ("field_input", "input"),
            ("field_output", "output"),
        ],
    }
}

/// Returns whether a role is told by names that say it.
fn is_usual((role, names): (&String, &Value)) -> bool {
    let usual: &[&str] = match role.as_str() {
        "assistant" => &["assistant", "gpt", "model", "chatgpt"],
        "user" => &["user", "human"],
        role => &[role],
    };
    let is_usual = |name: &Value| name.as_str().is_some_and(|name| usual.contains(&name));
    names.as_array().is_some_and(|names| names.iter().all(is_usual))
}

/// Returns where a key goes that is neither part of the path nor a column.
fn of_part(key: &str, value: &Value) -> Fate {
    let is_shown = value.as_str().is_some_and(|kind| {
        let family = kind.split([':', '.']).next().unwrap_or_default();
        SHOWN.contains(&family)
    });
    let mapped =
        |from: &str, to: &str| value[from].is_null() || ["role", "content", to].iter().any(|it| value[from] == *it);
    match key {
        "type" if is_shown => {
            Fate::Settled("the format is detected from the first sample; data.train[].format sets it")
        }
        "type" => Fate::Missing("set data.train[].format and `columns`, which determine how samples are read"),
        "ds_type" => Fate::Settled("file types are detected from file names"),
        "message_property_mappings" if mapped("role", "from") && mapped("content", "value") => {
            Fate::Settled("role and content, or from and value, are detected in messages")
        }
        "message_field_role" if value == "role" || value == "from" => Fate::Settled("it is detected in messages"),
        "message_field_content" if value == "content" || value == "value" => {
            Fate::Settled("it is detected in messages")
        }
        "roles_to_train" if *value == json!(["assistant"]) || *value == json!(["gpt", "assistant"]) => {
            Fate::Settled("answers count in the loss of train.phase sft")
        }
        "roles" if value.as_object().is_some_and(|roles| roles.iter().all(is_usual)) => {
            Fate::Settled("roles are recognized by their usual names")
        }
        "trust_remote_code" => Fate::Settled("no code of a data set is ever run"),
        "preprocess_shards" => Fate::Settled("data is read during the run"),
        "split" => Fate::Missing("a part of a split: write a file of these samples"),
        "shards" | "shards_idx" | "skip" => Fate::Missing("write a file of these samples"),
        "chat_template" | "chat_template_jinja" => {
            Fate::Missing("data.template applies to all sets; the default is the template in the model's folder")
        }
        "train_on_eos" if value == "turn" => Fate::Settled("an answer ends with its closing token, which counts"),
        "train_on_eos" => Fate::Missing("the closing token of each answer that counts is learned, and no other"),
        _ => Fate::Missing("data.train[] has no such key"),
    }
}
