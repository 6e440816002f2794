//! A file of comma- or tab-separated values (RFC 4180): the first row names the columns, each other row is a record. Only the places
//! where rows begin are held.

use std::cell::Cell;
use std::io::{self, Read};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use csv::{ByteRecord, ReaderBuilder};
use serde_json::{Map, Value as Json};

use super::blob::{Blob, Reader};
use super::block::{Block, Body, NOT_UTF_8, Record};
use super::labeled::LABELS;

/// A longer row is no row: most likely a quotation mark is missing.
const MAX_ROW_BYTES: u64 = 64 << 20;
/// Columns that are lists in every layout: their cells are JSON.
const LISTS: [&str; 8] = ["messages", "conversations", "texts", "tools", "images", "videos", "audios", "contexts"];

/// An open file.
pub struct Sheet {
    blob: Arc<Blob>,
    separator: u8,
    header: Vec<String>,
    /// The place where each row begins, and the end of the last.
    begins: Vec<u64>,
}

impl Sheet {
    /// Finds the rows of a file whose cells are separated by `separator`.
    ///
    /// # Errors
    /// The reason: it cannot be read, has no row of names, or a row that does not end.
    pub fn open(blob: Arc<Blob>, separator: u8) -> Result<Self, String> {
        let left = Rc::new(Cell::new(MAX_ROW_BYTES));
        let metered = Metered { inner: blob.reader(0), left: left.clone() };
        let mut reader =
            ReaderBuilder::new().delimiter(separator).flexible(true).has_headers(false).from_reader(metered);
        let fail = |error: csv::Error| format!("cannot be read: {error}");
        let (mut record, mut begins) = (ByteRecord::new(), Vec::new());
        if !reader.read_byte_record(&mut record).map_err(fail)? {
            return Err("has no first row that names its columns".to_owned());
        }
        let header = record.iter().map(text).collect::<Result<Vec<_>, _>>()?;
        loop {
            begins.push(reader.position().byte());
            left.set(MAX_ROW_BYTES);
            if !reader.read_byte_record(&mut record).map_err(fail)? {
                return Ok(Self { blob, separator, header, begins });
            }
        }
    }

    fn bytes(&self, index: u64) -> Range<u64> {
        self.begins[index as usize]..self.begins[index as usize + 1]
    }
}

impl Block for Sheet {
    fn len(&self) -> u64 {
        self.begins.len() as u64 - 1
    }

    fn num_bytes(&self, index: u64) -> u64 {
        let range = self.bytes(index);
        range.end - range.start
    }

    fn read(&self, index: u64) -> Result<Record, String> {
        let range = self.bytes(index);
        let bytes = self.blob.read_at(range.start, (range.end - range.start) as usize);
        let bytes = bytes.map_err(|error| error.to_string())?;
        let reader = ReaderBuilder::new().delimiter(self.separator).has_headers(false).from_reader(&bytes[..]);
        let row = reader.into_byte_records().next().ok_or("is not a row")?.map_err(|error| error.to_string())?;
        if row.len() != self.header.len() {
            let other = if let [only] = &self.header[..] { other_separator(only) } else { String::new() };
            let named = self.header.len();
            return Err(format!("has {} cells, but the first row names {named} columns{other}", row.len()));
        }
        let mut fields = Map::new();
        for (name, cell) in self.header.iter().zip(&row) {
            match text(cell)? {
                // As an empty cell is read elsewhere: nothing is there.
                cell if cell.is_empty() => {}
                cell if LISTS.contains(&name.as_str()) && cell.trim_start().starts_with('[') => {
                    let list: Json = serde_json::from_str(&cell)
                        .map_err(|error| format!("column {name} is not valid JSON: {error}"))?;
                    fields.insert(name.clone(), list);
                }
                // As pandas writes it. A label that is a text would be none, and bad answers would be learned as good ones.
                cell if LABELS.contains(&name.as_str()) => {
                    let label = match cell.to_ascii_lowercase().as_str() {
                        "true" => true.into(),
                        "false" => false.into(),
                        _ => cell.into(),
                    };
                    fields.insert(name.clone(), label);
                }
                cell => drop(fields.insert(name.clone(), cell.into())),
            }
        }
        Ok(Record { body: Body::Json(Json::Object(fields)), ..Record::default() })
    }

    fn name(&self, index: u64) -> String {
        format!("row {}", index + 1)
    }
}

/// Returns what is said of a table whose only column is called `name`, if a mark that separates cells elsewhere is in it; else nothing.
pub fn other_separator(name: &str) -> String {
    let mark = [';', ',', '\t', '|'].into_iter().find(|mark| name.contains(*mark));
    mark.map_or_else(String::new, |mark| {
        format!(
            "; its first row is one name with {mark:?} in it: commas separate the cells of .csv, and tabs those of .tsv"
        )
    })
}

fn text(cell: &[u8]) -> Result<String, String> {
    std::str::from_utf8(cell).map(str::to_owned).map_err(|_| NOT_UTF_8.to_owned())
}

/// Ends where a row takes more than it may.
struct Metered {
    inner: Reader,
    left: Rc<Cell<u64>>,
}

impl Read for Metered {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left.get() == 0 {
            let reason = format!("row is longer than {} MiB: is a quotation mark missing?", MAX_ROW_BYTES >> 20);
            return Err(io::Error::other(reason));
        }
        let len = self.inner.read(into)?;
        self.left.set(self.left.get().saturating_sub(len as u64));
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn open(text: &[u8], separator: u8) -> Result<Sheet, String> {
        Sheet::open(Arc::new(Blob::Memory(text.into())), separator)
    }

    fn value(sheet: &Sheet, index: u64) -> Result<Json, String> {
        sheet.read(index).map(|record| match record.body {
            Body::Json(json) => json,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn rows_are_records_of_named_cells() {
        let text =
            "\u{feff}instruction,input,output\r\n\"Say \"\"a, b\"\"\",,{\"x\": 1}\n\n\"two\nlines\",é,[1]\nx,y\n";
        let sheet = open(text.as_bytes(), b',').unwrap();
        assert_eq!(sheet.len(), 3);
        assert_eq!(value(&sheet, 0), Ok(json!({"instruction": "Say \"a, b\"", "output": "{\"x\": 1}"})));
        assert_eq!(value(&sheet, 1), Ok(json!({"instruction": "two\nlines", "input": "é", "output": "[1]"})));
        assert_eq!(value(&sheet, 2), Err("has 2 cells, but the first row names 3 columns".to_owned()));
        assert_eq!([0, 1, 2].map(|index| sheet.name(index)), ["row 1", "row 2", "row 3"]);
        let turns = open(b"id\tmessages\n1\t[{\"role\": \"user\"}]\n2\t[{\n", b'\t').unwrap();
        assert_eq!(value(&turns, 0).unwrap()["messages"][0]["role"], "user");
        assert!(value(&turns, 1).unwrap_err().contains("column messages is not valid JSON"));
    }

    #[test]
    fn labels_are_truth_values() {
        let sheet = open(b"prompt,completion,label,note\na,b,True,True\nc,d,false,x\ne,f,cat,y\n", b',').unwrap();
        let row = json!({"prompt": "a", "completion": "b", "label": true, "note": "True"});
        assert_eq!(value(&sheet, 0), Ok(row));
        assert_eq!([1, 2].map(|row| value(&sheet, row).unwrap()["label"].clone()), [json!(false), json!("cat")]);
    }

    #[test]
    fn what_is_no_table_is_said() {
        assert!(open(b"", b',').err().unwrap().contains("no first row"));
        assert_eq!(value(&open(b"a\n\xff\n", b',').unwrap(), 0), Err(NOT_UTF_8.to_owned()));
        let endless = [b"a\n\"".as_slice(), &vec![b'x'; MAX_ROW_BYTES as usize + (1 << 20)]].concat();
        assert!(open(&endless, b',').err().unwrap().contains("is a quotation mark missing?"));
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in prop::collection::vec(prop_oneof![Just(b'"'), Just(b','), Just(b'\n'), any::<u8>()], 0..80)) {
            if let Ok(sheet) = open(&bytes, b',') {
                (0..sheet.len()).for_each(|index| drop((sheet.read(index), sheet.name(index), sheet.num_bytes(index))));
            }
        }
    }
}
