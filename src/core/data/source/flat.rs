//! Alpaca's instructions, and TRL's prompts with completions, as messages.

use serde_json::{Map, Value as Json, json};

use super::beside::{system, text, with_system, wrap_tools};
use super::sharegpt;
use crate::data::error::DataError;

/// The fields of the words of the user and of the assistant, of Alpaca and of ms-swift.
const NAMES: [[&str; 2]; 2] = [["instruction", "output"], ["query", "response"]];

/// Returns whether a record has an instruction; rows of tables of mixed layouts have `null` where they have none.
pub fn has_instruction(record: &Map<String, Json>) -> bool {
    record.get(NAMES[0][0]).is_some_and(|value| !value.is_null())
}

/// Takes an answer of a prompt out of the loss, whatever it says of it: what counts is the answer to the prompt.
pub fn of_prompt(mut turn: Json) -> Json {
    let answers = turn["role"] == "assistant";
    if let Some(turn) = turn.as_object_mut().filter(|_| answers) {
        ["weight", "train", "training", "loss", "loss_mask"].iter().for_each(|key| drop(turn.remove(*key)));
        turn.insert("weight".to_owned(), 0.into());
    }
    turn
}

/// `instruction` and `input`, joined by a line's end where both say something, are the user's words and `output` the assistant's;
/// `history` has earlier pairs of both. `query` and `response` are the same as `instruction` and `output`. `prompt` and `completion` are
/// texts of the two, or messages, of which those of the completion alone are learned.
///
/// # Errors
/// No instruction or prompt, no output or completion, or one that is no text.
pub fn messages(mut record: Map<String, Json>) -> Result<Map<String, Json>, DataError> {
    let missing = |key: &str| DataError::Line(format!("missing field `{key}` (text)"));
    let is_alpaca = has_instruction(&record);
    let is_completed = record.get("completion").is_some_and(|value| !value.is_null());
    let is_of_swift = !is_alpaca && !is_completed && record.contains_key(NAMES[1][0]);
    if !is_alpaca && !is_of_swift && record.contains_key("completion") {
        if ["prompt", "completion"].iter().any(|key| record.get(*key).is_some_and(sharegpt::is_sharegpt)) {
            wrap_tools(&mut record);
        }
        let mut turns = |key: &str, role: &str| {
            let value = record.remove(key).filter(|value| !value.is_null()).ok_or_else(|| missing(key))?;
            sharegpt::turns(value, role, key)
        };
        let (prompt, completion) = (turns("prompt", "user")?, turns("completion", "assistant")?);
        let messages = prompt.into_iter().map(of_prompt).chain(completion).collect();
        record.insert("messages".to_owned(), Json::Array(messages));
        return with_system(record);
    }
    let [asked, said] = NAMES[usize::from(is_of_swift)];
    let system = system(&mut record)?;
    let instruction = text(&mut record, asked)?.ok_or_else(|| missing(asked))?;
    let input = text(&mut record, "input")?;
    let output = text(&mut record, said)?.ok_or_else(|| missing(said))?;
    let history = match record.remove("history") {
        None | Some(Json::Null) => Vec::new(),
        Some(Json::String(text)) if text.is_empty() => Vec::new(),
        Some(Json::Array(pairs)) => pairs,
        Some(_) => return Err(DataError::Line("`history` must be a list of pairs [question, answer]".to_owned())),
    };
    let mut messages = Vec::from_iter(system);
    let mut say = |role: &str, content: &str| messages.push(json!({ "role": role, "content": content }));
    for pair in &history {
        let (Some(question), Some(answer)) = (pair[0].as_str(), pair[1].as_str()) else {
            return Err(DataError::Line("`history` must be a list of pairs [question, answer]".to_owned()));
        };
        say("user", question);
        say("assistant", answer);
    }
    let asked = [Some(instruction), input].into_iter().flatten().filter(|text| !text.is_empty());
    say("user", &asked.collect::<Vec<_>>().join("\n"));
    say("assistant", &output);
    wrap_tools(&mut record);
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
        for (instruction, input, asked) in [("I", "", "I"), ("", "X", "X"), ("", "", "")] {
            let record = json!({"instruction": instruction, "input": input, "output": "O"});
            assert_eq!(read(record).unwrap()["messages"][0]["content"], asked);
        }
        let of_swift = json!({"query": "c", "response": "d", "history": [["a", "b"]], "images": ["x"]});
        let record = read(of_swift).unwrap();
        let turns = record["messages"].as_array().unwrap();
        assert_eq!(turns.iter().map(|turn| turn["content"].as_str().unwrap()).collect::<String>(), "abcd");
        assert!(read(json!({"query": "c", "response": 3})).unwrap_err().to_string().contains("`response`"));
        // Rows of a table that has other layouts beside.
        for (mut record, asked) in
            [(json!({"query": "c", "response": "d"}), "c"), (json!({"prompt": "P", "completion": "C"}), "P")]
        {
            record["instruction"] = Json::Null;
            assert_eq!(read(record).unwrap()["messages"][0]["content"], asked);
        }
        let of_mixed = json!({"prompt": null, "completion": null, "query": "c", "response": "d"});
        assert_eq!(read(of_mixed).unwrap()["messages"][0]["content"], "c");
        let turns = json!([{"role": "user", "content": "P"}, {"role": "assistant", "content": "C"}]);
        let pairs =
            [json!({"prompt": "P", "completion": "C"}), json!({"prompt": [turns[0]], "completion": [turns[1]]})];
        pairs.into_iter().for_each(|pair| assert_eq!(read(pair).unwrap()["messages"], turns));
        let sharegpt =
            json!({"prompt": [{"from": "human", "value": "P"}], "completion": {"from": "gpt", "value": "C"}});
        assert_eq!(read(sharegpt.clone()).unwrap()["messages"], turns);
        // Only ShareGPT's functions stand alone.
        let tools = json!([{"name": "f"}]);
        let wrapped = json!([{"type": "function", "function": tools[0]}]);
        for (mut record, expected) in [(sharegpt, wrapped), (json!({"prompt": "P", "completion": "C"}), tools.clone())]
        {
            record["tools"] = tools.clone();
            assert_eq!(read(record).unwrap()["tools"], expected);
        }
        assert!(read(json!({"prompt": 5, "completion": "C"})).unwrap_err().to_string().contains("found 5"));
        // As in TRL: answers in the prompt do not count.
        let earlier = json!([turns[0], {"role": "assistant", "content": "A", "train": true}, turns[0]]);
        let read_back = read(json!({"prompt": earlier, "completion": [turns[1]]})).unwrap();
        let unlearned = json!({"role": "assistant", "content": "A", "weight": 0});
        assert_eq!(read_back["messages"], json!([turns[0], unlearned, turns[0], turns[1]]));
        assert!(read(json!({"completion": "C"})).unwrap_err().to_string().contains("`prompt`"));
        assert!(read(json!({"instruction": "I"})).unwrap_err().to_string().contains("`output`"));
        // What is no text would be left out of the question.
        for (key, value) in
            [("input", json!(5)), ("system", json!(["S"])), ("output", json!(3)), ("history", json!({"a": "b"}))]
        {
            let mut record = json!({"instruction": "I", "output": "O"});
            record[key] = value;
            assert!(read(record).unwrap_err().to_string().contains(&format!("`{key}`")), "{key}");
        }
        let asked = json!({"prompt": "P", "completion": "C", "system": "S"});
        assert_eq!(read(asked).unwrap()["messages"][0], json!({"role": "system", "content": "S"}));
        assert!(
            read(json!({"instruction": "I", "output": "O", "history": ["a"]}))
                .unwrap_err()
                .to_string()
                .contains("history")
        );
    }
}
