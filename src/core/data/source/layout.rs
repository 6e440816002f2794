//! The meaning of a record's fields: told by the config, or by the first record.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use super::block::{Body, Record};
use super::captioned::{self, Captioned, is_captioned};
use super::fields::{self, FieldMap};
use super::ids::{IDS, ids, lists_ids};
use super::labeled::{self, LABELS, Labeled};
use super::locate::Files;
use super::messages::{Conversation, Turn};
use super::pairs::{self, Pair};
use super::{beside, flat, sharegpt, sheet, transcripts};
use crate::config::Format;
use crate::data::error::DataError;
use crate::data::file_kind::{FileKind, PICTURES, kind_of};
use crate::data::lerobot::Step;
use crate::data::packed::PackedSample;

/// The meaning of fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordLayout {
    Messages,
    Pairs,
    Labeled,
    /// LLaVA's files too.
    Sharegpt,
    Alpaca,
    Transcripts,
    Text,
    Plain,
    Crude,
    Fields(FieldMap),
    Packed,
    Captioned,
    Steps,
    /// Ids, used as they are.
    Tokens,
}

/// Says what a record is before texts are cut.
pub enum Whole {
    Conversation(Conversation),
    Pair(Box<Pair>),
    Labeled(Box<Labeled>),
    Text(String),
    Tokens(Vec<i64>),
    Packed(Box<PackedSample>),
    Captioned(Box<Captioned>),
    Step(Step),
}

impl Whole {
    /// Gives conversations that have no system message one of this text.
    pub fn add_system(&mut self, text: &str) {
        match self {
            Self::Conversation(conversation) => Turn::add_system(&mut conversation.turns, text),
            Self::Pair(pair) => {
                Turn::add_system(&mut pair.chosen.turns, text);
                Turn::add_system(&mut pair.rejected.turns, text);
            }
            Self::Labeled(answer) => Turn::add_system(&mut answer.conversation.turns, text),
            Self::Text(_) | Self::Tokens(_) | Self::Packed(_) | Self::Captioned(_) | Self::Step(_) => {}
        }
    }
}

impl RecordLayout {
    /// `None`: to be told by a record.
    pub fn named(format: Format) -> Option<Self> {
        Some(match format {
            Format::Auto => return None,
            Format::Messages => Self::Messages,
            Format::Pairs => Self::Pairs,
            Format::Labeled => Self::Labeled,
            Format::Sharegpt | Format::Llava => Self::Sharegpt,
            Format::Alpaca => Self::Alpaca,
            Format::Transcripts => Self::Transcripts,
            Format::Energon => Self::Crude,
            Format::Packed => Self::Packed,
            Format::Captioned => Self::Captioned,
            Format::Lerobot => Self::Steps,
            Format::Text => Self::Text,
            Format::Plain => Self::Plain,
        })
    }

    /// # Errors
    /// The record has no known layout; the message names its fields.
    pub fn of(record: &Record, columns: &BTreeMap<String, String>) -> Result<Self, String> {
        let Body::Json(json) = &record.body else { return Self::of_members(record) };
        let value = |key: &str| match columns.get(key) {
            Some(theirs) => json.get(theirs.as_str()),
            // It is the field of another name here.
            None if columns.values().any(|theirs| theirs == key) => None,
            None => json.get(key),
        };
        let has = |key: &str| value(key).is_some_and(|value| !value.is_null());
        let is_labeled = LABELS.iter().any(|key| value(key).is_some_and(Json::is_boolean));
        let answers = ["completion", "output", "messages", "conversations"];
        let is_pair_of_swift = pairs::REJECTED.into_iter().any(has) && (has("messages") || has("response"));
        Ok(match () {
            () if record.member("input_ids.npy").is_some() => Self::Packed,
            () if has("chosen") && has("rejected") || is_pair_of_swift => Self::Pairs,
            () if is_labeled && answers.into_iter().any(has) => Self::Labeled,
            () if has("texts") => Self::Crude,
            () if has("messages") && !value("messages").is_some_and(sharegpt::is_sharegpt) => Self::Messages,
            () if has("conversations") || has("messages") => Self::Sharegpt,
            () if has("instruction") && has("output") || has("prompt") && has("completion") => Self::Alpaca,
            () if has("query") && has("response") => Self::Alpaca,
            () if transcripts::is_transcribed(value) => Self::Transcripts,
            () if has("text") && columns.contains_key("text") => Self::Text,
            // A text beside a picture is its caption: the text alone is not what the record is for.
            () if captioned::shows(value) && captioned::says(has) => Self::Captioned,
            () if has("text") && json["text"].is_string() => match captioned::listed(value).or_else(|| shown(record)) {
                Some(shown) => {
                    return Err(format!(
                        "its first sample has text beside {shown:?}, without which it would be learned: write messages, or \
                         set format: text"
                    ));
                }
                None => Self::Text,
            },
            () if is_captioned(has) => Self::Captioned,
            () if lists_ids(value(IDS)) => {
                let is_named = captioned::shows(value) || captioned::listed(value).is_some();
                if is_named || ["audio", "pixel_values"].into_iter().any(has) || shown(record).is_some() {
                    return Err(format!(
                        "its first sample has {IDS} beside pictures, clips or recordings, without which they would be \
                         learned: write messages that name the files"
                    ));
                }
                Self::Tokens
            }
            () => {
                let seen = match json.as_object() {
                    Some(fields) => {
                        let named = |is_null: bool| {
                            let fields = fields.iter().filter(|(_, value)| value.is_null() == is_null);
                            fields.map(|(name, _)| name).take(12).collect::<Vec<&String>>()
                        };
                        let [keys, empty] = [false, true].map(named);
                        let empty = match empty.is_empty() {
                            true => String::new(),
                            false => format!(" and null under {empty:?}"),
                        };
                        format!("its first sample has the fields {keys:?}{empty}")
                    }
                    None => format!("its first sample is {json:.60}"),
                };
                return Err(format!(
                    "{seen}: expected messages, conversations, texts, instruction with output, prompt with \
                     completion, chosen with rejected, audio_filepath, audio with text, text, or input_ids; set \
                     columns if fields have other names, such as columns: {{instruction: question, output: answer}}{}",
                    of_table(json)
                ));
            }
        })
    }

    fn of_members(record: &Record) -> Result<Self, String> {
        match record.body {
            Body::Text(_) => return Ok(Self::Plain),
            Body::Tokens(_) => return Ok(Self::Tokens),
            _ => {}
        }
        let text = ["txt", "text"].into_iter().find(|name| record.member(name).is_some());
        let picture = record.members.iter().find(|(name, _)| kind_of(name) == Some(FileKind::Picture));
        // A text beside them is what is said of them, and no sample of its own.
        let is_more = |name: &str| matches!(kind_of(name), Some(FileKind::Clip | FileKind::Recording));
        match (text.filter(|_| !record.members.iter().any(|(name, _)| is_more(name))), picture) {
            (Some(text), Some((picture, _))) => {
                // The next sample's picture may be of another kind.
                let any = || PICTURES.map(|kind| format!("{kind},{}", kind.to_ascii_uppercase())).join(",");
                let image = if picture.contains('.') { picture.clone() } else { any() };
                Ok(Self::Fields([("image".to_owned(), image), ("caption".to_owned(), text.to_owned())].into()))
            }
            (Some(text), None) => Ok(Self::Fields([("text".to_owned(), text.to_owned())].into())),
            _ => {
                let members: Vec<&str> = record.members.iter().map(|(name, _)| name.as_str()).take(12).collect();
                Err(format!(
                    "its first sample has the files {members:?}: expected json, or a picture with txt; a recording needs \
                     json, and a clip json or format: captioned"
                ))
            }
        }
    }

    /// Returns its name in a configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Pairs => "pairs",
            Self::Labeled => "labeled",
            Self::Sharegpt => "sharegpt",
            Self::Alpaca => "alpaca",
            Self::Transcripts => "transcripts",
            Self::Text => "text",
            Self::Plain => "plain",
            Self::Crude => "energon",
            Self::Fields(_) if self.is_text() => "text",
            Self::Fields(_) => "energon fields",
            Self::Packed => "packed",
            Self::Captioned => "captioned",
            Self::Steps => "lerobot",
            Self::Tokens => "tokens",
        }
    }

    /// Texts of any length, which are cut.
    pub fn is_text(&self) -> bool {
        match self {
            Self::Text | Self::Plain | Self::Tokens => true,
            Self::Fields(map) => map.contains_key("text"),
            _ => false,
        }
    }

    /// Returns whether records have something that a chat template renders.
    pub fn is_conversation(&self) -> bool {
        !self.is_text() && !matches!(self, Self::Packed | Self::Captioned | Self::Steps)
    }

    /// # Errors
    /// The record is wrong, and in which way.
    pub fn read(&self, record: Record, columns: &BTreeMap<String, String>, folder: &str) -> Result<Whole, DataError> {
        if *self == Self::Packed {
            return Ok(Whole::Packed(Box::new(PackedSample::from_members(&record.members)?)));
        }
        let mut record = record;
        if let Body::Step(step) = record.body {
            return Ok(Whole::Step(step));
        }
        if let Body::Tokens(ids) = record.body {
            return Ok(Whole::Tokens(ids));
        }
        if *self == Self::Tokens {
            return ids(&renamed(std::mem::take(&mut record.body), columns)?).map(Whole::Tokens);
        }
        if *self == Self::Captioned {
            let fields = match std::mem::take(&mut record.body) {
                Body::None => Map::new(),
                Body::Text(line) => captioned::of_line(&line)?,
                body => captioned::renamed(object(body)?, columns),
            };
            let captioned = Captioned::of(fields, &record, folder)?;
            return Ok(Whole::Captioned(Box::new(captioned)));
        }
        if let (Self::Plain, Body::Text(text)) = (self, &mut record.body) {
            return Ok(Whole::Text(std::mem::take(text)));
        }
        let read = |mut fields: Map<String, Json>, record: &Record| {
            sharegpt::name_files(&mut fields);
            self.place_files(&mut fields, record);
            beside::expect_no_objects(&fields)?;
            Conversation::from_json(Json::Object(fields), &Files { record, folder })
        };
        let fields = match self {
            Self::Fields(map) => fields::mapped(&record, map)?,
            Self::Labeled => {
                let fields = renamed(std::mem::take(&mut record.body), columns)?;
                let (fields, is_good) = labeled::messages(fields)?;
                return Ok(Whole::Labeled(Box::new(Labeled { conversation: read(fields, &record)?, is_good })));
            }
            Self::Pairs => {
                let fields = renamed(std::mem::take(&mut record.body), columns)?;
                let read = |fields| read(fields, &record);
                let [chosen, rejected] = pairs::messages(fields)?.map(read);
                return Ok(Whole::Pair(Box::new(Pair { chosen: chosen?, rejected: rejected? })));
            }
            _ => {
                let fields = renamed(std::mem::take(&mut record.body), columns)?;
                self.canonical(fields, &record)?
            }
        };
        if self.is_text() {
            // Bytes of a table that are no UTF-8 are a file, and their name is no text.
            let is_file = |text: &str| text.starts_with("row:") && record.members.iter().any(|(name, _)| name == text);
            return match fields.get("text") {
                Some(Json::String(text)) if is_file(text) => Err(DataError::Line("`text` is not UTF-8".to_owned())),
                Some(Json::String(text)) => Ok(Whole::Text(text.clone())),
                Some(_) => Err(DataError::Line("`text` must be text".to_owned())),
                None => Err(DataError::Line("missing field `text`".to_owned())),
            };
        }
        let files = Files { record: &record, folder };
        Conversation::from_json(Json::Object(fields), &files).map(Whole::Conversation)
    }

    fn canonical(&self, fields: Map<String, Json>, record: &Record) -> Result<Map<String, Json>, DataError> {
        let mut fields = match self {
            Self::Messages => beside::with_system(fields)?,
            Self::Sharegpt => sharegpt::messages(fields)?,
            Self::Alpaca => flat::messages(fields)?,
            Self::Transcripts => transcripts::messages(fields)?,
            Self::Crude => fields::crude(fields)?,
            _ => fields,
        };
        if matches!(self, Self::Messages | Self::Alpaca) {
            sharegpt::name_files(&mut fields);
        }
        self.place_files(&mut fields, record);
        beside::expect_no_objects(&fields)?;
        Ok(fields)
    }

    /// Puts the files of a record where they stand among its messages, which may not say so.
    fn place_files(&self, fields: &mut Map<String, Json>, record: &Record) {
        if record.is_closed && self.is_conversation() {
            sharegpt::take_members(fields, record.members.iter().map(|(name, _)| name.as_str()));
        }
        if matches!(self, Self::Sharegpt | Self::Alpaca | Self::Pairs | Self::Labeled) || record.is_closed {
            sharegpt::place_files(fields);
        }
    }
}

/// Returns the file beside a record of an archive that is a picture, a clip or a recording.
fn shown(record: &Record) -> Option<&str> {
    let mut members = record.members.iter().map(|(name, _)| name.as_str()).filter(|_| record.is_closed);
    members.find(|name| kind_of(name).is_some())
}

/// Returns what is said of a table whose cells another mark separates, or whose first row is none of names; empty where it may be
/// neither.
fn of_table(json: &Json) -> String {
    let mut names = json.as_object().into_iter().flat_map(Map::keys);
    let other = match (names.next(), names.next()) {
        (Some(only), None) => sheet::other_separator(only),
        _ => String::new(),
    };
    if !other.is_empty() {
        return other;
    }
    let is_file = |key: &&String| key.contains('.') && kind_of(key).is_some();
    let file = json.as_object().and_then(|fields| fields.keys().find(is_file));
    file.map_or_else(String::new, |file| {
        format!(
            "; the first row of a table names its columns, but {file:?} reads like a file: write a row of names before it, \
             such as `audio` and `text`"
        )
    })
}

/// # Errors
/// There are no fields.
fn object(body: Body) -> Result<Map<String, Json>, DataError> {
    match body {
        Body::Json(Json::Object(fields)) => Ok(fields),
        Body::Json(other) => {
            Err(DataError::Line(format!("invalid type: expected an object of fields, found {other:.40}")))
        }
        Body::Text(_) | Body::Tokens(_) | Body::Step(_) | Body::None => {
            Err(DataError::Line("has no fields".to_owned()))
        }
    }
}

/// Fields under the format's own names.
fn renamed(body: Body, columns: &BTreeMap<String, String>) -> Result<Map<String, Json>, DataError> {
    let mut fields = object(body)?;
    for (name, theirs) in columns {
        match fields.remove(theirs) {
            Some(value) => drop(fields.insert(name.clone(), value)),
            None if fields.contains_key(name) => {}
            None => return Err(DataError::Line(format!("missing field {theirs:?}, which `columns` maps to {name}"))),
        }
    }
    Ok(fields)
}
