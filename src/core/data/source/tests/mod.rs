//! Data sets of every kind, from files to contents.

use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use super::archive::tests::tar;
use super::content::Content;
use super::stream::Source;
use super::{Conversation, MediaSource, Mixture};
use crate::config::{Format, Paths, Phase, TrainFile};
use crate::data::error::DataError;
use crate::data::locator::Locator;

mod arrow;
mod layouts;
#[cfg(feature = "cloud")]
mod remote;
mod shards;
mod tables;
mod tokens;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_string_lossy().into_owned()
    }
}

fn open(file: &TrainFile) -> Result<Source, DataError> {
    Source::open(file, Phase::Midtrain, usize::MAX, str::len)
}

fn of(path: impl AsRef<Path>) -> Source {
    open(&TrainFile::new(path.as_ref())).unwrap()
}

fn conversation(source: &Source, index: usize) -> Conversation {
    match source.read(index).unwrap() {
        Content::Messages(conversation) => conversation,
        other => panic!("{other:?}"),
    }
}

/// Returns the words of a sample, and its files: names, or bytes.
fn shown(source: &Source, index: usize) -> String {
    match source.read(index) {
        Ok(Content::Text(piece)) => piece.text,
        Ok(Content::Messages(conversation)) => {
            let turns: Vec<String> =
                conversation.turns.iter().map(|turn| format!("{}:{}", turn.role, turn.joined_text())).collect();
            let files: Vec<String> = conversation.media.iter().map(file).collect();
            format!("{} {}", turns.join(" "), files.join(" ")).trim_end().to_owned()
        }
        Ok(other) => panic!("{other:?}"),
        Err(bad) => format!("bad {}", bad.at),
    }
}

fn file(source: &MediaSource) -> String {
    let text = |locator: &Locator| match locator {
        Locator::Bytes { bytes, .. } => format!("[{}]", String::from_utf8_lossy(bytes)),
        other => format!("({})", Path::new(other.name()).file_name().unwrap().to_string_lossy()),
    };
    match source {
        MediaSource::Image(locator) => text(locator),
        MediaSource::Audio(audio) => text(&audio.locator),
        MediaSource::Video(video) => video.locators.iter().map(text).collect(),
        MediaSource::Context(text) => text.clone(),
    }
}

fn chat(user: &str) -> Json {
    json!({"messages": [{"role": "user", "content": user}, {"role": "assistant", "content": "ok"}]})
}
