//! Record batches of Arrow files (Feather, version 2) and streams, as `datasets` keeps its data: some batches at a time in memory.
//!
//! ```text
//! ["ARROW1\0\0"] schema │ dictionaries │ batch │ batch … │ [end, footer, "ARROW1"]
//! each: u32 0xFFFFFFFF, u32 length, description (flatbuffer), body; the first number is missing in old files
//! ```

use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::FileDecoder;
use arrow_ipc::{Block as Place, MessageHeader, MetadataVersion, root_as_message};
use arrow_schema::Schema;
use serde_json::{Map, Value as Json};

use super::arrow_values::{Reader, list_len, text_bytes};
use super::blob::Blob;
use super::block::{Block, Body, Record};
use super::patience::is_of_system;
use super::table::guarded;

const MAGIC: &[u8] = b"ARROW1\0\0";
const CONTINUES: u32 = u32::MAX;
/// A longer description is none.
const MAX_DESCRIPTION_BYTES: u32 = 64 << 20;
/// Bytes of a batch that is read, and rows.
const MAX_BATCH_BYTES: u64 = 2 << 30;
const MAX_ROWS: i64 = 1 << 32;
/// Batches are put together into a block up to these sizes.
const BLOCK_BYTES: u64 = 64 << 20;
const BLOCK_ROWS: u64 = 1 << 16;

/// A description with its body.
#[derive(Clone, Copy)]
struct Message {
    offset: u64,
    description_len: u64,
    body_len: u64,
    num_rows: u64,
}

/// The places of all parts of a file.
struct Contents {
    schema: Arc<Schema>,
    version: MetadataVersion,
    dictionaries: Vec<Message>,
    batches: Vec<Message>,
    /// The reason why the file ends before it should: a row behind the last batch, which is bad, stands for what is missing.
    torn: Option<String>,
}

/// Some batches of a file, open.
pub struct Batches {
    batches: Vec<Result<RecordBatch, String>>,
    /// Rows before each batch, and all of them.
    before: Vec<u64>,
    /// The number of the first row in its file, from 1.
    first: u64,
}

impl Batches {
    /// Rows of each block.
    ///
    /// # Errors
    /// The reason: the file is no Arrow file, or the system does not give its end.
    pub fn lens(blob: &Blob) -> Result<Vec<u64>, String> {
        let contents = guarded(|| Contents::read(blob))?;
        if let Some(reason) = contents.torn.as_ref().filter(|reason| is_of_system(reason)) {
            return Err(reason.clone());
        }
        Ok(contents.blocks().into_iter().map(|range| contents.rows(range)).collect())
    }

    /// Reads the batches of a block.
    ///
    /// # Errors
    /// The reason: the file is no Arrow file, or has fewer batches than before. A batch that is damaged is one whose records
    /// are bad.
    pub fn open(blob: &Blob, block: u32) -> Result<Self, String> {
        let contents = guarded(|| Contents::read(blob))?;
        let blocks = contents.blocks();
        let fewer =
            || contents.torn.clone().unwrap_or_else(|| "has fewer batches than before: it has changed".to_owned());
        let range = blocks.get(block as usize).cloned().ok_or_else(fewer)?;
        let first = contents.rows(0..range.start) + 1;
        let mut decoder = FileDecoder::new(contents.schema.clone(), contents.version);
        for dictionary in &contents.dictionaries {
            let (place, bytes) = dictionary.read(blob)?;
            guarded(|| decoder.read_dictionary(&place, &bytes).map_err(|error| error.to_string()))?;
        }
        let (mut batches, mut before) = (Vec::new(), vec![0]);
        for at in range {
            let rows = contents.rows(at..at + 1);
            before.push(before[before.len() - 1] + rows);
            let Some(message) = contents.batches.get(at) else {
                batches.push(Err(contents.torn.clone().unwrap_or_default()));
                continue;
            };
            let read = message.read(blob).and_then(|(place, bytes)| {
                guarded(|| match decoder.read_record_batch(&place, &bytes).map_err(|error| error.to_string())? {
                    Some(batch) if batch.num_rows() as u64 == rows => Ok(batch),
                    Some(batch) => Err(format!("a batch has {} rows but declares {rows}", batch.num_rows())),
                    None => Err("a batch has no contents".to_owned()),
                })
            });
            batches.push(read.map_err(|reason| format!("damaged Arrow: {reason}")));
        }
        Ok(Self { batches, before, first })
    }

    /// Returns the batch of a row, and where it is there.
    fn place(&self, index: u64) -> (usize, usize) {
        let batch = self.before.partition_point(|&before| before <= index) - 1;
        (batch, (index - self.before[batch]) as usize)
    }
}

impl Block for Batches {
    fn len(&self) -> u64 {
        self.before[self.batches.len()]
    }

    fn num_bytes(&self, index: u64) -> u64 {
        let (batch, row) = self.place(index);
        let Ok(batch) = &self.batches[batch] else { return 0 };
        batch.columns().iter().map(|column| text_bytes(column, row)).sum()
    }

    fn text_bytes(&self, index: u64, key: &str) -> u64 {
        let (batch, row) = self.place(index);
        let column = self.batches[batch].as_ref().ok().and_then(|batch| batch.column_by_name(key));
        column.map_or_else(|| self.num_bytes(index), |column| text_bytes(column, row))
    }

    fn num_ids(&self, index: u64, key: &str, _few: u64) -> u64 {
        let (batch, row) = self.place(index);
        let column = self.batches[batch].as_ref().ok().and_then(|batch| batch.column_by_name(key));
        column.map_or(0, |column| guarded(|| Ok(list_len(column, row))).unwrap_or(0))
    }

    fn read(&self, index: u64) -> Result<Record, String> {
        let (batch, row) = self.place(index);
        let batch = self.batches[batch].as_ref().map_err(Clone::clone)?;
        let mut record = Record::default();
        let mut reader = Reader::new(&mut record);
        let mut fields = Map::new();
        for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
            let value = guarded(|| reader.value(column, row, field.name()));
            let value = value.map_err(|reason| format!("column {}: {reason}", field.name()))?;
            fields.insert(field.name().clone(), value);
        }
        record.body = Body::Json(Json::Object(fields));
        Ok(record)
    }

    fn lost(&self) -> Option<&str> {
        self.batches.iter().find_map(|batch| batch.as_ref().err()).map(String::as_str)
    }

    fn name(&self, index: u64) -> String {
        format!("row {}", self.first + index)
    }
}

impl Message {
    fn read(&self, blob: &Blob) -> Result<(Place, Buffer), String> {
        let len = self.description_len + self.body_len;
        let bytes = blob.read_at(self.offset, len as usize).map_err(|error| error.to_string())?;
        let place = Place::new(self.offset as i64, self.description_len as i32, self.body_len as i64);
        Ok((place, Buffer::from(bytes)))
    }
}

impl Contents {
    /// Reads the descriptions of all batches, and no bodies.
    ///
    /// # Errors
    /// It is no such file, or of a kind that is not read.
    fn read(blob: &Blob) -> Result<Self, String> {
        let is_file = blob.len() >= MAGIC.len() as u64
            && blob.scan_at(0, MAGIC.len()).map_err(|error| error.to_string())? == MAGIC;
        let mut at = if is_file { MAGIC.len() as u64 } else { 0 };
        let mut found: Option<Self> = None;
        loop {
            let torn = match Self::next(blob, at, &mut found) {
                Ok(Some(next)) => {
                    at = next;
                    continue;
                }
                Ok(None) => None,
                Err(reason) => Some(reason),
            };
            let wrong = || torn.clone().unwrap_or_else(|| "it has no schema".to_owned());
            let mut contents = found.ok_or_else(|| format!("is not an Arrow file: {}", wrong()))?;
            let is_foreign = |reason: &&String| reason.starts_with("is ");
            if let Some(reason) = torn.as_ref().filter(is_foreign) {
                return Err(reason.clone());
            }
            contents.torn = torn.map(|reason| format!("damaged Arrow: {reason}"));
            return Ok(contents);
        }
    }

    /// Takes the message at `at`; returns where the next one is, or `None` at the end.
    fn next(blob: &Blob, at: u64, found: &mut Option<Self>) -> Result<Option<u64>, String> {
        let left = blob.len() - at;
        if left == 0 {
            return Ok(None);
        }
        let head = blob.scan_at(at, left.min(8) as usize).map_err(|error| error.to_string())?;
        let number = |from: usize| Some(u32::from_le_bytes(head.get(from..from + 4)?.try_into().ok()?));
        let (len, head_len) = match number(0).ok_or("it ends within a message's metadata")? {
            CONTINUES => (number(4).ok_or("it ends within a message's metadata")?, 8),
            len => (len, 4),
        };
        if len == 0 {
            return Ok(None);
        }
        if len > MAX_DESCRIPTION_BYTES || u64::from(len) + head_len > left {
            return Err(format!("a message's metadata takes {len} bytes, but only {left} are left"));
        }
        let description = blob.scan_at(at + head_len, len as usize).map_err(|error| error.to_string())?;
        let message =
            root_as_message(&description).map_err(|error| format!("a message's metadata is invalid: {error}"))?;
        let body_len =
            u64::try_from(message.bodyLength()).map_err(|_| "the body of a message has a negative length")?;
        let description_len = head_len + u64::from(len);
        let next =
            (at + description_len).checked_add(body_len).ok_or("the body of a message has an impossible length")?;
        let mut taken = Message { offset: at, description_len, body_len, num_rows: 0 };
        let whole = || match next > blob.len() || body_len > MAX_BATCH_BYTES {
            true => Err(format!(
                "the body of a message takes {body_len} bytes, but only {} are left",
                left - description_len
            )),
            false => Ok(()),
        };
        let plain =
            |is_compressed: bool| match is_compressed {
                true => Err("is compressed Arrow, which is not supported: write it without compression, or as Parquet"
                    .to_owned()),
                false => Ok(()),
            };
        match (message.header_type(), found) {
            (MessageHeader::Schema, found @ None) => {
                let schema = message.header_as_schema().ok_or("the schema has no contents")?;
                let schema = Arc::new(try_fb_to_schema(schema).map_err(|error| error.to_string())?);
                let version = message.version();
                *found = Some(Self { schema, version, dictionaries: Vec::new(), batches: Vec::new(), torn: None });
            }
            (MessageHeader::DictionaryBatch, Some(found)) => {
                let batch = message.header_as_dictionary_batch().ok_or("a dictionary has no contents")?;
                plain(batch.data().is_some_and(|data| data.compression().is_some()))?;
                if !found.batches.is_empty() {
                    return Err("is Arrow with dictionaries that change, which is not supported: write it as Parquet"
                        .to_owned());
                }
                whole()?;
                found.dictionaries.push(taken);
            }
            (MessageHeader::RecordBatch, Some(found)) => {
                let batch = message.header_as_record_batch().ok_or("a batch has no contents")?;
                plain(batch.compression().is_some())?;
                taken.num_rows = match batch.length() {
                    rows if (0..=MAX_ROWS).contains(&rows) => rows as u64,
                    rows => return Err(format!("a batch declares {rows} rows (0 to {MAX_ROWS} are allowed)")),
                };
                whole()?;
                found.batches.push(taken);
            }
            (_, None) => return Err("it does not begin with a schema".to_owned()),
            (other, _) => return Err(format!("unexpected message of kind {other:?} among the batches")),
        }
        Ok(Some(next))
    }

    /// Batches that are open together.
    fn blocks(&self) -> Vec<Range<usize>> {
        let (mut blocks, mut begin, mut bytes, mut rows) = (Vec::new(), 0, 0, 0);
        for (at, batch) in self.batches.iter().enumerate() {
            if at > begin && (bytes + batch.body_len > BLOCK_BYTES || rows + batch.num_rows > BLOCK_ROWS) {
                blocks.push(begin..at);
                (begin, bytes, rows) = (at, 0, 0);
            }
            bytes += batch.body_len;
            rows += batch.num_rows;
        }
        let end = self.batches.len() + usize::from(self.torn.is_some());
        if end > begin {
            blocks.push(begin..end);
        }
        blocks
    }

    /// Rows of these batches.
    fn rows(&self, range: Range<usize>) -> u64 {
        range.map(|at| self.batches.get(at).map_or(1, |batch| batch.num_rows)).sum()
    }
}
