//! A record as something to be answered, whatever its layout.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use super::block::{Body, Record};
use super::layout::{RecordLayout, Whole};
use super::messages::Conversation;
use crate::data::error::DataError;

/// The text or conversation that a model is to continue.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    Chat(Conversation),
    /// A text that is given as it is, without a chat template.
    Text(String),
}

impl Question {
    /// Returns the question of a record in any layout of conversations or texts, and the answer that the record has, if any: the last
    /// assistant turn is not asked. A `prompt` without a `completion` is a user's words, or messages; an `instruction` needs no `output`.
    /// Files are relative to `folder`, which ends with a slash or is empty.
    ///
    /// # Errors
    /// The record is of no such layout, or it is wrong.
    pub fn of_record(record: Json, folder: &str) -> Result<(Self, Option<String>), DataError> {
        match Self::split(record, folder)? {
            (Self::Chat(conversation), Some(_)) if conversation.turns.is_empty() => {
                Err(DataError::Line("has an answer without a question before it".to_owned()))
            }
            asked => Ok(asked),
        }
    }

    fn split(record: Json, folder: &str) -> Result<(Self, Option<String>), DataError> {
        let Json::Object(mut fields) = record else {
            return Err(DataError::Line("is not an object of fields".to_owned()));
        };
        complete(&mut fields);
        let record = Record { body: Body::Json(Json::Object(fields)), ..Record::default() };
        let columns = BTreeMap::new();
        let layout = RecordLayout::of(&record, &columns).map_err(DataError::Line)?;
        match layout.read(record, &columns, folder)? {
            Whole::Text(text) => Ok((Self::Text(text), None)),
            Whole::Conversation(conversation) => {
                let answers = conversation.turns.last().is_some_and(|turn| turn.role == "assistant");
                match conversation.split_answer().filter(|_| answers) {
                    Some((question, answer)) => {
                        Ok((Self::Chat(question), Some(answer).filter(|answer| !answer.is_empty())))
                    }
                    None => Ok((Self::Chat(conversation), None)),
                }
            }
            Whole::Labeled(answer) => match answer.conversation.split_answer() {
                Some((question, answer)) => Ok((Self::Chat(question), Some(answer))),
                None => Ok((Self::Chat(answer.conversation), None)),
            },
            Whole::Pair(pair) => match pair.chosen.split_answer() {
                Some((question, answer)) => Ok((Self::Chat(question), Some(answer))),
                None => Ok((Self::Chat(pair.chosen), None)),
            },
            _ => Err(DataError::Line(format!("has the format {}, which contains no question", layout.name()))),
        }
    }
}

/// Puts the fields that a layout of training data has and a question need not have.
fn complete(fields: &mut Map<String, Json>) {
    let has = |fields: &Map<String, Json>, key: &str| fields.get(key).is_some_and(|value| !value.is_null());
    if has(fields, "messages") || has(fields, "conversations") {
        return;
    }
    if has(fields, "prompt") && !has(fields, "completion") && !has(fields, "instruction") {
        let messages = match fields.shift_remove("prompt") {
            Some(list @ Json::Array(_)) => list,
            prompt => json!([{"role": "user", "content": prompt}]),
        };
        fields.insert("messages".to_owned(), messages);
    } else if has(fields, "instruction") && !has(fields, "output") {
        fields.insert("output".to_owned(), "".into());
    } else if has(fields, "query") && !has(fields, "response") {
        fields.insert("response".to_owned(), "".into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_every_layout_are_questions() {
        let user = |text: &str| json!({"role": "user", "content": text});
        for (record, turns, expected) in [
            (json!({"prompt": "a"}), 1, None),
            (json!({"prompt": [user("a")]}), 1, None),
            (json!({"prompt": "a", "completion": "b"}), 1, Some("b")),
            (json!({"prompt": "a", "chosen": "b", "rejected": "c"}), 1, Some("b")),
            (json!({"messages": [user("a")]}), 1, None),
            (json!({"messages": [user("a"), {"role": "assistant", "content": "b"}]}), 1, Some("b")),
            (json!({"messages": [user("a"), {"role": "assistant", "content": "b"}, user("c")]}), 3, None),
            (json!({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}), 1, Some("b")),
            (json!({"instruction": "a", "input": "x"}), 1, None),
            (json!({"instruction": "a", "output": "b", "system": "s"}), 2, Some("b")),
            (json!({"query": "a"}), 1, None),
            (json!({"query": "a", "response": "b"}), 1, Some("b")),
        ] {
            let (question, answer) =
                Question::of_record(record.clone(), "").unwrap_or_else(|it| panic!("{record}: {it}"));
            let Question::Chat(conversation) = question else { panic!("{record}") };
            assert_eq!((conversation.turns.len(), answer.as_deref()), (turns, expected), "{record}");
        }
        let picture = json!({"prompt": "<image>a", "images": ["1.png"]});
        let (Question::Chat(conversation), _) = Question::of_record(picture, "d/").unwrap() else { panic!("a chat") };
        assert_eq!(conversation.media[0].name(), "d/1.png");
        assert_eq!(Question::of_record(json!({"text": "a"}), "").unwrap(), (Question::Text("a".into()), None));
        for wrong in [json!(1), json!({"question": "a"}), json!({"prompt": 5}), json!({"messages": []})] {
            assert!(Question::of_record(wrong.clone(), "").is_err(), "{wrong}");
        }
    }
}
