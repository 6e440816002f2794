//! A file of lines, or of one JSON array, read in any order: only where records begin is held, eight bytes each.

use std::io::{BufRead, BufReader};
use std::sync::Arc;

use super::blob::Blob;
use super::block::{Block, Body, NOT_UTF_8, Record};
use super::strict;
use super::text_len::text_len;
use super::wrong_json;

/// A longer record is a bad sample: pixels belong in files of their own.
const MAX_RECORD_BYTES: u64 = 64 << 20;

pub struct Lines {
    blob: Arc<Blob>,
    kind: Kind,
    /// The place where each record begins, and the end of the last.
    begins: Vec<u64>,
    /// The records that follow blank lines, each with the number of all blank lines before it, in order; empty for an array.
    blanks: Vec<(u64, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Json,
    Plain,
    Array,
}

impl Lines {
    /// Opens JSON lines, or an array if the first letter is `[`.
    ///
    /// # Errors
    /// The reason: the file cannot be read, or is neither.
    pub fn json(blob: Arc<Blob>) -> Result<Self, String> {
        let start = start(&blob)?;
        let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&start);
        match text.trim_ascii_start().first() {
            Some(b'[') => Self::array(blob),
            _ => Self::by_line(blob, Kind::Json),
        }
    }

    /// Opens a file with a text a line.
    ///
    /// # Errors
    /// The reason: the file cannot be read, or is no text.
    pub fn plain(blob: Arc<Blob>) -> Result<Self, String> {
        start(&blob)?;
        Self::by_line(blob, Kind::Plain)
    }

    fn by_line(blob: Arc<Blob>, kind: Kind) -> Result<Self, String> {
        let mut reader = BufReader::with_capacity(1 << 20, blob.reader(0));
        let (mut begins, mut blanks, mut num_blank, mut offset) = (Vec::new(), Vec::new(), 0, 0);
        loop {
            let fail = |error: std::io::Error| format!("cannot be read: {error}");
            let (len, is_blank) = skip_line(&mut reader, kind == Kind::Json).map_err(fail)?;
            if len == 0 {
                break;
            }
            if is_blank {
                num_blank += 1;
                match blanks.last_mut() {
                    Some((before, blank)) if *before == begins.len() as u64 => *blank = num_blank,
                    _ => blanks.push((begins.len() as u64, num_blank)),
                }
            } else {
                begins.push(offset);
            }
            offset += len;
        }
        begins.push(offset);
        Ok(Self { blob, kind, begins, blanks })
    }

    /// Opens the elements of an array: brackets are counted outside of strings, nothing is parsed.
    ///
    /// # Errors
    /// The reason: the file cannot be read, ends within the array, or has more after it.
    fn array(blob: Arc<Blob>) -> Result<Self, String> {
        let mut reader = BufReader::with_capacity(1 << 20, blob.reader(0));
        let (mut begins, mut offset, mut depth) = (Vec::new(), 0u64, 0u64);
        let (mut in_string, mut escaped, mut expects, mut is_closed) = (false, false, false, false);
        while !is_closed {
            let chunk = reader.fill_buf().map_err(|error| format!("cannot be read: {error}"))?;
            if chunk.is_empty() {
                break;
            }
            for (at, &byte) in chunk.iter().enumerate() {
                if in_string {
                    match byte {
                        _ if escaped => escaped = false,
                        b'\\' => escaped = true,
                        b'"' => in_string = false,
                        _ => {}
                    }
                    continue;
                }
                if depth == 1 && expects && !byte.is_ascii_whitespace() && byte != b']' {
                    begins.push(offset + at as u64);
                    expects = false;
                }
                match byte {
                    b'"' => in_string = true,
                    b'[' | b'{' => {
                        expects |= depth == 0;
                        depth += 1;
                    }
                    b']' | b'}' => {
                        depth = depth.saturating_sub(1);
                        if depth == 0 {
                            offset += at as u64 + 1;
                            is_closed = true;
                            break;
                        }
                    }
                    b',' if depth == 1 => expects = true,
                    _ => {}
                }
            }
            let len = chunk.len();
            if !is_closed {
                offset += len as u64;
            }
            reader.consume(len);
        }
        drop(reader);
        if !is_closed {
            return Err(format!(
                "has no `]` that closes its array, which began {} elements: was its copy or download cut short, or is a \
                 bracket or a quotation mark left open?",
                begins.len()
            ));
        }
        if !is_blank(&mut BufReader::new(blob.reader(offset)))? {
            return Err(
                "has more after the `]` that closes its array: make it one array, or one record per line".to_owned()
            );
        }
        begins.push(offset);
        Ok(Self { blob, kind: Kind::Array, begins, blanks: Vec::new() })
    }
}

/// Skips a line. Returns its length, 0 at the end, and whether it is blank: empty, or of white space alone if `takes_spaces`.
fn skip_line(reader: &mut impl BufRead, takes_spaces: bool) -> std::io::Result<(u64, bool)> {
    let is_space = |byte: u8| byte == b'\r' || byte != b'\n' && takes_spaces && byte.is_ascii_whitespace();
    let (mut len, mut num_other) = (0, 0);
    loop {
        let chunk = reader.fill_buf()?;
        let end = chunk.iter().position(|byte| !is_space(*byte));
        let (skipped, is_over) = match end {
            Some(at) if chunk[at] == b'\n' => (at + 1, true),
            Some(at) => (at, true),
            None => (chunk.len(), chunk.is_empty()),
        };
        let is_filled = end.is_some_and(|at| chunk[at] != b'\n');
        reader.consume(skipped);
        len += skipped as u64;
        if is_filled {
            num_other = reader.skip_until(b'\n')? as u64;
        }
        if is_over {
            return Ok((len + num_other, num_other == 0));
        }
    }
}

/// Reads the first bytes of a text.
///
/// # Errors
/// It cannot be read, is packed, or is in UTF-16, as some programs of Windows write texts.
fn start(blob: &Blob) -> Result<Vec<u8>, String> {
    let len = (blob.len() as usize).min(64);
    let start = blob.read_at(0, len).map_err(|error| error.to_string())?;
    let packed = |kind: &str, then: &str| Err(format!("is compressed with {kind}: {then}"));
    match start.as_slice() {
        [0x1f, 0x8b, 8, ..] => packed("gzip", "give it a name that ends with .gz"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => packed("zstd", "give it a name that ends with .zst"),
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, ..] => {
            packed("bzip2", "decompress it, or compress it as .gz or .zst")
        }
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => packed("xz", "decompress it, or compress it as .gz or .zst"),
        [b'P', b'K', 3, 4, ..] => packed("zip", "decompress it, or compress it as .gz or .zst"),
        // With its mark, or by the zeros beside letters of ASCII.
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [1..=0x7f, 0, 1..=0x7f, 0, ..] | [0, 1..=0x7f, 0, 1..=0x7f, ..] => {
            Err("is in UTF-16: convert it to UTF-8, for example with `iconv -f UTF-16 -t UTF-8`".to_owned())
        }
        _ => Ok(start),
    }
}

/// Returns whether nothing but white space is left.
fn is_blank(reader: &mut impl BufRead) -> Result<bool, String> {
    loop {
        let chunk = reader.fill_buf().map_err(|error| format!("cannot be read: {error}"))?;
        if chunk.is_empty() || !chunk.trim_ascii().is_empty() {
            return Ok(chunk.is_empty());
        }
        let len = chunk.len();
        reader.consume(len);
    }
}

impl Block for Lines {
    fn len(&self) -> u64 {
        self.begins.len() as u64 - 1
    }

    fn num_bytes(&self, index: u64) -> u64 {
        self.begins[index as usize + 1] - self.begins[index as usize]
    }

    fn text_bytes(&self, index: u64, key: &str) -> u64 {
        let len = self.num_bytes(index);
        if self.kind == Kind::Plain || len > MAX_RECORD_BYTES {
            return len;
        }
        let bytes = self.blob.scan_at(self.begins[index as usize], len as usize);
        bytes.ok().and_then(|bytes| text_len(&bytes, key)).unwrap_or(len)
    }

    fn num_ids(&self, index: u64, key: &str, few: u64) -> u64 {
        // An id and the mark before it take two bytes at least.
        let most = self.num_bytes(index) / 2;
        if most <= few {
            return most;
        }
        let record = self.read(index).ok();
        let ids = record.as_ref().and_then(|record| record.field(key)?.as_array());
        ids.map_or(0, |ids| ids.len() as u64)
    }

    fn read(&self, index: u64) -> Result<Record, String> {
        let len = self.num_bytes(index);
        if len > MAX_RECORD_BYTES {
            return Err(format!("record has {len} bytes (at most {MAX_RECORD_BYTES} are allowed)"));
        }
        let bytes = self.blob.read_at(self.begins[index as usize], len as usize);
        let text = String::from_utf8(bytes.map_err(|error| format!("cannot be read: {error}"))?);
        let text = text.map_err(|_| NOT_UTF_8.to_owned())?;
        let mut text = text.trim_end_matches(['\r', '\n']);
        if self.kind == Kind::Plain {
            if self.begins[index as usize] == 0 {
                // The mark of the byte order is no part of the first text.
                text = text.strip_prefix('\u{feff}').unwrap_or(text);
            }
            return Ok(Record { body: Body::Text(text.to_owned()), ..Record::default() });
        }
        if self.kind == Kind::Array {
            text = text.trim_end();
            text = text.strip_suffix([',', ']']).unwrap_or(text);
        }
        let text = text.trim_start_matches('\u{feff}');
        let wrong = |error: serde_json::Error| format!("not a sample: {error}{}", wrong_json::advice(text, &error));
        let json = strict::parse(text).map_err(wrong)?;
        Ok(Record { body: Body::Json(json), ..Record::default() })
    }

    fn name(&self, index: u64) -> String {
        let before = self.blanks.partition_point(|(before, _)| *before <= index);
        let num_blank = before.checked_sub(1).map_or(0, |at| self.blanks[at].1);
        match self.kind {
            Kind::Array => format!("element {}", index + 1),
            _ => (index + num_blank + 1).to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value as Json, json};

    use super::*;

    fn blob(bytes: &[u8]) -> Arc<Blob> {
        Arc::new(Blob::Memory(bytes.into()))
    }

    fn values(lines: &Lines) -> Vec<Json> {
        let value = |index| match lines.read(index).unwrap().body {
            Body::Json(json) => json,
            other => panic!("{other:?}"),
        };
        (0..lines.len()).map(value).collect()
    }

    #[test]
    fn what_would_be_lost_is_refused() {
        let error = |bytes: &[u8]| Lines::json(blob(bytes)).err().unwrap_or_default();
        let utf16 = |text: &str, big: bool| -> Vec<u8> {
            text.encode_utf16().flat_map(|unit| if big { unit.to_be_bytes() } else { unit.to_le_bytes() }).collect()
        };
        for text in ["\u{feff}{\"a\": 1}\n", "{\"a\": 1}\n", "[{}]"] {
            for big in [false, true] {
                assert!(error(&utf16(text, big)).contains("UTF-16"), "{text} {big}");
                assert!(Lines::plain(blob(&utf16(text, big))).is_err(), "{text} {big}");
            }
        }
        let packed: [(&[u8], &str); 5] = [
            (b"\x1f\x8b\x08\0", "gzip: give it a name that ends with .gz"),
            (b"\x28\xb5\x2f\xfd\0", "zstd: give it a name that ends with .zst"),
            (b"BZh91AY&SY", "bzip2: decompress it, or compress it as .gz or .zst"),
            (b"\xfd7zXZ\0\0", "xz: decompress it"),
            (b"PK\x03\x04", "zip: decompress it"),
        ];
        for (bytes, what) in packed {
            assert!(error(bytes).contains(what) && Lines::plain(blob(bytes)).is_err(), "{what}");
        }
        assert!(error(b"[{}]\n[{}]").contains("more after the `]`"));
        assert_eq!(error(b"[{}]\n \r\n"), "");
        let lines = Lines::json(blob(b"{\"a\": 1, \"a\": 2}\n")).unwrap();
        assert!(lines.read(0).err().unwrap().contains("duplicate key `a`"));
    }

    #[test]
    fn reads_any_line_and_keeps_line_numbers_over_blank_ones() {
        let lines = Lines::plain(blob("\n{\"a\":1}\r\n\n\r\nzwei\nlast".as_bytes())).unwrap();
        let text = |index| format!("{:?}", lines.read(index).unwrap().body);
        assert_eq!((lines.len(), text(2).as_str(), text(0).as_str()), (3, "Text(\"last\")", "Text(\"{\\\"a\\\":1}\")"));
        assert_eq!([0, 1, 2].map(|index| lines.name(index)), ["2", "5", "6"]);
        let marked = Lines::plain(blob("\u{feff}one\n\u{feff}two".as_bytes())).unwrap();
        let bodies = [0, 1].map(|index| format!("{:?}", marked.read(index).unwrap().body));
        assert_eq!(bodies, ["Text(\"one\")".to_owned(), format!("Text({:?})", "\u{feff}two")]);
        assert_eq!(Lines::json(blob(b"\n\n")).unwrap().len(), 0);
        let lines = Lines::json(blob(b"{}\n\xff\xfe\nx\n")).unwrap();
        assert_eq!(lines.read(1).unwrap_err(), NOT_UTF_8);
        assert!(lines.read(2).unwrap_err().contains("not a sample"));
    }

    #[test]
    fn a_line_of_white_space_is_no_sample_but_may_be_a_text() {
        let text = "{\"a\":1}\n \t \n\r\n  {\"a\":2} \r\n   ";
        let lines = Lines::json(blob(text.as_bytes())).unwrap();
        assert_eq!(values(&lines), [json!({"a": 1}), json!({"a": 2})]);
        assert_eq!([0, 1].map(|index| lines.name(index)), ["1", "4"]);
        assert_eq!(Lines::plain(blob(text.as_bytes())).unwrap().len(), 4);
        // White space longer than what is read at once.
        let text = format!("{{}}\n{}\n{{}}\n{}", " ".repeat(3 << 20), " ".repeat(2 << 20));
        assert_eq!(values(&Lines::json(blob(text.as_bytes())).unwrap()), [json!({}), json!({})]);
    }

    #[test]
    fn elements_of_an_array_are_found_without_parsing() {
        let text = "\u{feff}[\n {\"a\": \"]},\\\"[\"} ,\n[1, [2]], \"x\\\\\", 3\n]\n";
        let lines = Lines::json(blob(text.as_bytes())).unwrap();
        assert_eq!(values(&lines), [json!({"a": "]},\"["}), json!([1, [2]]), json!("x\\"), json!(3)]);
        assert_eq!(lines.name(1), "element 2");
        assert_eq!(Lines::json(blob(b"[ ]")).unwrap().len(), 0);
    }

    #[test]
    fn an_array_that_was_cut_is_refused_wherever_the_cut_is() {
        let whole = "[\n {\"a\": \"x]\"},\n {\"a\": [2]}\n]";
        assert_eq!(Lines::json(blob(whole.as_bytes())).unwrap().len(), 2);
        for end in 1..whole.len() {
            let error = Lines::json(blob(&whole.as_bytes()[..end])).err().unwrap();
            assert!(error.contains("no `]` that closes its array"), "{end}: {error}");
        }
        // Between two elements no record shows that others are missing.
        let error = Lines::json(blob(b"[{\"a\": 1},\n")).err().unwrap();
        assert!(error.contains("which began 1 elements:"), "{error}");
    }

    proptest! {
        #[test]
        fn arrays_read_as_they_are_parsed(texts in prop::collection::vec("[\\[\\]{},\"\\\\ a]{0,6}", 0..6), pretty: bool) {
            let values_in: Vec<Json> = texts.iter().map(|text| json!({"t": text, "l": [text, {"x": text}]})).collect();
            let text = if pretty { serde_json::to_string_pretty(&values_in) } else { serde_json::to_string(&values_in) };
            prop_assert_eq!(values(&Lines::json(blob(text.unwrap().as_bytes())).unwrap()), values_in);
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..80), array: bool) {
            let bytes = if array { [b"[", &bytes[..]].concat() } else { bytes };
            // Some are refused: UTF-16, arrays that are not closed, or more behind one.
            let Ok(lines) = Lines::json(blob(&bytes)) else { return Ok(()) };
            (0..lines.len()).for_each(|index| drop((lines.read(index), lines.name(index))));
        }
    }
}
