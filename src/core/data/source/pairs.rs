//! Pairs of answers to one prompt, as TRL, LLaMA-Factory and preference sets of the hub write them, as two conversations.
//!
//! ```json
//! {"prompt": "…", "chosen": "…", "rejected": "…"}
//! {"prompt": [{"role": "user", …}], "chosen": [{"role": "assistant", …}], "rejected": [{"role": "assistant", …}]}
//! {"chosen": [{"role": "user", …}, {"role": "assistant", …}], "rejected": [the same begin, another answer]}
//! {"conversations": [{"from": "human", …}], "chosen": {"from": "gpt", …}, "rejected": {"from": "gpt", …}}
//! {"instruction": "…", "input": "…", "chosen": "…", "rejected": "…"}
//! {"messages": [{"role": "user", …}, {"role": "assistant", …}], "rejected_response": "…"}
//! ```

use serde_json::{Map, Value as Json};

use super::messages::Conversation;
use super::{beside, flat, sharegpt};
use crate::data::error::DataError;

/// ms-swift's fields of the answer that is not preferred: its conversation, or its text.
pub const REJECTED: [&str; 2] = ["rejected_messages", "rejected_response"];

/// Two answers to one prompt. Only their turns count in the loss.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// The conversation with the answer that is preferred.
    pub chosen: Conversation,
    pub rejected: Conversation,
}

impl Pair {
    /// Returns both conversations, the chosen one first.
    pub fn answers(&self) -> [&Conversation; 2] {
        [&self.chosen, &self.rejected]
    }
}

/// Returns the record with the chosen answer, and with the rejected one, in the layout of `messages`.
///
/// # Errors
/// There is no prompt, an answer is missing or is not the assistant's.
pub fn messages(mut record: Map<String, Json>) -> Result<[Map<String, Json>; 2], DataError> {
    if !record.contains_key("chosen")
        && let Some(answers) = of_swift(&mut record)?
    {
        return with_answers(record, answers);
    }
    let answers = ["chosen", "rejected"].map(|key| match record.remove(key) {
        None | Some(Json::Null) => Err(wrong(format!("missing field `{key}`"))),
        Some(answer) => Ok((key, answer)),
    });
    let [chosen, rejected] = answers;
    with_answers(record, [chosen?, rejected?])
}

/// Takes both answers of a record of ms-swift, each with its prompt: `messages`, or `query` and `response`, have the preferred one, and a
/// field of [`REJECTED`] the other. `None`: there is no such field.
///
/// # Errors
/// The record has no conversation that ends with an answer.
fn of_swift(record: &mut Map<String, Json>) -> Result<Option<[(&'static str, Json); 2]>, DataError> {
    let found = REJECTED.into_iter().find_map(|key| Some((key, record.remove(key).filter(|it| !it.is_null())?)));
    let Some((key, rejected)) = found else { return Ok(None) };
    if record.get("messages").is_none_or(Json::is_null) {
        *record = flat::messages(std::mem::take(record))?;
    }
    let chosen = record.remove("messages").unwrap_or_default();
    let rejected = match rejected {
        text @ Json::String(_) => {
            let mut turns = chosen.as_array().cloned().unwrap_or_default();
            let last = turns.pop().map_or(Ok(Vec::new()), |turn| sharegpt::turns(turn, "assistant", "messages"))?;
            if last.first().is_none_or(|turn| turn["role"] != "assistant") {
                return Err(wrong(format!("`messages` beside `{key}` must end with the assistant's preferred answer")));
            }
            turns.extend(sharegpt::turns(text, "assistant", key)?);
            Json::Array(turns)
        }
        conversation => conversation,
    };
    Ok(Some([("messages", chosen), (key, rejected)]))
}

/// Works like [`messages`], with the answers apart from the record, each with the name of its field.
///
/// # Errors
/// It fails where [`messages`] fails on the prompt or an answer.
pub fn with_answers(
    mut record: Map<String, Json>,
    [(chosen_key, chosen), (rejected_key, rejected)]: [(&str, Json); 2],
) -> Result<[Map<String, Json>; 2], DataError> {
    if [&chosen, &rejected].into_iter().any(sharegpt::is_sharegpt) {
        beside::wrap_tools(&mut record);
    }
    let mut chosen = sharegpt::turns(chosen, "assistant", chosen_key)?;
    let mut rejected = sharegpt::turns(rejected, "assistant", rejected_key)?;
    // As in TRL: a text beside whole conversations repeats a part of them, and what both share is the prompt.
    let asks = |answer: &[Json]| answer.iter().any(|turn| turn["role"] == "user");
    let is_whole = |answer: &[Json]| answer.len() > 1 && answer[0]["role"] != "assistant" && asks(answer);
    let is_text = !flat::has_instruction(&record) && record.get("prompt").is_some_and(Json::is_string);
    let is_shared = is_text && is_whole(&chosen) && is_whole(&rejected);
    let asked = prompt(&mut record)?.filter(|_| !is_shared);
    let system = beside::system(&mut record)?;
    let mut prompt = match asked {
        Some(prompt) => {
            let with_system: Vec<Json> = system.iter().chain(&prompt).cloned().collect();
            // TRL's sets repeat the prompt in both answers, with the system message or without it.
            for answer in [&mut chosen, &mut rejected] {
                let is_repeated = |it: &&Vec<Json>| answer.len() > it.len() && same(&answer[..it.len()], it);
                if let Some(len) = [&with_system, &prompt].into_iter().find(is_repeated).map(Vec::len) {
                    answer.drain(..len);
                }
            }
            prompt
        }
        None => {
            let shared = chosen.iter().zip(&rejected).take_while(|(one, other)| one == other).count();
            // Of equal answers the last turn is the answer.
            let shared = shared.min(chosen.len().saturating_sub(1)).min(rejected.len().saturating_sub(1));
            rejected.drain(..shared);
            chosen.drain(..shared).collect()
        }
    };
    if prompt.is_empty() {
        let found = match chosen_key == rejected_key {
            true => format!("`{chosen_key}` is the answer alone"),
            false => format!("`{chosen_key}` and `{rejected_key}` have no turn in common"),
        };
        return Err(wrong(format!(
            "has no prompt: {found}, and there is no `prompt`; write it there, or name the field that has it in the file's \
             `columns`, such as columns: {{prompt: question}}"
        )));
    }
    if let Some(system) = system.filter(|_| prompt.iter().all(|turn| turn["role"] != "system")) {
        prompt.insert(0, system);
    }
    for (key, answer) in [(chosen_key, &chosen), (rejected_key, &rejected)] {
        let role = answer.first().map_or(&Json::Null, |turn| &turn["role"]);
        if role != "assistant" {
            return Err(wrong(format!("`{key}` must begin with a turn of the assistant, found {role}")));
        }
    }
    let prompt: Vec<Json> = prompt.into_iter().map(flat::of_prompt).collect();
    Ok([chosen, rejected].map(|answer| {
        let mut record = record.clone();
        record.insert("messages".to_owned(), Json::Array([prompt.clone(), answer].concat()));
        record
    }))
}

/// Returns the turns of the prompt, where the record has them apart from the answers.
fn prompt(record: &mut Map<String, Json>) -> Result<Option<Vec<Json>>, DataError> {
    if flat::has_instruction(record) {
        // As Alpaca's, whose answer is elsewhere.
        record.insert("output".to_owned(), "".into());
        let mut read = flat::messages(std::mem::take(record))?;
        let Some(Json::Array(mut turns)) = read.remove("messages") else { return Ok(None) };
        turns.pop();
        *record = read;
        return Ok(Some(turns));
    }
    let key = ["prompt", "conversations", "messages"]
        .into_iter()
        .find(|key| record.get(*key).is_some_and(|it| !it.is_null()));
    let Some(key) = key else { return Ok(None) };
    if key == "conversations" || sharegpt::is_sharegpt(&record[key]) {
        beside::wrap_tools(record);
    }
    let turns = sharegpt::turns(record.remove(key).unwrap_or_default(), "user", key)?;
    Ok(Some(turns))
}

fn same(one: &[Json], other: &[Json]) -> bool {
    one.iter().zip(other).all(|(one, other)| one["role"] == other["role"] && one["content"] == other["content"])
}

fn wrong(reason: impl Into<String>) -> DataError {
    DataError::Line(reason.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Json) -> Result<[Json; 2], String> {
        let found = messages(value.as_object().unwrap().clone()).map_err(|error| error.to_string())?;
        Ok(found.map(|mut record| record.remove("messages").unwrap()))
    }

    #[test]
    fn every_spelling_is_two_conversations_with_one_prompt() {
        let [user, yes, no] = [("user", "Q"), ("assistant", "yes"), ("assistant", "no")]
            .map(|(role, content)| json!({"role": role, "content": content}));
        let expected = [json!([user, yes]), json!([user, no])];
        for record in [
            json!({"prompt": "Q", "chosen": "yes", "rejected": "no"}),
            json!({"prompt": [user], "chosen": [yes], "rejected": [no]}),
            json!({"prompt": [user], "chosen": yes, "rejected": no}),
            json!({"chosen": [user, yes], "rejected": [user, no]}),
            json!({"prompt": "Q", "chosen": [user, yes], "rejected": [user, no]}),
            json!({"conversations": [{"from": "human", "value": "Q"}], "chosen": {"from": "gpt", "value": "yes"},
                   "rejected": {"from": "gpt", "value": "no"}}),
            json!({"instruction": "Q", "input": "", "chosen": "yes", "rejected": "no"}),
            json!({"messages": [user, yes], "rejected_response": "no"}),
            json!({"messages": [user, yes], "rejected_messages": [user, no], "rejected_response": null}),
            json!({"query": "Q", "response": "yes", "rejected_response": "no"}),
            json!({"messages": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "yes"}], "rejected_response": "no"}),
            json!({"messages": [{"role": "human", "content": "Q"}, {"role": "gpt", "content": "yes"}],
                   "rejected_response": "no"}),
        ] {
            assert_eq!(read(record.clone()).unwrap(), expected, "{record}");
        }
        let system = json!({"role": "system", "content": "S"});
        let expected = [json!([system, user, yes]), json!([system, user, no])];
        for record in [
            json!({"system": "S", "prompt": "Q", "chosen": "yes", "rejected": "no"}),
            json!({"system": "S", "prompt": "Q", "chosen": [user, yes], "rejected": [user, no]}),
            json!({"system": "S", "prompt": "Q", "chosen": [system, user, yes], "rejected": [system, user, no]}),
            json!({"system": "S", "chosen": [user, yes], "rejected": [user, no]}),
            json!({"instruction": null, "system": "S", "chosen": [user, yes], "rejected": [user, no]}),
            json!({"system": "S", "chosen": [system, user, yes], "rejected": [system, user, no]}),
            json!({"prompt": "Q", "chosen": [system, user, yes], "rejected": [system, user, no]}),
        ] {
            assert_eq!(read(record.clone()).unwrap(), expected, "{record}");
        }
        let both = json!({"prompt": "Q", "chosen": [user, no, user, yes], "rejected": [user, no, user, no]});
        let earlier = json!({"role": "assistant", "content": "no", "weight": 0});
        assert_eq!(read(both).unwrap(), [json!([user, earlier, user, yes]), json!([user, earlier, user, no])]);
        // Without the prompt nobody asks.
        let error = read(json!({"prompt": "Q", "chosen": [system, yes], "rejected": [system, no]})).unwrap_err();
        assert!(error.contains("`chosen` must begin with a turn of the assistant, found \"system\""), "{error}");
    }

    #[test]
    fn earlier_answers_do_not_count_and_other_fields_stay() {
        let record = json!({"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "train": true},
            {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}],
            "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "train": true},
            {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}], "images": ["x"], "system": "s"});
        let [chosen, rejected] = messages(record.as_object().unwrap().clone()).unwrap();
        assert_eq!(chosen, rejected, "equal answers are no mistake");
        assert_eq!(chosen["messages"][0], json!({"role": "system", "content": "s"}));
        assert_eq!((&chosen["images"], &chosen["messages"][2]["weight"]), (&json!(["x"]), &json!(0)));
        assert!(chosen["messages"][2].get("train").is_none() && chosen["messages"][4].get("weight").is_none());
        let [chosen, _] = read(json!({"conversations": [{"from": "human", "value": "Q"}], "system": "S",
            "chosen": {"from": "gpt", "value": "y"}, "rejected": {"from": "gpt", "value": "n"}}))
        .unwrap();
        assert_eq!(chosen[0], json!({"role": "system", "content": "S"}));
        let asked = json!([{"from": "human", "value": "Q"}]);
        let [yes, no] = ["y", "n"].map(|said| json!({"from": "gpt", "value": said}));
        for mut called in [
            json!({"conversations": asked, "chosen": yes, "rejected": no}),
            json!({"prompt": asked, "chosen": "y", "rejected": "n"}),
            json!({"chosen": [asked[0], yes], "rejected": [asked[0], no]}),
        ] {
            called["tools"] = "[{\"name\": \"f\"}]".into();
            let [chosen, _] = messages(called.as_object().unwrap().clone()).unwrap();
            assert_eq!(chosen["tools"], json!([{"type": "function", "function": {"name": "f"}}]));
        }
    }

    #[test]
    fn what_is_no_pair_is_named() {
        for (record, part) in [
            (json!({"prompt": "Q", "chosen": "a"}), "`rejected`"),
            (json!({"chosen": "a", "rejected": "b"}), "no prompt"),
            (
                json!({"messages": [{"role": "user", "content": "a"}], "rejected_response": "b"}),
                "`messages` beside `rejected_response` must end with the assistant's preferred answer",
            ),
            (json!({"prompt": "Q", "chosen": 1, "rejected": "b"}), "`chosen` must be text or messages, found 1"),
            (json!({"prompt": "Q", "chosen": "a", "rejected": "b", "system": 3}), "`system` must be text, found 3"),
            (
                json!({"prompt": "Q", "chosen": [{"role": "user", "content": "a"}], "rejected": "b"}),
                "must begin with a turn of the assistant",
            ),
        ] {
            let error = read(record).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
