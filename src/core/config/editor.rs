//! JSON schema of a config file, for editors. It describes the whole config, since one file may be only a part of it.

use serde_json::{Map, Value, json};

use super::shape::{SCHEMA, short_key};

/// Returns the JSON schema of a config file, with which editors complete keys and mark mistakes.
///
/// No key is required, since other files of the `defaults` list and the command line may set it, and `${…}` may stand for any
/// value.
///
/// ```
/// let schema = loongforge_core::config::editor_schema();
/// assert_eq!(schema["$defs"]["Train"]["properties"]["steps"]["anyOf"][1]["type"], "string");
/// ```
pub fn editor_schema() -> Value {
    let mut schema = SCHEMA.clone();
    schema["title"] = json!("A config of loongforge");
    relax(&mut schema);
    let entry = json!({"type": ["string", "object"]});
    let defaults = json!({
        "description": "Config files that this one begins from: `GROUP: OPTION` of built-in configs, or files beside it; `_self_` \
                        is this file.",
        "type": "array", "items": entry,
    });
    let mut stage = schema["properties"].clone();
    stage["name"] = json!({"description": "Name of the stage, appended to the names of the run and its folders.", "type": "string"});
    let stages = json!({
        "description": "Consecutive runs, each with keys that override the file's, starting from the checkpoint of the previous \
                        one.",
        "type": "array",
        "items": {"type": "object", "properties": stage, "required": ["name"], "additionalProperties": false},
    });
    schema["properties"]["defaults"] = defaults;
    schema["properties"]["stages"] = stages;
    schema
}

/// Makes keys optional, and allows `${…}` for values that are not text.
fn relax(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    map.remove("required");
    for key in ["properties", "$defs"] {
        for child in map.get_mut(key).and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
            relax(child);
            shorten(child);
            if key == "properties" && is_plain(child) && !takes_text(child) {
                let described = child.as_object_mut().and_then(|child| child.remove("description"));
                let plain = child.take();
                *child = json!({"anyOf": [plain, {"type": "string", "pattern": "\\$\\{"}]});
                if let Some(described) = described {
                    child["description"] = described;
                }
            }
        }
    }
    for key in ["items", "additionalProperties"] {
        map.get_mut(key).into_iter().for_each(relax);
    }
    for key in ["anyOf", "oneOf"] {
        map.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten().for_each(relax);
    }
}

/// Allows a list to be written as one of its items, and an item with one required key as text.
fn shorten(schema: &mut Value) {
    let items = &schema["items"];
    let item = match short_key(items) {
        Some(_) => json!({"anyOf": [items, {"type": "string"}]}),
        None if schema["x-one-or-more"] == true => items.clone(),
        None => return,
    };
    let described = schema.as_object_mut().and_then(|schema| schema.remove("description"));
    schema["items"] = item.clone();
    *schema = json!({"anyOf": [schema.take(), item]});
    if let Some(described) = described {
        schema["description"] = described;
    }
}

/// Returns whether the value is a scalar: `${…}` does not stand for a map or a list.
fn is_plain(schema: &Value) -> bool {
    let is_large = |name: &Value| name == "object" || name == "array";
    let of_type =
        is_large(&schema["type"]) || schema["type"].as_array().is_some_and(|types| types.iter().any(is_large));
    schema["$ref"].is_null() && schema["anyOf"].is_null() && !of_type
}

/// Returns whether any text is valid.
fn takes_text(schema: &Value) -> bool {
    let is_text = |name: &Value| name == "string";
    let of_type = is_text(&schema["type"]) || schema["type"].as_array().is_some_and(|types| types.iter().any(is_text));
    of_type && schema["enum"].is_null() && schema["pattern"].is_null()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_editor_knows_every_key_and_requires_none() {
        let schema = editor_schema();
        assert_eq!(schema.to_string().matches("\"required\"").count(), 1, "the name of a stage");
        let keys = schema["properties"].as_object().unwrap();
        let own = SCHEMA["properties"].as_object().unwrap();
        assert!(own.keys().all(|key| keys.contains_key(key)) && keys.contains_key("defaults"));
        // A number may be `${…}`, and keeps what is said of it.
        let steps = &schema["$defs"]["Train"]["properties"]["steps"];
        assert_eq!(steps["anyOf"][1]["pattern"], "\\$\\{");
        assert!(steps["description"].as_str().is_some_and(|text| !text.is_empty()), "{steps}");
        assert_eq!(steps["anyOf"][0]["type"], SCHEMA["$defs"]["Train"]["properties"]["steps"]["type"]);
        // A list may be written as its one item, and a data set as its path.
        let [path, train] =
            [("TrainFile", "path"), ("Data", "train")].map(|(of, key)| &schema["$defs"][of]["properties"][key]);
        assert_eq!([&path["anyOf"][1]["type"], &train["anyOf"][1]["anyOf"][1]["type"]], ["string", "string"]);
        assert_eq!(train["anyOf"][0]["items"], train["anyOf"][1]);
        // Unknown keys are marked.
        assert_eq!(schema["additionalProperties"], json!(false));
    }
}
