//! Megatron-Energon's samples as messages: crude ones (`texts`, `media`, `name`) and those whose fields `dataset.yaml` maps
//! to members (`image: jpg`, `answers: json[0][value]`).

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use super::block::Record;
use crate::data::error::DataError;
use crate::data::file_kind::{FileKind, kind_of};

/// Holds where each field of a sample is found.
pub type FieldMap = BTreeMap<String, String>;

/// Returns a crude sample: `texts` are messages, or questions with answers (`user`, `assistant`); `name` lists members; `images`,
/// `videos` and `audios` go before it.
///
/// # Errors
/// A field is missing, or not what it must be.
pub fn crude(mut record: Map<String, Json>) -> Result<Map<String, Json>, DataError> {
    let texts = record.remove("texts").filter(|texts| !texts.is_null());
    let texts = texts.or_else(|| record.remove("messages")).unwrap_or_default();
    let Json::Array(texts) = texts else {
        return Err(DataError::Line("missing field `texts`, a list of messages".to_owned()));
    };
    let names = record.remove("name").unwrap_or_default();
    let lists = |key: &str| record.get(key).is_some_and(|value| !value.is_null());
    if !["images", "videos", "audios"].into_iter().any(lists) {
        let mut found = [Vec::new(), Vec::new(), Vec::new()];
        sort(&names, record.get("media").and_then(Json::as_str), &mut found);
        for (key, names) in ["images", "videos", "audios"].into_iter().zip(found) {
            record.insert(key.to_owned(), Json::Array(names));
        }
    }
    // As in ShareGPT or as messages.
    if texts.iter().any(|turn| turn.get("from").is_some()) {
        record.insert("conversations".to_owned(), Json::Array(texts));
        return super::sharegpt::messages(record);
    }
    let pairs = texts.iter().map(asked).collect::<Option<Vec<_>>>().filter(|pairs| !pairs.is_empty());
    if let Some(pairs) = pairs {
        record.insert("messages".to_owned(), pairs.into_iter().flatten().collect());
        let mut record = super::beside::with_system(record)?;
        super::sharegpt::name_files(&mut record);
        super::sharegpt::place_files(&mut record);
        return Ok(record);
    }
    record.insert("messages".to_owned(), Json::Array(texts));
    super::beside::with_system(record)
}

/// Returns the messages of a question with its answer, as The Cauldron and FineVision have them; `None`: the turn is something else.
fn asked(turn: &Json) -> Option<[Json; 2]> {
    let (user, assistant) = (turn.get("user")?.as_str()?, turn.get("assistant")?.as_str()?);
    let messages = [json!({ "role": "user", "content": user }), json!({ "role": "assistant", "content": assistant })];
    turn.get("role").is_none().then_some(messages)
}

/// Names by kind: a list, a map of lists, one name.
fn sort(names: &Json, media: Option<&str>, found: &mut [Vec<Json>; 3]) {
    match names {
        Json::Array(list) => list.iter().for_each(|name| sort(name, media, found)),
        Json::Object(map) if map.contains_key("video") => found[1].push(names.clone()),
        Json::Object(map) => map.values().for_each(|name| sort(name, media, found)),
        Json::String(name) => {
            let kind = match (kind_of(name), media) {
                // An animated GIF may be either.
                (_, Some("video")) | (Some(FileKind::Clip), _) => 1,
                (_, Some("audio")) | (Some(FileKind::Recording), _) => 2,
                _ => 0,
            };
            found[kind].push(name.as_str().into());
        }
        _ => {}
    }
}

/// Returns whether `dataset.yaml` maps the fields that are needed. The relation of a text beside pictures to them is not known.
pub fn is_known(map: &FieldMap) -> bool {
    match map.contains_key("text") {
        true => !["image", "images", "caption", "answers"].iter().any(|field| map.contains_key(*field)),
        false => map.contains_key("caption") || map.contains_key("context") && map.contains_key("answers"),
    }
}

/// Returns a captioning sample (`image`, `caption`), a question (`image`, `context`, `answers`) or a text, by its map.
///
/// # Errors
/// A field is not where the map says.
pub fn mapped(record: &Record, map: &FieldMap) -> Result<Map<String, Json>, DataError> {
    let find = |field: &str| map.get(field).and_then(|place| value(record, place));
    let text = |field: &str| {
        let missing = || {
            let place = map.get(field).map_or("", String::as_str);
            DataError::Line(format!("no {field} under {place:?} (dataset.yaml)"))
        };
        let value = find(field).ok_or_else(missing)?;
        match &value {
            Json::String(text) => Ok(text.clone()),
            // Several answers: the first.
            Json::Array(list) => list.first().and_then(Json::as_str).map(str::to_owned).ok_or_else(missing),
            Json::Number(number) => Ok(number.to_string()),
            _ => Err(missing()),
        }
    };
    if map.contains_key("text") {
        return Ok(Map::from_iter([("text".to_owned(), text("text")?.into())]));
    }
    let images = match find("image").or_else(|| find("images")) {
        Some(Json::Array(list)) => list,
        Some(one) => vec![one],
        None if map.contains_key("image") => {
            return Err(DataError::Line(format!("no image under {:?} (dataset.yaml)", map["image"])));
        }
        None => Vec::new(),
    };
    let (question, answer) = match map.contains_key("answers") {
        true => (text("context")?, text("answers")?),
        false => (String::new(), text("caption")?),
    };
    let places = question.matches("<image>").count();
    let places = if places == 0 { "<image>".repeat(images.len()) } else { String::new() };
    let messages = json!([
        { "role": "user", "content": format!("{places}{question}") }, { "role": "assistant", "content": answer }
    ]);
    Ok(Map::from_iter([("messages".to_owned(), messages), ("images".to_owned(), Json::Array(images))]))
}

/// Returns the members that a place such as `jpg`, `jpg,png` or `json[key][0]` names, with the path in each.
pub fn members_of(place: &str) -> impl Iterator<Item = (&str, &str)> {
    let places = place.split([',', ';']).map(str::trim);
    places.map(|place| place.split_at(place.find('[').unwrap_or(place.len())))
}

/// Returns the value of a place such as `jpg`, `jpg,png` (the first that is there) or `json[key][0]`.
fn value(record: &Record, place: &str) -> Option<Json> {
    members_of(place).find_map(|(member, path)| {
        let bytes = record.member(member)?;
        if kind_of(member).is_some() {
            return Some(member.into());
        }
        let text = std::str::from_utf8(bytes).ok()?;
        if member != "json" && !member.ends_with(".json") {
            return Some(text.into());
        }
        let root: Json = serde_json::from_str(text).ok()?;
        let mut at = &root;
        for step in path.split('[').skip(1) {
            let step = step.strip_suffix(']')?;
            at = match at {
                Json::Array(list) => list.get(step.parse::<usize>().ok()?)?,
                other => other.get(step)?,
            };
        }
        Some(at.clone())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(members: &[(&str, &str)]) -> Record {
        let members = members.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().into())).collect();
        Record { members, is_closed: true, ..Record::default() }
    }

    #[test]
    fn fields_are_found_where_the_map_says() {
        let map =
            |text: &[(&str, &str)]| text.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect::<FieldMap>();
        let record = record(&[("png", "P"), ("json", r#"[{"q": "Who?", "a": ["me", "you"]}]"#), ("txt", "a cat")]);
        let question =
            mapped(&record, &map(&[("image", "jpg,png"), ("context", "json[0][q]"), ("answers", "json[0][a]")]))
                .unwrap();
        assert_eq!(question["messages"][0]["content"], "<image>Who?");
        assert_eq!((&question["messages"][1]["content"], &question["images"]), (&json!("me"), &json!(["png"])));
        let caption = mapped(&record, &map(&[("image", "png"), ("caption", "txt")])).unwrap();
        assert_eq!(
            (&caption["messages"][0]["content"], &caption["messages"][1]["content"]),
            (&json!("<image>"), &json!("a cat"))
        );
        for (fields, part) in [
            (&[("image", "webp"), ("caption", "txt")], "no image under \"webp\""),
            (&[("image", "png"), ("caption", "json[7][a]")], "no caption under \"json[7][a]\""),
        ] {
            assert!(mapped(&record, &map(fields)).unwrap_err().to_string().contains(part));
        }
    }

    #[test]
    fn crude_samples_sort_their_files_by_kind() {
        let value = json!({"texts": [{"role": "user", "content": "<image><video>"}], "media": "mix", "name": ["0_a.jpg", "1_b.mp4", {"video": ["f.jpg"], "fps": 2}]});
        let record = crude(value.as_object().unwrap().clone()).unwrap();
        assert_eq!((&record["images"], record["videos"].as_array().unwrap().len()), (&json!(["0_a.jpg"]), 2));
        let value = json!({"texts": [{"from": "human", "value": "x"}], "media": "video", "name": ["0_a.gif"]});
        let record = crude(value.as_object().unwrap().clone()).unwrap();
        assert_eq!((&record["videos"], &record["messages"][0]["role"]), (&json!(["0_a.gif"]), &json!("user")));
        for turn in [json!({"role": "user", "content": "x"}), json!({"from": "human", "value": "x"})] {
            let texts = json!({"texts": [turn], "system": "S"});
            let messages = json!({"texts": null, "messages": [turn], "system": "S"});
            for value in [texts, messages] {
                let record = crude(value.as_object().unwrap().clone()).unwrap();
                assert_eq!(record["messages"][0], json!({"role": "system", "content": "S"}));
            }
        }
        assert!(crude(Map::new()).is_err());
    }

    #[test]
    fn questions_with_answers_become_messages_after_their_pictures() {
        let messages = |texts: Json, images: Json| {
            let value = json!({"texts": texts, "images": images});
            let record = crude(value.as_object().unwrap().clone()).unwrap();
            let turns = record["messages"].as_array().unwrap();
            let shown = turns.iter().map(|turn| format!("{}: {}", turn["role"], turn["content"]).replace('"', ""));
            shown.collect::<Vec<_>>()
        };
        let asked =
            json!([{"user": "Who?", "assistant": "me", "source": "a"}, {"user": "Where?", "assistant": "here"}]);
        let read = ["user: <image>\\n<image>\\nWho?", "assistant: me", "user: Where?", "assistant: here"];
        assert_eq!(messages(asked.clone(), json!(["a.png", "b.png"])), read);
        assert_eq!(messages(asked, json!([]))[0], "user: Who?");
        let placed = json!([{"user": "In <image>?", "assistant": "yes"}]);
        assert_eq!(messages(placed, json!(["a.png"])), ["user: In <image>?", "assistant: yes"]);
        let single = json!({"texts": [{"user": "Who?", "assistant": "me"}], "image": "a.png"});
        let record = crude(single.as_object().unwrap().clone()).unwrap();
        let question = json!({"role": "user", "content": "<image>\nWho?"});
        assert_eq!((&record["messages"][0], &record["images"]), (&question, &json!("a.png")));
    }
}
