//! ShareGPT's and LLaVA's conversations as messages: `from` and `value`, functions called in turns of their own.

use serde_json::{Map, Value as Json, json};

use super::beside;
use super::messages::{AUDIO_PLACEHOLDER, IMAGE_PLACEHOLDER, VIDEO_PLACEHOLDER};
use crate::data::error::DataError;
use crate::data::file_kind::{FileKind, kind_of};

/// Returns the record in the layout of `messages`. `conversations` may also lie under `messages`, and turns may have `role` and
/// `content`. `system` is the system's message of a conversation that has none. Turns of NeMo's multimodal conversations have a `type`,
/// and those of one role in a row are one message.
///
/// # Errors
/// No turns, a turn without text, a role that is not known, a `system` that is no text.
pub fn messages(mut record: Map<String, Json>) -> Result<Map<String, Json>, DataError> {
    let wrong = |reason: String| DataError::Line(reason);
    let mut named = ["conversations", "conversation", "messages"].iter();
    // Rows of tables of mixed layouts have `null` where they have none.
    let turns = named.find_map(|key| record.remove(*key).filter(|turns| !turns.is_null()));
    let Some(Json::Array(turns)) = turns else {
        return Err(wrong("missing field `conversations`, a list of {\"from\": …, \"value\": …}".to_owned()));
    };
    let system = beside::system(&mut record)?;
    let mut messages: Vec<Json> = Vec::with_capacity(turns.len() + 1);
    let mut was_typed = false;
    for turn in turns {
        let Json::Object(mut turn) = turn else { return Err(wrong("a turn is not an object".to_owned())) };
        let role = turn.remove("from").or_else(|| turn.remove("role"));
        let Some(Json::String(role)) = role else { return Err(wrong("a turn has no `from`".to_owned())) };
        let content = turn.remove("value").or_else(|| turn.remove("content")).unwrap_or_default();
        let (role, content) = match role.to_lowercase().as_str() {
            "human" | "user" => ("user", content),
            "gpt" | "assistant" | "bot" | "chatgpt" | "model" => ("assistant", content),
            "system" => ("system", content),
            "observation" | "tool" | "function_response" | "function" => ("tool", content),
            "function_call" | "tool_call" => match calls(&content) {
                Some((thought, calls)) => {
                    turn.insert("tool_calls".to_owned(), calls);
                    ("assistant", thought.into())
                }
                None => ("assistant", content),
            },
            _ => {
                return Err(wrong(format!(
                    "a turn has the unknown `from` {role:?}; supported: human, gpt, system, function_call and \
                     observation"
                )));
            }
        };
        if content.is_null() && !turn.contains_key("tool_calls") {
            return Err(wrong("a turn has no `value`".to_owned()));
        }
        let typed = typed(&mut turn, &content);
        if let (Some(part), true, Some(last)) = (&typed, was_typed, messages.last_mut())
            && last["role"] == role
        {
            join(last, part.clone());
            continue;
        }
        was_typed = typed.is_some();
        let content = match typed {
            Some(part) if part["type"] == "audio" => json!([part]),
            _ => content,
        };
        turn.insert("role".to_owned(), role.into());
        turn.insert("content".to_owned(), content);
        messages.push(Json::Object(turn));
    }
    if let Some(system) = system.filter(|_| messages.iter().all(|turn| turn["role"] != "system")) {
        messages.insert(0, system);
    }
    beside::wrap_tools(&mut record);
    name_files(&mut record);
    record.insert("messages".to_owned(), Json::Array(messages));
    Ok(record)
}

/// Returns the part that a turn of NeMo's multimodal conversations is, by its `type`: text, or a recording with its segment. `None`: it
/// has no such type.
fn typed(turn: &mut Map<String, Json>, content: &Json) -> Option<Json> {
    let value = content.as_str()?;
    let is_text = match turn.get("type")?.as_str()? {
        "text" => true,
        "audio" => false,
        _ => return None,
    };
    turn.remove("type");
    if is_text {
        return Some(json!({ "type": "text", "text": value }));
    }
    let mut part = json!({ "type": "audio", "audio": value });
    for key in ["offset", "duration"] {
        if let Some(seconds) = turn.remove(key).filter(|seconds| !seconds.is_null()) {
            part[key] = seconds;
        }
    }
    Some(part)
}

/// Adds a part to the message of the turn before, with a space between them, as NeMo joins turns.
fn join(message: &mut Json, part: Json) {
    let parts = match message["content"].take() {
        Json::Array(parts) => parts,
        text => vec![json!({ "type": "text", "text": text })],
    };
    let space = json!({ "type": "text", "text": " " });
    message["content"] = parts.into_iter().chain([space, part]).collect();
}

/// Returns whether a value is a turn of ShareGPT's kind, or a list with one: it has `from`, or a `role` that messages never have.
pub fn is_sharegpt(value: &Json) -> bool {
    let is_one = |turn: &Json| turn.get("from").is_some() || turn["role"] == "human" || turn["role"] == "gpt";
    value.as_array().map_or_else(|| is_one(value), |turns| turns.iter().any(is_one))
}

/// Returns a text of `role`, a turn, or a list of turns, as messages.
///
/// # Errors
/// It is neither, or a turn of ShareGPT's kind is wrong.
pub fn turns(value: Json, role: &str, key: &str) -> Result<Vec<Json>, DataError> {
    let is_own = is_sharegpt(&value);
    let list = match value {
        Json::String(content) => return Ok(vec![json!({ "role": role, "content": content })]),
        Json::Array(list) => list,
        turn @ Json::Object(_) => vec![turn],
        other => return Err(DataError::Line(format!("`{key}` must be text or messages, found {other:.40}"))),
    };
    if !is_own {
        return Ok(list);
    }
    let record = Map::from_iter([("conversations".to_owned(), Json::Array(list))]);
    match messages(record)?.remove("messages") {
        Some(Json::Array(turns)) => Ok(turns),
        _ => Ok(Vec::new()),
    }
}

/// Files under `image`, `video` and `audio` are those under `images`, `videos` and `audios`, where there are none. Tables of mixed
/// rows have an empty text or list in those without files.
pub fn name_files(record: &mut Map<String, Json>) {
    let is_some = |value: &Json| match value {
        Json::Null => false,
        Json::String(name) => !name.is_empty(),
        Json::Array(files) => !files.is_empty(),
        _ => true,
    };
    for (one, many) in [("image", "images"), ("video", "videos"), ("audio", "audios")] {
        let [listed, single] = [many, one].map(|key| record.remove(key).filter(is_some));
        record.insert(many.to_owned(), listed.or(single).unwrap_or_default());
    }
}

/// Reads `{"name": …, "arguments": …}` or a list of these, as text, and the thought that stands before them in `<think>`.
fn calls(content: &Json) -> Option<(String, Json)> {
    let (thought, value) = match content {
        Json::String(text) => match text.split_once("</think>") {
            Some((thought, calls)) if thought.trim_start().starts_with("<think>") => {
                (format!("{thought}</think>"), serde_json::from_str(calls).ok()?)
            }
            _ => (String::new(), serde_json::from_str(text).ok()?),
        },
        other => (String::new(), other.clone()),
    };
    let list = match value {
        Json::Array(list) => list,
        one => vec![one],
    };
    let call = |call: Json| call["name"].is_string().then(|| json!({ "type": "function", "function": call }));
    Some((thought, list.into_iter().map(call).collect::<Option<Json>>()?))
}

/// Puts files for which no turn has a placeholder before the first user's words.
pub fn place_files(record: &mut Map<String, Json>) {
    let count = |record: &Map<String, Json>, key: &str| match &record.get(key) {
        Some(Json::Array(list)) => list.len(),
        None | Some(Json::Null) => 0,
        Some(_) => 1,
    };
    let mut prefix = String::new();
    for (key, word) in [("images", IMAGE_PLACEHOLDER), ("videos", VIDEO_PLACEHOLDER), ("audios", AUDIO_PLACEHOLDER)] {
        let turns = record.get("messages").and_then(Json::as_array);
        let says = |turn: &Json| turn["content"].as_str().is_none_or(|text| text.contains(word));
        if !turns.into_iter().flatten().any(says) {
            prefix += &format!("{word}\n").repeat(count(record, key));
        }
    }
    let turns = record.get_mut("messages").and_then(Json::as_array_mut).into_iter().flatten();
    if let Some(user) = turns.into_iter().find(|turn| turn["role"] == "user")
        && let Json::String(text) = &user["content"]
    {
        user["content"] = format!("{prefix}{text}").into();
    }
}

/// A record in an archive that lists no files means those beside it, if its text has a place for each.
pub fn take_members<'a>(record: &mut Map<String, Json>, members: impl Iterator<Item = &'a str>) {
    let lists = |key: &str| record.get(key).is_some_and(|value| !value.is_null());
    if ["images", "videos", "audios"].into_iter().any(lists) {
        return;
    }
    let is_structured = |turn: &Json| turn["content"].is_array();
    if record.get("messages").and_then(Json::as_array).into_iter().flatten().any(is_structured) {
        return;
    }
    let mut found: [(&str, Vec<Json>); 3] = [("images", vec![]), ("videos", vec![]), ("audios", vec![])];
    for member in members {
        match kind_of(member) {
            Some(FileKind::Picture) => found[0].1.push(member.into()),
            Some(FileKind::Clip) => found[1].1.push(member.into()),
            Some(FileKind::Recording) => found[2].1.push(member.into()),
            None => {}
        }
    }
    for (key, members) in found.into_iter().filter(|(_, members)| !members.is_empty()) {
        record.insert(key.to_owned(), Json::Array(members));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::audio::Segment;
    use crate::data::source::locate::AsNamed;
    use crate::data::source::messages::{Conversation, MediaSource, Part};

    fn read(mut value: Json) -> Result<Conversation, DataError> {
        let record = messages(value.as_object_mut().unwrap().clone())?;
        Conversation::from_json(Json::Object(record), &AsNamed)
    }

    #[test]
    fn turns_tools_and_pictures_are_those_of_messages() {
        let ours = read(json!({"conversations": [
            {"from": "human", "value": "<image>What?"},
            {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"a\": 1}}"},
            {"from": "observation", "value": "2"}, {"from": "gpt", "value": "two"}],
            "system": "Be brief.", "tools": "[{\"name\": \"f\"}]", "image": "a.jpg"}))
        .unwrap();
        let same = read(json!({"messages": [{"role": "system", "content": "Be brief."},
            {"role": "user", "content": "<image>What?"},
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]},
            {"role": "tool", "content": "2"}, {"role": "assistant", "content": "two"}],
            "tools": [{"name": "f"}], "images": ["a.jpg"]})).unwrap();
        assert_eq!(ours, same);
        assert_eq!(
            ours.turns.iter().map(|turn| turn.role.as_str()).collect::<Vec<_>>(),
            ["system", "user", "assistant", "tool", "assistant"]
        );
        let both = json!({"conversations": [{"from": "system", "value": "own"}, {"from": "human", "value": "Q"}],
            "system": "beside"});
        let texts: Vec<String> = read(both).unwrap().turns.iter().map(|turn| turn.joined_text()).collect();
        assert_eq!(texts, ["own", "Q"], "as in LLaMA-Factory, the conversation's own is the system's message");
        let thinks = json!({"conversations": [{"from": "human", "value": "Q"},
            {"from": "function_call", "value": "<think>\nhm\n</think>\n\n{\"name\": \"f\", \"arguments\": {}}"}]});
        let turn = read(thinks).unwrap().turns.swap_remove(1);
        assert_eq!((turn.joined_text().as_str(), turn.role.as_str()), ("<think>\nhm\n</think>", "assistant"));
        assert_eq!(turn.fields["tool_calls"][0]["function"]["name"], "f");
        let function = json!({"name": "f", "parameters": {"type": "object"}});
        let wrapped = json!({"type": "function", "function": function});
        let texts = json!([function.to_string()]);
        for tools in [json!([function]).to_string().into(), texts, json!([function]), function, json!([wrapped])] {
            let called = json!({"conversations": [{"from": "human", "value": "Q"}], "tools": tools});
            assert_eq!(read(called).unwrap().turns[0].tools, std::slice::from_ref(&wrapped));
        }
        let roles = ours.turns.iter().filter(|turn| turn.fields.contains_key("tool_calls")).count();
        assert_eq!((roles, ours.turns[0].tools.len()), (1, 1));
        let of_mixed = json!({"conversations": null, "messages": [{"from": "human", "value": "Q"}]});
        assert_eq!(read(of_mixed).unwrap().turns[0].joined_text(), "Q");
        for (value, part) in [
            (json!({"text": "x"}), "conversations"),
            (json!({"conversations": [{"from": "alien", "value": "x"}]}), "\"alien\""),
            (json!({"conversations": [{"from": "human"}]}), "has no `value`"),
            (json!({"conversations": ["x"]}), "not an object"),
        ] {
            let error = read(value).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn what_is_empty_names_no_file() {
        for (fields, images) in [
            (json!({}), Json::Null),
            (json!({"image": ""}), Json::Null),
            (json!({"image": null, "images": []}), Json::Null),
            (json!({"image": "a.jpg", "images": []}), json!("a.jpg")),
            (json!({"image": "a.jpg", "images": ""}), json!("a.jpg")),
            (json!({"image": "", "images": ["b.jpg"]}), json!(["b.jpg"])),
            (json!({"image": "a.jpg", "images": ["b.jpg"]}), json!(["b.jpg"])),
        ] {
            let mut record = fields.as_object().unwrap().clone();
            name_files(&mut record);
            assert_eq!((record.get("images"), record.get("image")), (Some(&images), None), "{fields}");
        }
    }

    #[test]
    fn files_without_a_place_stand_first() {
        let mut record = json!({"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "What?"}], "images": ["a", "b"]});
        let record = record.as_object_mut().unwrap();
        place_files(record);
        assert_eq!(record["messages"][1]["content"], "<image>\n<image>\nWhat?");
        place_files(record);
        assert_eq!(record["messages"][1]["content"], "<image>\n<image>\nWhat?");
    }

    #[test]
    fn turns_of_nemo_are_texts_and_recordings() {
        let found = read(json!({"id": "c", "conversations": [
            {"from": "User", "type": "text", "value": "Transcribe."},
            {"from": "User", "type": "audio", "value": "a.wav", "offset": 1, "duration": 2.5},
            {"from": "Assistant", "type": "text", "value": "yes"},
            {"from": "User", "type": "audio", "value": "b.wav"},
            {"from": "Assistant", "type": "text", "value": "no"}]}))
        .unwrap();
        let said: Vec<_> = found.turns.iter().map(|turn| (turn.role.as_str(), turn.joined_text())).collect();
        let expected = [("user", "Transcribe. "), ("assistant", "yes"), ("user", ""), ("assistant", "no")];
        assert_eq!(said, expected.map(|(role, text)| (role, text.to_owned())));
        assert!([0, 2].into_iter().all(|turn| found.turns[turn].parts.last() == Some(&Part::Audio)), "{found:?}");
        let segment = |source: &MediaSource| match source {
            MediaSource::Audio(audio) => (audio.locator.name().to_owned(), audio.segment),
            other => panic!("{other:?}"),
        };
        let segments: Vec<_> = found.media.iter().map(segment).collect();
        let first = Segment::new(1.0, Some(3.5)).unwrap();
        assert_eq!(segments, [("a.wav".to_owned(), first), ("b.wav".to_owned(), Segment::WHOLE)]);
    }
}
