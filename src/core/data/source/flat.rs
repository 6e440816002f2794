//! Alpaca's instructions, and TRL's prompts with completions, as messages.

use serde_json::{Map, Value as Json, json};

use crate::data::error::DataError;

/// `instruction` and `input`, joined by a line's end, are the user's words and `output` the assistant's; `history` has earlier
/// pairs of both. `prompt` and `completion` are texts of the two, or messages.
///
/// # Errors
/// No instruction or prompt, no output or completion.
pub fn messages(mut record: Map<String, Json>) -> Result<Map<String, Json>, DataError> {
    let missing = |key: &str| DataError::Line(format!("missing field `{key}`, a text"));
    if !record.contains_key("instruction") && record.contains_key("completion") {
        let mut turns = |key: &str, role: &str| match record.remove(key) {
            Some(Json::Array(turns)) => Ok(turns),
            Some(Json::String(content)) => Ok(vec![json!({ "role": role, "content": content })]),
            _ => Err(missing(key)),
        };
        let messages = [turns("prompt", "user")?, turns("completion", "assistant")?].concat();
        record.insert("messages".to_owned(), Json::Array(messages));
        return Ok(record);
    }
    let mut text = |keys: &[&str]| keys.iter().find_map(|key| record.remove(*key)?.as_str().map(str::to_owned));
    let system = text(&["system"]);
    let instruction = text(&["instruction"]).ok_or_else(|| missing("instruction"))?;
    let input = text(&["input"]).filter(|input| !input.is_empty());
    let output = text(&["output"]).ok_or_else(|| missing("output"))?;
    let mut messages = Vec::new();
    let mut say = |role: &str, content: &str| messages.push(json!({ "role": role, "content": content }));
    if let Some(system) = system.filter(|system| !system.is_empty()) {
        say("system", &system);
    }
    for pair in record.remove("history").iter().filter_map(Json::as_array).flatten() {
        let (Some(question), Some(answer)) = (pair[0].as_str(), pair[1].as_str()) else {
            return Err(DataError::Line("`history` is not a list of pairs [question, answer]".to_owned()));
        };
        say("user", question);
        say("assistant", answer);
    }
    say("user", &input.map_or_else(|| instruction.clone(), |input| format!("{instruction}\n{input}")));
    say("assistant", &output);
    record.insert("messages".to_owned(), Json::Array(messages));
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_inputs_and_history_are_turns() {
        let read = |value: Json| messages(value.as_object().unwrap().clone());
        let record = read(
            json!({"instruction": "Add.", "input": "1 2", "output": "3", "system": "S", "history": [["a", "b"]], "images": ["x"]}),
        );
        let record = record.unwrap();
        let turns: Vec<&str> =
            record["messages"].as_array().unwrap().iter().map(|turn| turn["content"].as_str().unwrap()).collect();
        assert_eq!((turns, &record["images"]), (vec!["S", "a", "b", "Add.\n1 2", "3"], &json!(["x"])));
        assert_eq!(
            read(json!({"instruction": "I", "input": "", "output": "O"})).unwrap()["messages"][0]["content"],
            "I"
        );
        let turns = json!([{"role": "user", "content": "P"}, {"role": "assistant", "content": "C"}]);
        let pairs =
            [json!({"prompt": "P", "completion": "C"}), json!({"prompt": [turns[0]], "completion": [turns[1]]})];
        pairs.into_iter().for_each(|pair| assert_eq!(read(pair).unwrap()["messages"], turns));
        assert!(read(json!({"completion": "C"})).unwrap_err().to_string().contains("`prompt`"));
        assert!(read(json!({"instruction": "I"})).unwrap_err().to_string().contains("`output`"));
        assert!(
            read(json!({"instruction": "I", "output": "O", "history": ["a"]}))
                .unwrap_err()
                .to_string()
                .contains("history")
        );
    }
}
