//! A row group of a Parquet file: its rows in memory while it is open. Bytes become members of the record, and so does a
//! `{bytes, path}` struct, which is how Hugging Face's datasets keep pictures.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use parquet::record::{Field, Row};
use serde_json::{Map, Value as Json};

use super::blob::{Blob, Reader};
use super::block::{Block, Body, Record};

/// Rows and bytes of a row group that are held.
const MAX_ROWS: i64 = 1 << 32;
const MAX_BYTES: usize = 2 << 30;

pub struct Table {
    rows: Vec<Row>,
    num_rows: u64,
    /// The number of the first row in its file, from 1.
    first: u64,
    /// The reason why rows are missing.
    reason: String,
}

struct Chunks(Arc<Blob>);

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl ChunkReader for Chunks {
    type T = Reader;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Reader> {
        Ok(self.0.reader(start))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<bytes::Bytes> {
        // A file with holes can be as long as a disk is not.
        if length > MAX_BYTES {
            return Err(ParquetError::General(format!(
                "a column has {length} bytes (at most {} GiB are allowed)",
                MAX_BYTES >> 30
            )));
        }
        Ok(self.0.read_at(start, length)?.into())
    }
}

impl Table {
    /// Rows of each row group.
    ///
    /// # Errors
    /// The reason: the file is torn, or a row group has more rows than are allowed.
    pub fn lens(blob: &Arc<Blob>) -> Result<Vec<u64>, String> {
        guarded(|| {
            let reader = SerializedFileReader::new(Chunks(blob.clone())).map_err(|error| error.to_string())?;
            let rows = |group: &parquet::file::metadata::RowGroupMetaData| match group.num_rows() {
                rows if (0..=MAX_ROWS).contains(&rows) => Ok(rows as u64),
                rows => Err(format!("a row group declares {rows} rows (0 to {MAX_ROWS} are allowed)")),
            };
            reader.metadata().row_groups().iter().map(rows).collect()
        })
    }

    /// Reads the rows of a row group.
    ///
    /// # Errors
    /// The reason: the file is torn, or has fewer row groups than before.
    pub fn open(blob: &Arc<Blob>, group: u32) -> Result<Self, String> {
        let lens = Self::lens(blob)?;
        let before = lens.iter().take(group as usize).sum::<u64>();
        let num_rows = *lens.get(group as usize).ok_or("has fewer row groups than before: it has changed")?;
        let mut table =
            Self { rows: Vec::new(), num_rows, first: before + 1, reason: "the row group ends early".to_owned() };
        let rows = &mut table.rows;
        let read = guarded(|| {
            let reader = SerializedFileReader::new(Chunks(blob.clone())).map_err(|error| error.to_string())?;
            let reader = reader.get_row_group(group as usize).map_err(|error| error.to_string())?;
            let mut num_bytes = 0;
            for row in reader.get_row_iter(None).map_err(|error| error.to_string())?.take(num_rows as usize) {
                let row = row.map_err(|error| error.to_string())?;
                num_bytes += row_bytes(&row);
                if num_bytes > MAX_BYTES {
                    return Err(format!("a row group is larger than {} GiB: write smaller ones", MAX_BYTES >> 30));
                }
                rows.push(row);
            }
            Ok(())
        });
        if let Err(reason) = read {
            table.reason = format!("damaged Parquet: {reason}");
        }
        Ok(table)
    }
}

impl Block for Table {
    fn len(&self) -> u64 {
        self.num_rows
    }

    fn num_bytes(&self, index: u64) -> u64 {
        let row = self.rows.get(index as usize);
        let fields = row.into_iter().flat_map(|row| row.get_column_iter());
        fields.filter_map(|(_, field)| text_len(field)).sum()
    }

    fn text_bytes(&self, index: u64, key: &str) -> u64 {
        let row = self.rows.get(index as usize);
        let cell = row.into_iter().flat_map(|row| row.get_column_iter()).find(|(name, _)| *name == key);
        cell.and_then(|(_, field)| text_len(field)).unwrap_or_else(|| self.num_bytes(index))
    }

    fn num_ids(&self, index: u64, key: &str, _few: u64) -> u64 {
        let row = self.rows.get(index as usize);
        match row.into_iter().flat_map(|row| row.get_column_iter()).find(|(name, _)| *name == key) {
            Some((_, Field::ListInternal(list))) => list.elements().len() as u64,
            _ => 0,
        }
    }

    fn read(&self, index: u64) -> Result<Record, String> {
        let row = self.rows.get(index as usize).ok_or_else(|| self.reason.clone())?;
        let mut record = Record::default();
        let fields = row.get_column_iter().map(|(name, field)| (name.clone(), value(field, name, &mut record)));
        let fields: Map<String, Json> = fields.collect();
        record.body = Body::Json(Json::Object(fields));
        Ok(record)
    }

    fn lost(&self) -> Option<&str> {
        ((self.rows.len() as u64) < self.num_rows).then_some(self.reason.as_str())
    }

    fn name(&self, index: u64) -> String {
        format!("row {}", self.first + index)
    }
}

/// Turns the reader's own errors, and its panics, which files of others can cause, into reasons.
pub fn guarded<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err("the reader failed on the file".to_owned()))
}

/// Returns the number of bytes of a text, which may not be marked as such.
fn text_len(field: &Field) -> Option<u64> {
    match field {
        Field::Str(text) => Some(text.len() as u64),
        Field::Bytes(bytes) => Some(bytes.len() as u64),
        _ => None,
    }
}

fn value(field: &Field, column: &str, record: &mut Record) -> Json {
    let float = |value: f64| serde_json::Number::from_f64(value).map_or(Json::Null, Json::Number);
    match field {
        Field::Null => Json::Null,
        Field::Bool(value) => (*value).into(),
        Field::Byte(value) => (*value).into(),
        Field::Short(value) => (*value).into(),
        Field::Int(value) => (*value).into(),
        Field::Long(value) => (*value).into(),
        Field::UByte(value) => (*value).into(),
        Field::UShort(value) => (*value).into(),
        Field::UInt(value) => (*value).into(),
        Field::ULong(value) => (*value).into(),
        Field::Float(value) => float(f64::from(*value)),
        Field::Double(value) => float(*value),
        Field::Str(text) => text.clone().into(),
        // Text that is not marked as such, or a file.
        Field::Bytes(bytes) => match std::str::from_utf8(bytes.data()) {
            Ok(text) => text.into(),
            Err(_) => member(bytes.data(), column, record),
        },
        Field::Group(row) => group(row, record),
        Field::ListInternal(list) => list.elements().iter().map(|field| value(field, column, record)).collect(),
        Field::MapInternal(map) => {
            // The parser's own text of a text has quotes around it.
            let name = |key: &Field| if let Field::Str(text) = key { text.clone() } else { key.to_string() };
            let entry = |(key, field): &(Field, Field)| (name(key), value(field, column, record));
            Json::Object(map.entries().iter().map(entry).collect())
        }
        // Times and decimals are nothing that samples are made of.
        other => other.to_string().into(),
    }
}

fn group(row: &Row, record: &mut Record) -> Json {
    let column = |name: &str| row.get_column_iter().find(|(column, _)| *column == name).map(|(_, field)| field);
    let is_file = row.len() <= 2 && column("bytes").is_some();
    match (column("bytes"), column("path")) {
        (Some(Field::Bytes(bytes)), Some(Field::Str(path))) if is_file => member(bytes.data(), path, record),
        (Some(Field::Bytes(bytes)), _) if is_file => member(bytes.data(), "bytes", record),
        (Some(Field::Null), Some(path)) if is_file => value(path, "path", record),
        _ => Json::Object(
            row.get_column_iter().map(|(name, field)| (name.clone(), value(field, name, record))).collect(),
        ),
    }
}

/// Returns the name under which bytes are found again.
fn member(bytes: &[u8], name: &str, record: &mut Record) -> Json {
    let name = format!("row:{}:{name}", record.members.len());
    record.members.push((name.clone(), bytes.into()));
    name.into()
}

/// Bytes that a row takes: a few bytes of a file can stand for millions of rows of nothing, and each of them takes memory.
fn row_bytes(row: &Row) -> usize {
    let cell = |(name, field): (&String, &Field)| size_of::<(String, Field)>() + name.len() + heap_bytes(field);
    size_of::<Row>() + row.get_column_iter().map(cell).sum::<usize>()
}

/// Bytes that a field takes besides itself.
fn heap_bytes(field: &Field) -> usize {
    let whole = |field: &Field| size_of::<Field>() + heap_bytes(field);
    match field {
        Field::Str(text) => text.len(),
        Field::Bytes(bytes) => bytes.len(),
        Field::Group(row) => row_bytes(row),
        Field::ListInternal(list) => list.elements().iter().map(whole).sum(),
        Field::MapInternal(map) => map.entries().iter().map(|(key, value)| whole(key) + whole(value)).sum(),
        _ => 0,
    }
}
