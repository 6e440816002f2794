//! Blocks, each of which is opened at once, and the records in them.

use std::sync::Arc;

use serde_json::Value as Json;

use crate::data::lerobot::Step;

/// The reason why a text that is no UTF-8 cannot be used.
pub const NOT_UTF_8: &str = "is not UTF-8: convert the file, for example with `iconv -f WINDOWS-1252 -t UTF-8`";

/// A shard, a row group or a file of lines, opened.
pub trait Block: Send + Sync {
    /// Returns the number of records in the block.
    fn len(&self) -> u64;

    /// Bytes of a record, at least as many as its text has: by these long texts are cut.
    fn num_bytes(&self, index: u64) -> u64;

    /// Bytes of the text that a record has under `key`; where that cannot be told, those of the record.
    fn text_bytes(&self, index: u64, key: &str) -> u64 {
        let record = self.read(index).ok();
        let text = record.as_ref().and_then(|record| record.field(key)?.as_str());
        text.map_or_else(|| self.num_bytes(index), |text| text.len() as u64)
    }

    /// Bytes of the longest of the members of a record that a place in its archive names, such as `txt` or `page.txt,json[text]`; 0 where
    /// it has none of them.
    fn member_bytes(&self, _index: u64, _place: &str) -> u64 {
        0
    }

    /// Returns the number of ids that a record lists under `key`; 0 where that cannot be told. Where there are at most `few`, it may be any
    /// number up to that.
    fn num_ids(&self, index: u64, key: &str, _few: u64) -> u64 {
        let record = self.read(index).ok();
        let ids = record.as_ref().and_then(|record| record.field(key)?.as_array());
        ids.map_or(0, |ids| ids.len() as u64)
    }

    /// # Errors
    /// Returns the reason why the record cannot be used.
    fn read(&self, index: u64) -> Result<Record, String>;

    /// Returns why records of it are missing, if they are.
    fn lost(&self) -> Option<&str> {
        None
    }

    /// Returns how a record is called in messages: the number of its line or row, or its key.
    fn name(&self, index: u64) -> String;
}

/// A record as it lies in its file.
#[derive(Debug, Default)]
pub struct Record {
    pub body: Body,
    /// Files that came with it, by name.
    pub members: Vec<(String, Arc<[u8]>)>,
    /// The record's name in its archive.
    pub key: String,
    /// True for an archive: it names its own members alone.
    pub is_closed: bool,
}

#[derive(Debug, Default)]
pub enum Body {
    /// Members alone.
    #[default]
    None,
    Json(Json),
    Text(String),
    /// Ids of the tokens of a document.
    Tokens(Vec<i64>),
    /// A frame of an episode of a robot.
    Step(Step),
}

impl Record {
    /// Returns the contents of the member of this name.
    pub fn member(&self, name: &str) -> Option<&Arc<[u8]>> {
        self.members.iter().find(|(member, _)| member == name).map(|(_, bytes)| bytes)
    }

    /// Returns a field of a JSON object.
    pub fn field(&self, name: &str) -> Option<&Json> {
        match &self.body {
            Body::Json(json) => json.get(name).filter(|value| !value.is_null()),
            _ => None,
        }
    }
}
