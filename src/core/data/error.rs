//! The errors of data: those that end a run before it starts, and samples that are skipped.

use std::path::{Path, PathBuf};

use super::file_kind::{FileKind, kind_of};
use crate::message::{self, SampleId};
use serde::{Deserialize, Serialize};

/// An error of the data room. `Sample…`-like variants become the reason of a [`BadSample`] when they
/// happen to one sample of a run; the others end the run before it starts.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{path} has no samples")]
    Empty { path: PathBuf },
    #[error("{path}: {reason}")]
    File { path: PathBuf, reason: String },
    #[error(
        "data.val_size sets aside {what}: below 1 it is a share, else a number of samples, or for LeRobot sets of \
         episodes; change it, or leave it out"
    )]
    Split { what: String },
    #[error("no data source: name at least one file")]
    NoSource,
    #[error("{path}: weight {weight} of a data source must be a finite number above 0")]
    Weight { path: PathBuf, weight: f64 },
    #[error("chat template: {0}")]
    Template(String),
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    #[error("not a sample: {0}")]
    Line(String),
    #[error("{} {path}: {reason}", visual(path))]
    Image { path: PathBuf, reason: String },
    #[error("audio {path}: {reason}")]
    Audio { path: PathBuf, reason: String },
    #[error("{num_tokens} tokens{}, more than data.pack.max_tokens = {max_tokens}", of_files(*num_image_tokens, *num_audio_tokens))]
    TooLong { num_tokens: usize, num_image_tokens: usize, num_audio_tokens: usize, max_tokens: usize },
    #[error(
        "nothing is left to learn from: the sample was cut to fit data.pack.max_tokens = {max_tokens} \
         (data.pack.too_long: truncate)"
    )]
    NothingLeft { max_tokens: usize },
    #[error("sample {id}: {reason}")]
    Column { id: SampleId, reason: String },
    #[error("the {answer} answer: {source}")]
    Answer { answer: String, source: Box<DataError> },
    #[error("{count} {what}, more than data.pack.{key} = {limit}")]
    PackLimit { count: usize, what: &'static str, key: &'static str, limit: usize },
    #[error("{0}")]
    Own(String),
}

/// Returns the word for a file that is seen, by its name.
fn visual(path: &Path) -> &'static str {
    match kind_of(&path.to_string_lossy()) {
        Some(FileKind::Clip) => "video",
        _ => "image",
    }
}

fn of_files(num_image_tokens: usize, num_audio_tokens: usize) -> String {
    match (num_image_tokens, num_audio_tokens) {
        (0, 0) => String::new(),
        (images, 0) => format!(" ({images} of images)"),
        (0, audio) => format!(" ({audio} of audio)"),
        (images, audio) => format!(" ({images} of images, {audio} of audio)"),
    }
}

impl DataError {
    /// Creates the error of a program's own maker of samples about a record or a file.
    pub fn own(reason: impl Into<String>) -> Self {
        Self::Own(reason.into())
    }

    /// Returns whether a sample is longer than a pack, and nothing else is wrong with it.
    pub fn is_too_long(&self) -> bool {
        match self {
            Self::TooLong { .. } => true,
            Self::Answer { source, .. } => source.is_too_long(),
            _ => false,
        }
    }

    /// Says that a file cannot be read.
    pub(super) fn read(path: &Path, source: std::io::Error) -> Self {
        Self::Read { path: path.to_path_buf(), source }
    }

    /// Says that a file cannot be written.
    pub(super) fn write(path: &Path, source: std::io::Error) -> Self {
        Self::Write { path: path.to_path_buf(), source }
    }

    /// Creates the error of a file.
    pub(super) fn file(path: &Path, reason: impl ToString) -> Self {
        Self::File { path: path.to_path_buf(), reason: reason.to_string() }
    }

    /// Creates the error of a model folder whose tokenizer lacks the token that files are put in place of; `key` is to have its id.
    pub(super) fn no_token(folder: &Path, key: &str, id: Option<i64>) -> Self {
        let found = match id {
            Some(id) => format!("{key} is {id}, which is the id of no token of tokenizer.json"),
            None => format!("{key} is not set"),
        };
        let to_do =
            "set it in config.json, or in model.config of a run, to the id of a special token that nothing else uses";
        Self::file(folder, format!("{found}: {to_do}"))
    }

    /// Creates the error of a recording.
    pub(super) fn audio(path: &Path, reason: impl ToString) -> Self {
        Self::Audio { path: path.to_path_buf(), reason: reason.to_string() }
    }

    /// Creates the error of a picture.
    pub(super) fn image(path: &Path, reason: impl ToString) -> Self {
        Self::Image { path: path.to_path_buf(), reason: reason.to_string() }
    }
}

/// A sample that cannot be used: the run skips it, counts it and lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}: {reason}", place(file, at))]
pub struct BadSample {
    pub file: PathBuf,
    /// The place in it: the number of the line, the row or the element from 1, or the key in an archive.
    pub at: String,
    pub reason: String,
    /// It is longer than a pack, and nothing else is wrong with it.
    #[serde(default)]
    pub too_long: bool,
}

impl BadSample {
    /// Makes one of a place and a reason, which need not name a picture or recording that is the place itself.
    pub(super) fn new(file: PathBuf, at: String, reason: String) -> Self {
        let place = place(&file, &at);
        let unnamed =
            ["image", "video", "audio"].iter().find_map(|kind| reason.strip_prefix(&format!("{kind} {place}: ")));
        let reason = unnamed.map(str::to_owned).unwrap_or(reason);
        Self { file, at, reason, too_long: false }
    }

    /// Returns the file and the place in it; of a folder of pictures the picture's path.
    pub fn place(&self) -> String {
        place(&self.file, &self.at)
    }

    /// Returns the message that tells the scheduler of it.
    pub fn into_message(self, id: SampleId) -> message::SkippedSample {
        message::SkippedSample { id, source: self.place(), reason: self.reason, too_long: self.too_long }
    }
}

fn place(file: &Path, at: &str) -> String {
    let colon = if file.to_string_lossy().ends_with('/') { "" } else { ":" };
    format!("{}{colon}{at}", file.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_is_missing_is_named_by_its_id() {
        let of = |id| DataError::no_token(Path::new("m"), "audio_token_id", id).to_string();
        let (wrong, none) = (of(Some(639)), of(None));
        assert!(wrong.starts_with("m: audio_token_id is 639, which is the id of no token"), "{wrong}");
        assert!(none.starts_with("m: audio_token_id is not set: set it in config.json"), "{none}");
    }

    #[test]
    fn a_bad_sample_is_named_by_its_place() {
        let of = |file: &str, at: &str| {
            BadSample::new(file.into(), at.to_owned(), "image a/c d.png: no".to_owned()).to_string()
        };
        assert_eq!([of("a/b.jsonl", "3"), of("a/", "c d.png")], ["a/b.jsonl:3: image a/c d.png: no", "a/c d.png: no"]);
        let of_recording = BadSample::new("a/".into(), "c.wav".to_owned(), "audio a/c.wav: no".to_owned());
        assert_eq!(of_recording.to_string(), "a/c.wav: no");
        let of_clip = DataError::image(Path::new("a/c.mp4"), "no").to_string();
        assert_eq!(of_clip, "video a/c.mp4: no");
        assert_eq!(BadSample::new("a/".into(), "c.mp4".to_owned(), of_clip).to_string(), "a/c.mp4: no");
    }
}
