//! Pictures and clips with their captions, which diffusion models learn from.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use super::block::{Body, Record};
use super::folder::without_mark;
use super::locate::{Files, Locate};
use super::messages::MediaSource;
use crate::data::error::DataError;
use crate::data::file_kind::{FileKind, kind_of};
use crate::data::media::VideoSource;

/// Fields that name the picture or clip, and fields that hold the caption: the first that a record has.
const VISUALS: [&str; 5] = ["video", "image", "file_name", "video_path", "image_path"];
const CAPTIONS: [&str; 4] = ["prompt", "text", "caption", "cap"];
/// Fields of other formats that name several pictures or clips.
const LISTS: [&str; 2] = ["images", "videos"];
/// Members of an archive that hold the caption.
const BESIDE: [&str; 3] = ["txt", "text", "caption"];
/// Fields that name pictures and clips that the result is made from, before `control_path_0` and so on.
const REFERENCES: [&str; 4] = ["edit_image", "reference_image", "control_image", "control_path"];
/// The field that names a mask of the loss.
const MASK: &str = "mask";

/// A picture or a clip with what is said of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Captioned {
    /// The picture or clip; `None`: a prompt alone.
    pub target: Option<MediaSource>,
    /// The captions, at least one; a visit takes one of them.
    pub captions: Vec<String>,
    /// Pictures and clips that the result is made from, in order.
    pub references: Vec<MediaSource>,
    /// The field `mask`: a picture that is bright where the error counts.
    pub mask: Option<MediaSource>,
    /// The field `answer`: what a reader of the result is expected to read.
    pub answer: Option<String>,
    /// The limit of pixels of its pictures and frames; `None`: its data set has none of its own.
    pub area: Option<u64>,
}

/// Returns whether the fields of a record are those of a captioned picture or clip.
pub fn is_captioned(has: impl Fn(&str) -> bool) -> bool {
    VISUALS.iter().any(|key| has(key)) && says(has)
}

/// Returns whether a record has a caption.
pub fn says(has: impl Fn(&str) -> bool) -> bool {
    CAPTIONS.iter().any(|key| has(key))
}

/// Returns whether a record names a picture or a clip. A `file_name` may be that of a text.
pub fn shows<'a>(value: impl Fn(&str) -> Option<&'a Json>) -> bool {
    let names = |key: &&str| match value(key) {
        Some(Json::String(name)) if *key == "file_name" => is_visual(name),
        value => is_named(value),
    };
    VISUALS.iter().any(names)
}

/// Returns the field in which a record lists pictures or clips, whose captions are unknown.
pub fn listed<'a>(value: impl Fn(&str) -> Option<&'a Json>) -> Option<&'static str> {
    LISTS.into_iter().find(|key| is_named(value(key)))
}

/// Returns whether a file of this name is a picture or a clip.
fn is_visual(name: &str) -> bool {
    matches!(kind_of(name), Some(FileKind::Picture | FileKind::Clip))
}

/// Returns whether a field names a file or several.
fn is_named(value: Option<&Json>) -> bool {
    match value {
        Some(Json::String(name)) => !name.is_empty(),
        Some(Json::Array(names)) => !names.is_empty(),
        Some(Json::Object(_)) => true,
        _ => false,
    }
}

/// Returns whether a record has a picture or a clip, in a field or beside its fields.
pub(super) fn has_visual(record: &Record, columns: &BTreeMap<String, String>) -> bool {
    let value = |key: &str| record.field(columns.get(key).map_or(key, String::as_str));
    VISUALS.iter().any(|key| is_named(value(key)))
        || record.is_closed && record.members.iter().any(|(name, _)| is_visual(name))
}

/// Gives a record that has no caption this one.
pub(super) fn caption(record: &mut Record, columns: &BTreeMap<String, String>, caption: &str) {
    let is_beside = BESIDE.iter().any(|name| record.member(name).is_some());
    if matches!(record.body, Body::None) {
        record.body = Body::Json(Json::Object(Map::new()));
    }
    if let Body::Json(Json::Object(fields)) = &mut record.body {
        let value = |key: &str| fields.get(columns.get(key).map_or(key, String::as_str));
        if !is_beside && !says(|key| value(key).is_some_and(|value| !value.is_null())) {
            fields.insert(CAPTIONS[0].to_owned(), Json::String(caption.to_owned()));
        }
    }
}

/// Returns the fields of a line of a text file, which is a prompt alone.
///
/// # Errors
/// The line has no prompt, is a comment, or has options as kohya's scripts and musubi-tuner read them.
pub(super) fn of_line(line: &str) -> Result<Map<String, Json>, DataError> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        let what = if line.is_empty() { "has white space alone" } else { "is a comment" };
        return Err(DataError::Line(format!("{what}, but each line is a prompt: take it out")));
    }
    let is_option = |word: &&str| {
        let name = word.strip_prefix("--").unwrap_or_default();
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphabetic())
    };
    match line.split_whitespace().find(is_option) {
        Some(option) => Err(DataError::Line(format!(
            "options of a prompt, such as {option}, are not read: take them out, and set size, frames, steps, guidance and negative of \
             the section `sample`"
        ))),
        None => Ok(Map::from_iter([(CAPTIONS[0].to_owned(), Json::String(line.to_owned()))])),
    }
}

impl Captioned {
    /// Makes the sample from the fields of a record, and from the members beside them in an archive.
    ///
    /// # Errors
    /// There is no caption, a field is of another type, or a file is not there.
    pub(super) fn of(mut fields: Map<String, Json>, record: &Record, folder: &str) -> Result<Self, DataError> {
        let files = Files { record, folder };
        let list = listed(|key| fields.get(key));
        let mut take = |key: &str| fields.remove(key).filter(|value| !value.is_null());
        let mask = take(MASK).map(|value| visual(MASK, &value, &files)).transpose()?;
        let own = |wanted: &[FileKind]| {
            let mut members = record.members.iter().map(|(name, _)| name).filter(|_| record.is_closed);
            members.find(|name| kind_of(name).is_some_and(|kind| wanted.contains(&kind))).cloned()
        };
        let named = VISUALS.iter().find_map(|key| Some((*key, take(key)?)));
        let target = match named {
            Some((key, value)) => Some(visual(key, &value, &files)?),
            None => own(&[FileKind::Picture, FileKind::Clip])
                .map(|name| visual("file_name", &Json::String(name), &files))
                .transpose()?,
        };
        if let (None, Some(list)) = (&target, list) {
            return Err(DataError::Line(format!(
                "`{list}` lists pictures or clips, but a caption is that of one: name it in `image` or `video`"
            )));
        }
        let caption = CAPTIONS.iter().find_map(|key| Some((*key, take(key)?)));
        let captions = match caption {
            Some((_, Json::String(text))) => vec![text],
            Some((key, Json::Array(texts))) if !texts.is_empty() => {
                let text = |text: Json| match text {
                    Json::String(text) => Ok(text),
                    other => Err(DataError::Line(format!(
                        "`{key}` must be text or a list of texts, found {other:.40} in the list"
                    ))),
                };
                texts.into_iter().map(text).collect::<Result<_, _>>()?
            }
            Some((key, other)) => {
                return Err(DataError::Line(format!("`{key}` must be text or a list of texts, found {other:.40}")));
            }
            None => {
                let member = BESIDE.iter().find_map(|name| record.member(name));
                let bytes = member.ok_or_else(|| {
                    DataError::Line(format!(
                        "no caption: the record has none of the fields {} and no .txt; add one, or drop the record",
                        CAPTIONS.join(", ")
                    ))
                })?;
                let text =
                    std::str::from_utf8(bytes).map_err(|_| DataError::Line("its .txt is not UTF-8".to_owned()))?;
                vec![without_mark(text).trim().to_owned()]
            }
        };
        let answer = match take("answer") {
            None => None,
            Some(Json::String(answer)) => Some(answer),
            Some(other) => return Err(DataError::Line(format!("`answer` must be text, found {other:.40}"))),
        };
        let numbered = (0..).map_while(|at| take(&format!("control_path_{at}"))).collect::<Vec<_>>();
        let mut references = Vec::new();
        for (key, value) in REFERENCES.iter().filter_map(|key| Some((*key, take(key)?))).collect::<Vec<_>>() {
            match value {
                Json::Array(values) => {
                    for value in values {
                        references.push(visual(key, &value, &files)?);
                    }
                }
                value => references.push(visual(key, &value, &files)?),
            }
        }
        for value in numbered {
            references.push(visual("control_path", &value, &files)?);
        }
        Ok(Self { target, captions, references, mask, answer, area: None })
    }
}

/// Returns the picture or the clip that a field names: by the field where that says, else by the file's name.
fn visual(key: &str, value: &Json, files: &Files<'_>) -> Result<MediaSource, DataError> {
    let wrong = || DataError::Line(format!("`{key}` must name a file, found {value:.60}"));
    // As `datasets` writes it into JSON.
    let name = match value {
        Json::Object(file) => file.get("path").and_then(Json::as_str),
        value => value.as_str(),
    };
    // Frames of a clip, one after the other.
    if let Json::Array(frames) = value {
        let frame = |frame: &Json| files.file(frame.as_str().ok_or_else(wrong)?);
        let locators = frames.iter().map(frame).collect::<Result<Vec<_>, _>>()?;
        return Ok(MediaSource::Video(VideoSource { locators, fps: None }));
    }
    let name = name.ok_or_else(wrong)?;
    let is_clip = match key {
        "video" | "video_path" => {
            kind_of(name) != Some(FileKind::Picture) || name.to_ascii_lowercase().ends_with(".gif")
        }
        _ => kind_of(name) == Some(FileKind::Clip) || name.to_ascii_lowercase().ends_with(".gif"),
    };
    Ok(match is_clip {
        true => MediaSource::Video(VideoSource { locators: files.video(name)?, fps: None }),
        false => MediaSource::Image(files.file(name)?),
    })
}

/// Fields under the names that the formats have for them.
pub(super) fn renamed(mut fields: Map<String, Json>, columns: &BTreeMap<String, String>) -> Map<String, Json> {
    for (name, theirs) in columns {
        if let Some(value) = fields.remove(theirs) {
            fields.insert(name.clone(), value);
        }
    }
    fields
}
