//! Recordings with what is said in them, as messages: lines of NeMo's manifests, and speech data sets of Hugging Face.

use serde_json::{Map, Value as Json, json};

use crate::data::error::DataError;
use crate::data::file_kind::is_recording;

/// Fields that name the recording, and fields that hold what is said in it: the first that a record has.
const RECORDINGS: [&str; 4] = ["audio_filepath", "audio", "file_name", "path"];
const TEXTS: [&str; 4] = ["text", "answer", "transcription", "sentence"];

/// Returns whether the fields of a record are those of a recording with its transcript. A `file_name` or `path` may be
/// that of another file.
pub fn is_transcribed<'a>(value: impl Fn(&str) -> Option<&'a Json>) -> bool {
    let has = |key: &str| value(key).is_some_and(|value| !value.is_null());
    let is_file = |key: &str| value(key).and_then(Json::as_str).is_some_and(is_recording);
    let is_named = is_file("file_name") || is_file("path");
    has("audio_filepath") || (has("audio") || is_named) && TEXTS.iter().any(|key| has(key))
}

/// The recording, before a `question` where there is one, is the user's message, and its text the assistant's. `offset` and
/// `duration` in seconds are the part of the recording that is meant. Other fields are not read.
///
/// # Errors
/// No recording or no text.
pub fn messages(mut record: Map<String, Json>) -> Result<Map<String, Json>, DataError> {
    let mut first = |keys: &[&str]| keys.iter().find_map(|key| record.remove(*key).filter(|value| !value.is_null()));
    let file = first(&RECORDINGS);
    let text = first(&TEXTS);
    let question = first(&["question"]);
    let (offset, duration) = (first(&["offset"]), first(&["duration"]));
    let file = match file {
        // As `datasets` writes it into JSON.
        Some(Json::Object(file)) => file.get("path").and_then(Json::as_str).map(str::to_owned),
        file => file.as_ref().and_then(Json::as_str).map(str::to_owned),
    };
    let file = file.ok_or_else(|| DataError::Line("missing field `audio_filepath` or `audio`, a file".to_owned()))?;
    let text = match text {
        Some(Json::String(text)) => text,
        Some(other) => return Err(DataError::Line(format!("the transcript must be text, found {other:.40}"))),
        None => {
            let names = TEXTS.map(|name| format!("`{name}`")).join(", ");
            let reason = format!("has no transcript, or an empty one: expected text under one of {names}");
            return Err(DataError::Line(reason));
        }
    };
    let mut audio = json!({ "type": "audio", "audio": file });
    for (key, value) in [("offset", offset), ("duration", duration)] {
        if let Some(seconds) = value.map(|value| seconds(key, value)).transpose()?.flatten() {
            audio[key] = seconds;
        }
    }
    let mut asked = vec![audio];
    match question {
        Some(Json::String(question)) => asked.push(json!({ "type": "text", "text": question })),
        Some(_) => return Err(DataError::Line("`question` must be text".to_owned())),
        None => {}
    }
    let turns = json!([{ "role": "user", "content": asked }, { "role": "assistant", "content": text }]);
    Ok(Map::from_iter([("messages".to_owned(), turns)]))
}

/// Returns the seconds of a field: a number, or text with one, as tables have it; `None`: the field is empty.
///
/// # Errors
/// It is no number.
fn seconds(key: &str, value: Json) -> Result<Option<Json>, DataError> {
    if value.is_number() {
        return Ok(Some(value));
    }
    let text = value.as_str().map(str::trim);
    if text == Some("") {
        return Ok(None);
    }
    match text.and_then(|text| text.parse::<f64>().ok()).filter(|seconds| seconds.is_finite()) {
        Some(seconds) => Ok(Some(json!(seconds))),
        None => Err(DataError::Line(format!("`{key}` must be a number of seconds, found {value}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_manifest_is_a_question_and_its_answer() {
        let read = |value: Json| messages(value.as_object().unwrap().clone());
        let line = json!({"audio_filepath": "a.wav", "duration": 1.5, "offset": 2, "text": "yes", "lang": "en"});
        let turns = read(line).unwrap().remove("messages").unwrap();
        let audio = json!({"type": "audio", "audio": "a.wav", "offset": 2, "duration": 1.5});
        assert_eq!(turns, json!([{"role": "user", "content": [audio]}, {"role": "assistant", "content": "yes"}]));
        let asked = json!({"audio": {"path": "b.wav"}, "question": "Who?", "answer": "I", "duration": null});
        let turns = read(asked).unwrap().remove("messages").unwrap();
        let question = json!([{"type": "audio", "audio": "b.wav"}, {"type": "text", "text": "Who?"}]);
        assert_eq!((&turns[0]["content"], &turns[1]["content"]), (&question, &json!("I")));
        // As folders of sound have it in metadata.csv, and Common Voice.
        let lines = [
            json!({"file_name": "a.wav", "transcription": "yes"}),
            json!({"audio": "a.wav", "sentence": "yes"}),
            json!({"client_id": "b", "path": "a.wav", "sentence": "yes"}),
        ];
        for line in lines {
            assert!(is_transcribed(|key| line.get(key)), "{line}");
            let turns = read(line).unwrap().remove("messages").unwrap();
            let expected = json!({"type": "audio", "audio": "a.wav"});
            assert_eq!((&turns[0]["content"][0], &turns[1]["content"]), (&expected, &json!("yes")));
        }
        let others = [
            json!({"file_name": "a.png", "text": "a"}),
            json!({"path": "a.png", "text": "a"}),
            json!({"audio": "a.wav"}),
            json!({"text": "a"}),
        ];
        for line in others {
            assert!(!is_transcribed(|key| line.get(key)), "{line}");
        }
        for (line, part) in [
            (json!({"text": "a"}), "`audio_filepath` or `audio`"),
            (json!({"audio": "a.wav"}), "no transcript, or an empty one: expected text under one of `text`"),
            (json!({"audio": "a.wav", "text": 3}), "must be text, found 3"),
            (json!({"audio": "a.wav", "text": "a", "question": 3}), "`question`"),
            (json!({"audio": "a.wav", "text": "a", "offset": "1s"}), "`offset` must be a number of seconds"),
            (json!({"audio": "a.wav", "text": "a", "duration": "inf"}), "`duration` must be a number of seconds"),
            (json!({"audio": "a.wav", "text": "a", "duration": [1]}), "`duration` must be a number of seconds"),
        ] {
            assert!(read(line).unwrap_err().to_string().contains(part), "{part}");
        }
    }

    #[test]
    fn seconds_of_a_table_are_text() {
        let row = json!({"audio_filepath": "a.wav", "offset": " 2", "duration": "1.5", "text": "yes"});
        let turns = messages(row.as_object().unwrap().clone()).unwrap().remove("messages").unwrap();
        let audio = json!({"type": "audio", "audio": "a.wav", "offset": 2.0, "duration": 1.5});
        assert_eq!(turns[0]["content"], json!([audio]));
        let row = json!({"audio_filepath": "a.wav", "offset": "", "text": "yes"});
        let turns = messages(row.as_object().unwrap().clone()).unwrap().remove("messages").unwrap();
        assert_eq!(turns[0]["content"], json!([{"type": "audio", "audio": "a.wav"}]));
    }
}
