//! Single answers that people call good or bad, as TRL's KTO and LLaMA-Factory's `kto_tag` write them.
//!
//! ```json
//! {"prompt": "…", "completion": "…", "label": true}
//! {"prompt": [{"role": "user", …}], "completion": [{"role": "assistant", …}], "label": false}
//! {"messages": [{"role": "user", …}, {"role": "assistant", …}], "label": true}
//! {"conversations": [{"from": "human", …}, {"from": "gpt", …}], "kto_tag": true}
//! {"instruction": "…", "input": "…", "output": "…", "kto_tag": false}
//! ```

use serde_json::{Map, Value as Json};

use super::messages::Conversation;
use super::{beside, pairs};
use crate::data::error::DataError;

/// The keys of labels, which are `true` or `false`.
pub const LABELS: [&str; 2] = ["label", "kto_tag"];

/// An answer with its label. Only the answer's turns of the conversation count in the loss.
#[derive(Clone, Debug, PartialEq)]
pub struct Labeled {
    pub conversation: Conversation,
    pub is_good: bool,
}

impl Labeled {
    /// Returns the number of turns before the answer.
    fn prompt_len(&self) -> usize {
        let turns = &self.conversation.turns;
        let answer = turns.iter().position(|turn| turn.role == "assistant" && turn.learn != Some(false));
        answer.unwrap_or(turns.len())
    }

    /// Returns the conversation in which `other`'s answer follows this prompt.
    #[must_use]
    pub fn with_answer_of(&self, other: &Self) -> Conversation {
        let own = self.conversation.turns[..self.prompt_len()].iter();
        let turns = own.chain(&other.conversation.turns[other.prompt_len()..]).cloned().collect();
        Conversation { turns, ..self.conversation.clone() }
    }
}

/// Returns the record in the layout of `messages`, and its label.
///
/// # Errors
/// There is no label, or no prompt with an answer to it.
pub fn messages(mut record: Map<String, Json>) -> Result<(Map<String, Json>, bool), DataError> {
    let wrong = |reason: &str| DataError::Line(reason.to_owned());
    let label = LABELS.iter().find_map(|key| record.remove(*key).filter(|label| !label.is_null()));
    let is_good = match label {
        Some(Json::Bool(label)) => label,
        Some(other) => return Err(DataError::Line(format!("`label` must be true or false, found {other:.40}"))),
        None => return Err(wrong("missing field `label` or `kto_tag` (true or false)")),
    };
    // An answer is read as both answers of a pair.
    let from = ["completion", "output", "messages", "conversations"];
    let answer = from.iter().find_map(|key| Some((*key, record.remove(*key).filter(|answer| !answer.is_null())?)));
    let (key, answer) =
        answer.ok_or_else(|| wrong("missing field `completion`, `output`, `messages` or `conversations`"))?;
    if key == "conversations" {
        beside::wrap_tools(&mut record);
    }
    let [record, _] = pairs::with_answers(record, [(key, answer.clone()), (key, answer)])?;
    Ok((record, is_good))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::data::source::Turn;

    fn read(value: Json) -> Result<(Json, bool), String> {
        let (mut record, label) = messages(value.as_object().unwrap().clone()).map_err(|error| error.to_string())?;
        Ok((record.remove("messages").unwrap(), label))
    }

    #[test]
    fn every_spelling_is_a_conversation_with_a_label() {
        let [user, yes] =
            [("user", "Q"), ("assistant", "yes")].map(|(role, content)| json!({"role": role, "content": content}));
        for (record, label) in [
            (json!({"prompt": "Q", "completion": "yes", "label": true}), true),
            (json!({"prompt": [user], "completion": [yes], "label": false}), false),
            (json!({"messages": [user, yes], "label": true}), true),
            (
                json!({"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "yes"}], "kto_tag": false}),
                false,
            ),
            (json!({"instruction": "Q", "input": "", "output": "yes", "kto_tag": true}), true),
            (
                json!({"messages": [{"role": "human", "content": "Q"}, {"role": "gpt", "content": "yes"}], "label": true}),
                true,
            ),
        ] {
            assert_eq!(read(record.clone()).unwrap(), (json!([user, yes]), label), "{record}");
        }
        let record = json!({"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "yes"}],
            "kto_tag": true, "tools": [{"name": "f"}]});
        let (record, _) = messages(record.as_object().unwrap().clone()).unwrap();
        assert_eq!(record["tools"], json!([{"type": "function", "function": {"name": "f"}}]));
        let (earlier, _) = read(json!({"messages": [user, yes, user, yes], "label": true})).unwrap();
        assert_eq!((&earlier[1]["weight"], earlier[3].get("weight")), (&json!(0), None), "the last answer counts");
    }

    #[test]
    fn what_has_no_label_or_answer_is_named() {
        for (record, part) in [
            (json!({"prompt": "Q", "completion": "A"}), "`label`"),
            (json!({"prompt": "Q", "completion": "A", "label": 1}), "`label` must be true or false, found 1"),
            (json!({"prompt": "Q", "label": true}), "`completion`"),
            (json!({"completion": "A", "label": true}), "no prompt: `completion` is the answer alone"),
            (
                json!({"prompt": "Q", "completion": [{"role": "user", "content": "A"}], "label": true}),
                "`completion` must begin with a turn of the assistant",
            ),
        ] {
            let error = read(record).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn anothers_answer_follows_the_own_prompt() {
        let of = |prompt: &str, answer: &str| {
            let earlier = Turn { learn: Some(false), ..Turn::text("assistant", "e") };
            let turns =
                vec![Turn::text("user", "u"), earlier, Turn::text("user", prompt), Turn::text("assistant", answer)];
            Labeled { conversation: Conversation::text(turns), is_good: true }
        };
        let mixed = of("a", "b").with_answer_of(&of("c", "d"));
        assert_eq!(mixed, of("a", "d").conversation);
    }
}
