//! Looks into files: format, numbers, fields, and a few samples as a model would see them. How that is shown is not decided here.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use image::RgbImage;
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::Value as Json;

use super::input::Inputs;
use super::record::LIMITS;
use super::sound;
use crate::config::TrainFile;
use crate::data::decoder::MediaDecoder;
use crate::data::error::{BadSample, DataError};
use crate::data::in_process::read_rgb_with;
use crate::data::lerobot;
use crate::data::locator::Locator;
use crate::data::maker::SampleMaker;
use crate::data::media::{MediaKind, Sampling, in_folder};
use crate::data::processor::Processor;
use crate::data::sample::Sample;
use crate::data::source::Content;
use crate::data::source::{Conversation, Labeled, MediaSource, Part, Turn};
use crate::files;
use crate::message::SampleId;

/// Records, or members of an archive, whose fields are looked at.
const NUM_PROBED: usize = 200;
/// Bytes of a file of records in which they lie: its first line may be all of it.
const MAX_PROBED_BYTES: u64 = 64 << 20;
/// Frames of a video that are shown.
const MAX_FRAMES: usize = 4;
/// Ids that are shown of a document's tokens.
const MAX_IDS: usize = 32;

/// One file.
#[derive(Clone, Debug, PartialEq)]
pub struct FileInfo {
    pub path: PathBuf,
    pub format: String,
    pub samples: u64,
    pub bytes: Option<u64>,
    /// Name, types and how many of the records that were looked at have it.
    pub fields: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub types: String,
    pub count: usize,
}

/// One sample.
#[derive(Clone, Debug)]
pub struct Shown {
    /// File and line.
    pub place: String,
    /// Role, and the text in which pictures stand as `<image>`.
    pub turns: Vec<(String, String)>,
    /// The pieces of text that the model reads, and whether it learns each; only with a model.
    pub rendered: Option<Vec<(String, bool)>>,
    pub num_tokens: Option<u32>,
    pub media: Vec<ShownMedia>,
}

/// A picture, the first frames of a video, or a recording.
#[derive(Clone, Debug)]
pub struct ShownMedia {
    pub name: String,
    pub kind: MediaKind,
    pub pictures: Vec<RgbImage>,
    /// Codec, rate, channels and length of a recording; empty for others.
    pub about: String,
}

/// Returns the facts about each file.
pub fn describe(inputs: &Inputs) -> Vec<FileInfo> {
    let describe = |((file, samples), format): ((&TrainFile, u64), &str)| FileInfo {
        path: file.name(),
        format: format.to_owned(),
        samples,
        bytes: std::fs::metadata(&file.path).ok().filter(std::fs::Metadata::is_file).map(|file| file.len()),
        fields: fields(file.path.as_ref()),
    };
    inputs.files().zip(inputs.formats()).map(describe).collect()
}

/// Returns the fields of a file, or none where the file is none of those that have fields.
fn fields(path: &Path) -> Vec<Field> {
    if lerobot::is_set(path) {
        return features(path).unwrap_or_default();
    }
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        Some("parquet") => columns(path).unwrap_or_default(),
        Some("tar") => members(path).unwrap_or_default(),
        _ => keys(path).unwrap_or_default(),
    }
}

/// Returns the features of a LeRobot set with their types, shapes and names.
fn features(path: &Path) -> Option<Vec<Field>> {
    let info = lerobot::Info::read(path).ok()?;
    let field = |feature: &lerobot::Feature| {
        let names = if feature.names.is_empty() { String::new() } else { format!(" ({})", feature.names.join(", ")) };
        let types = format!("{} {:?}{names}", feature.dtype.name(), feature.shape);
        Field { name: feature.key.clone(), types, count: usize::try_from(info.num_frames).unwrap_or_default() }
    };
    let mut fields: Vec<Field> = info.features.iter().map(field).collect();
    // Groups of numbers, of a set of GR00T's.
    if let Some(modality) = lerobot::Modality::read(path, &info).ok()? {
        for (kind, group) in
            modality.states.iter().map(|it| ("state", it)).chain(modality.actions.iter().map(|it| ("action", it)))
        {
            let rotation = group.rotation.as_ref().map_or(String::new(), |it| format!(", a rotation ({it})"));
            let types = format!("numbers {} to {} of {}{rotation}", group.at.start, group.at.end, group.key);
            let count = usize::try_from(info.num_frames).unwrap_or_default();
            fields.push(Field { name: format!("{kind}.{}", group.name), types, count });
        }
    }
    Some(fields)
}

fn columns(path: &Path) -> Option<Vec<Field>> {
    let reader = SerializedFileReader::new(files::open(path).ok()?).ok()?;
    let rows = reader.metadata().file_metadata().num_rows();
    let columns = reader.metadata().file_metadata().schema_descr().columns().to_vec();
    let field = |column: &parquet::schema::types::ColumnDescPtr| Field {
        name: column.path().string(),
        types: format!("{:?}", column.physical_type()).to_lowercase(),
        count: usize::try_from(rows).unwrap_or_default(),
    };
    Some(columns.iter().map(field).collect())
}

fn members(path: &Path) -> Option<Vec<Field>> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut archive = tar::Archive::new(BufReader::new(files::open(path).ok()?));
    for entry in archive.entries().ok()?.take(NUM_PROBED) {
        let Ok(entry) = entry else { break };
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let extension = name.rsplit(['.', '/']).next().unwrap_or_default().to_owned();
        *counts.entry(format!("*.{extension}")).or_default() += 1;
    }
    Some(counts.into_iter().map(|(name, count)| Field { name, types: "member".to_owned(), count }).collect())
}

fn keys(path: &Path) -> Option<Vec<Field>> {
    let mut found: Vec<(String, Vec<&'static str>, usize)> = Vec::new();
    let mut take = |record: &Json| {
        for (key, value) in record.as_object().into_iter().flatten() {
            let at = found.iter().position(|(name, ..)| name == key).unwrap_or_else(|| {
                found.push((key.clone(), Vec::new(), 0));
                found.len() - 1
            });
            let (_, types, count) = &mut found[at];
            *count += 1;
            let kind = type_of(value);
            if !types.contains(&kind) {
                types.push(kind);
            }
        }
    };
    let begin = BufReader::new(files::open(path).ok()?.take(MAX_PROBED_BYTES));
    let mut lines = begin.lines().take(NUM_PROBED).map_while(Result::ok).peekable();
    match lines.peek().is_some_and(|line| line.trim_start().starts_with('{')) {
        true => lines.filter_map(|line| serde_json::from_str(&line).ok()).for_each(|record| take(&record)),
        false => super::input::first_record(path).ok().flatten().iter().for_each(take),
    }
    Some(found.into_iter().map(|(name, types, count)| Field { name, types: types.join(" or "), count }).collect())
}

fn type_of(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "list",
        Json::Object(_) => "object",
    }
}

/// Roles and texts of the turns, with placeholders for files, and behind a text the calls of functions as the file has them.
fn said(conversation: &Conversation) -> Vec<(String, String)> {
    let text = |part: &Part| match part {
        Part::Text { text } => text.clone(),
        Part::Image => MediaKind::Image.placeholder().to_owned(),
        Part::Video => MediaKind::Video.placeholder().to_owned(),
        Part::Audio => MediaKind::Audio.placeholder().to_owned(),
        Part::Context => MediaKind::Context.placeholder().to_owned(),
    };
    let said = |turn: &Turn| {
        let texts: String = turn.parts.iter().map(text).collect();
        match turn.fields.get("tool_calls") {
            Some(calls) if texts.is_empty() => calls.to_string(),
            Some(calls) => format!("{texts} {calls}"),
            None => texts,
        }
    };
    conversation.turns.iter().map(|turn| (turn.role.clone(), said(turn))).collect()
}

/// Returns the functions that a conversation offers, before its turns.
fn offered(conversation: &Conversation) -> Option<(String, String)> {
    let tools: Vec<String> = conversation.turns.iter().flat_map(|turn| &turn.tools).map(Json::to_string).collect();
    (!tools.is_empty()).then(|| ("tools".to_owned(), tools.join(" ")))
}

/// Returns the turns of an answer with a label, which is told at the answer.
fn said_with_label(answer: &Labeled) -> Vec<(String, String)> {
    let mut turns = said(&answer.conversation);
    if let Some((role, _)) = turns.last_mut() {
        *role = format!("{} {role}", if answer.is_good { "good" } else { "bad" });
    }
    offered(&answer.conversation).into_iter().chain(turns).collect()
}

/// Reads sample `index`, with its pictures decoded; with a maker as the model reads it.
///
/// # Errors
/// It cannot be used.
pub fn show(inputs: &Inputs, index: u64, maker: Option<&dyn SampleMaker>) -> Result<Shown, BadSample> {
    let (content, base) = inputs.read(index)?;
    let wrong = |error: DataError| inputs.bad(index, error.to_string());
    let place = inputs.bad(index, String::new()).place();
    let mut shown = Shown { place, turns: Vec::new(), rendered: None, num_tokens: None, media: Vec::new() };
    match &content {
        Content::Messages(conversation) => {
            shown.turns = offered(conversation).into_iter().chain(said(conversation)).collect();
            let media = conversation.media.iter().map(|source| show_media(source, base, inputs.decoder()));
            shown.media = media.collect::<Result<_, _>>().map_err(wrong)?;
        }
        Content::Pair(pair) => {
            let [chosen, rejected] = pair.answers();
            let prompt = chosen.turns.iter().zip(&rejected.turns).take_while(|(one, other)| one == other).count();
            let answer = |name: &str, conversation: &Conversation| {
                let turns = said(conversation).into_iter().skip(prompt);
                turns.map(|(role, text)| (format!("{name} {role}"), text)).collect()
            };
            let prompt: Vec<(String, String)> = said(chosen).into_iter().take(prompt).collect();
            let tools: Vec<(String, String)> = offered(chosen).into_iter().collect();
            shown.turns = [tools, prompt, answer("chosen", chosen), answer("rejected", rejected)].concat();
            let media = chosen.media.iter().map(|source| show_media(source, base, inputs.decoder()));
            shown.media = media.collect::<Result<_, _>>().map_err(wrong)?;
        }
        Content::Labeled(answer) => {
            shown.turns = said_with_label(answer);
            let media = answer.conversation.media.iter().map(|source| show_media(source, base, inputs.decoder()));
            shown.media = media.collect::<Result<_, _>>().map_err(wrong)?;
        }
        Content::Group(answers) => shown.turns = answers.iter().flat_map(said_with_label).collect(),
        Content::Text(piece) => shown.turns = vec![("text".to_owned(), piece.text.clone())],
        Content::Tokens(piece) => {
            let first = &piece.ids[..piece.ids.len().min(MAX_IDS)];
            let more = if first.len() < piece.ids.len() { ", …" } else { "" };
            let ids = first.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
            shown.turns = vec![("tokens".to_owned(), format!("{ids}{more}"))];
            shown.num_tokens = u32::try_from(piece.ids.len()).ok();
        }
        Content::Captioned(captioned) => {
            shown.turns = captioned.captions.iter().map(|caption| ("caption".to_owned(), caption.clone())).collect();
            let media = content.media().into_iter().map(|source| show_media(source, base, inputs.decoder()));
            shown.media = media.collect::<Result<_, _>>().map_err(wrong)?;
        }
        Content::Step(step) => {
            shown.turns = vec![("task".to_owned(), step.task().map_err(wrong)?.to_owned())];
            let features = step.set().info().features.iter().filter(|feature| feature.is_numbers());
            for feature in features {
                let values = step.numbers(&feature.key).map_err(wrong)?;
                shown.turns.push((feature.key.clone(), format!("{values:?}")));
            }
            let cameras = step.set().info().cameras().map(|feature| {
                let pictures = step.pictures(&feature.key, &[0], inputs.decoder(), LIMITS)?;
                Ok(ShownMedia { name: feature.key.clone(), kind: MediaKind::Image, pictures, about: String::new() })
            });
            shown.media = cameras.collect::<Result<_, DataError>>().map_err(wrong)?;
        }
        Content::Packed(pack) => {
            let documents = pack.samples.iter().zip(&pack.lens);
            shown.turns =
                documents.map(|(name, len)| ("document".to_owned(), format!("{name}, {len} tokens"))).collect();
        }
    }
    if let Some(maker) = maker {
        let sample = maker.make(SampleId(index), &content, base).map_err(wrong)?;
        shown.num_tokens = Some(sample.meta.num_tokens);
        let rendered = maker.as_chat().map(|processor| render(&sample, processor)).transpose();
        shown.rendered = rendered.map_err(wrong)?;
    }
    Ok(shown)
}

fn show_media(source: &MediaSource, base: &Path, decoder: &dyn MediaDecoder) -> Result<ShownMedia, DataError> {
    let pictures = match source {
        MediaSource::Image(locator) => vec![read_rgb_with(decoder, locator, base, LIMITS)?],
        MediaSource::Audio(_) | MediaSource::Context(_) => Vec::new(),
        MediaSource::Video(video) => match video.locators.as_slice() {
            [Locator::File(name)] if base.join(name).is_dir() => {
                let folder = base.join(name);
                let frames = in_folder(&folder)?;
                frames
                    .iter()
                    .take(MAX_FRAMES)
                    .map(|frame| read_rgb_with(decoder, frame, &folder, LIMITS))
                    .collect::<Result<_, _>>()?
            }
            [one] if one.extension() == "gif" => {
                let wrong = |reason: String| DataError::image(Path::new(&one.display(base)), reason);
                let sampling = Sampling::evenly(MAX_FRAMES);
                decoder.clip(&one.read(base)?, None, LIMITS, &sampling).map_err(wrong)?.frames
            }
            [_] => Vec::new(),
            frames => {
                let frames = frames.iter().take(MAX_FRAMES);
                frames.map(|frame| read_rgb_with(decoder, frame, base, LIMITS)).collect::<Result<_, _>>()?
            }
        },
    };
    let about = match source {
        MediaSource::Audio(audio) => sound::describe(audio, base)?,
        MediaSource::Image(_) | MediaSource::Video(_) | MediaSource::Context(_) => String::new(),
    };
    Ok(ShownMedia { name: source.name().to_owned(), kind: source.kind(), pictures, about })
}

/// Returns the tokens as text, by whether they are learned; a run of placeholders is written as one.
fn render(sample: &Sample, processor: &Processor) -> Result<Vec<(String, bool)>, DataError> {
    let tokenizer = processor.tokenizer();
    let special = tokenizer.special();
    let placeholder = |id: i64| [special.image, special.audio, special.context].contains(&Some(id)).then_some(id);
    let learned = |at: usize| at > 0 && sample.targets[at - 1] == sample.input_ids[at];
    let mut rendered: Vec<(String, bool)> = Vec::new();
    let mut at = 0;
    while at < sample.input_ids.len() {
        let kind = |at: usize| (learned(at), placeholder(sample.input_ids[at]));
        let end = (at..sample.input_ids.len()).find(|&next| kind(next) != kind(at)).unwrap_or(sample.input_ids.len());
        let ids = &sample.input_ids[at..end];
        let (is_learned, placeholder) = kind(at);
        let text = match placeholder.is_some() {
            true => format!("{}×{}", tokenizer.token(ids[0]).unwrap_or_default(), ids.len()),
            false => tokenizer.decode_all(ids)?,
        };
        match rendered.last_mut().filter(|(_, last)| *last == is_learned) {
            Some((before, _)) => before.push_str(&text),
            None => rendered.push((text, is_learned)),
        }
        at = end;
    }
    Ok(rendered)
}
