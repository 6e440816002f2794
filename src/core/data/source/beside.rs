//! The fields that a record has beside its turns: the system's message, tools, and what ms-swift fills into messages.

use serde_json::{Map, Value as Json, json};

use crate::data::error::DataError;

/// Takes a field that is a text; `None` where it is not there, or `null`.
///
/// # Errors
/// It is another value, which would be left out of what the model reads.
pub fn text(record: &mut Map<String, Json>, key: &str) -> Result<Option<String>, DataError> {
    match record.remove(key) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(text)) => Ok(Some(text)),
        Some(other) => Err(DataError::Line(format!("`{key}` must be text, found {other:.40}"))),
    }
}

/// Takes the system message that a record has beside its turns; an empty one is none.
///
/// # Errors
/// It is no text.
pub fn system(record: &mut Map<String, Json>) -> Result<Option<Json>, DataError> {
    let text = text(record, "system")?.filter(|text| !text.is_empty());
    Ok(text.map(|text| json!({ "role": "system", "content": text })))
}

/// Puts the system message that a record has beside its `messages` before them, unless they have one.
///
/// # Errors
/// It is no text.
pub fn with_system(mut record: Map<String, Json>) -> Result<Map<String, Json>, DataError> {
    if let Some(system) = system(&mut record)?
        && let Some(Json::Array(turns)) = record.get_mut("messages")
        && turns.iter().all(|turn| turn["role"] != "system")
    {
        turns.insert(0, system);
    }
    Ok(record)
}

/// Puts descriptions of functions that stand alone, as LLaMA-Factory's data has them, into what chat templates take:
/// `{"type": "function", "function": …}`.
pub fn wrap_tools(record: &mut Map<String, Json>) {
    let Some(tools) = record.get_mut("tools") else { return };
    if let Json::String(text) = &*tools
        && let Ok(parsed) = serde_json::from_str::<Json>(text)
    {
        *tools = parsed;
    }
    let list = match tools {
        Json::Array(list) => list.as_mut_slice(),
        one => std::slice::from_mut(one),
    };
    for tool in list {
        if let Json::String(text) = &*tool
            && let Ok(parsed) = serde_json::from_str::<Json>(text)
        {
            *tool = parsed;
        }
        if tool["name"].is_string() && tool["type"] != "function" {
            *tool = json!({ "type": "function", "function": tool.take() });
        }
    }
}

/// The placeholders of a name and of a box of `objects` in ms-swift's messages.
const OF_OBJECTS: [&str; 2] = ["<ref-object>", "<bbox>"];

/// Refuses `messages` in which names and boxes of a record's `objects` are to be filled in: their placeholders would be learned.
///
/// # Errors
/// There are `objects`, and a message has a placeholder.
pub fn expect_no_objects(record: &Map<String, Json>) -> Result<(), DataError> {
    if !record.get("objects").is_some_and(Json::is_object) {
        return Ok(());
    }
    let messages = record.get("messages").map(Json::to_string).unwrap_or_default();
    match OF_OBJECTS.into_iter().find(|placeholder| messages.contains(placeholder)) {
        None => Ok(()),
        Some(placeholder) => Err(DataError::Line(format!(
            "has `objects`, as ms-swift reads them, and {placeholder} in its messages, which would be learned as it stands: write \
             the names and boxes into the messages, in the form of the model"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_that_are_to_be_filled_in_are_refused() {
        let expect = |answer: &str, objects: Json| {
            let turns = json!([{"role": "user", "content": "Where?"}, {"role": "assistant", "content": answer}]);
            expect_no_objects(json!({"messages": turns, "objects": objects}).as_object().unwrap())
        };
        let boxes = json!({"bbox": [[1, 2, 3, 4]]});
        let error = expect("<bbox>", boxes.clone()).unwrap_err().to_string();
        assert!(error.contains("`objects`") && error.contains("<bbox> in its messages"), "{error}");
        expect("[1, 2, 3, 4]", boxes).unwrap();
        expect("<bbox>", Json::Null).unwrap();
    }
}
