//! The records of a file of prompts, whatever its container.

use loongforge_core::data::parse_strictly;
use loongforge_core::files;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::Path;
use std::vec::IntoIter;

/// A longer line is a bad one.
const MAX_LINE: u64 = 64 << 20;
const BYTE_ORDER_MARK: &str = "\u{feff}";
/// Ends of the names of data files that have no prompts in lines.
const OTHERS: [&str; 8] = ["csv", "tsv", "parquet", "arrow", "tar", "gz", "zst", "xlsx"];

/// A file of prompts, read one after another.
pub struct Prompts {
    container: Container,
    /// Lines, or records of a list, so far.
    number: u64,
}

enum Container {
    /// A record in each line, or a text.
    Lines { lines: BufReader<File>, are_texts: bool },
    /// The rest of a list of records, those that have not been read.
    List(IntoIter<Value>),
}

impl Prompts {
    /// Opens a file: one that ends with `.txt` has a text in each line, one that ends with `.json` may have a list of records, and any
    /// other has a record in each line.
    ///
    /// # Errors
    /// The file cannot be read, is one of another kind, or its list is none.
    pub fn open(path: &Path) -> io::Result<Self> {
        let ends_with = |extension: &str| path.extension().is_some_and(|it| it.eq_ignore_ascii_case(extension));
        let mut lines = BufReader::new(files::open(path)?);
        if let Some(other) = OTHERS.iter().find(|other| ends_with(other)) {
            let reason = format!(
                "prompts are read from lines of JSON (.jsonl), a JSON list (.json) or a text per line (.txt), and not from \
                 .{other}: write its prompts as one of these"
            );
            return Err(io::Error::new(ErrorKind::InvalidInput, reason));
        }
        let container = match ends_with("json") && begins_list(lines.fill_buf()?) {
            true => Container::List(list(&files::read_text(path)?)?.into_iter()),
            false => Container::Lines { lines, are_texts: ends_with("txt") },
        };
        Ok(Self { container, number: 0 })
    }

    /// The next prompt, or why it is none, and its number, counted from 1; blank lines are passed over.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn next_prompt(&mut self) -> io::Result<Option<(u64, Result<Value, String>)>> {
        loop {
            self.number += 1;
            let prompt = match &mut self.container {
                Container::List(list) => list.next().map(Ok),
                Container::Lines { lines, are_texts } => match next_line(lines)? {
                    Some(line) if line.iter().all(u8::is_ascii_whitespace) => continue,
                    line => line.map(|line| record(&line, *are_texts)),
                },
            };
            return Ok(prompt.map(|prompt| (self.number, prompt)));
        }
    }
}

/// Returns whether a file that begins so is a list.
fn begins_list(bytes: &[u8]) -> bool {
    let text = bytes.strip_prefix(BYTE_ORDER_MARK.as_bytes()).unwrap_or(bytes);
    text.trim_ascii_start().starts_with(b"[")
}

fn list(text: &str) -> io::Result<Vec<Value>> {
    let reason = match parse_strictly(text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)) {
        Ok(Value::Array(list)) => return Ok(list),
        Ok(_) => "it is another JSON value".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(io::Error::new(ErrorKind::InvalidData, format!("not a list of prompts: {reason}")))
}

/// The next line, of which at most a byte more than [`MAX_LINE`] is kept; the rest of a longer one is passed over.
fn next_line(lines: &mut BufReader<File>) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    if lines.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') {
        lines.skip_until(b'\n')?;
    }
    Ok(Some(line))
}

/// The record of a line; a text is a `prompt`.
fn record(line: &[u8], is_text: bool) -> Result<Value, String> {
    if line.len() as u64 > MAX_LINE {
        return Err(format!("the line has more than {MAX_LINE} bytes"));
    }
    let line = line.strip_prefix(BYTE_ORDER_MARK.as_bytes()).unwrap_or(line);
    let line = std::str::from_utf8(line).map_err(|error| format!("not a sample: {error}"))?;
    match is_text {
        true => Ok(json!({"prompt": line.trim_end_matches(['\r', '\n'])})),
        false => parse_strictly(line).map_err(|error| format!("not a sample: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_lines_of_json_plain_texts_or_a_list() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            let mut prompts = Prompts::open(&path).map_err(|error| error.to_string())?;
            let mut found = Vec::new();
            while let Some((number, prompt)) = prompts.next_prompt().unwrap() {
                found.push((number, prompt.ok()));
            }
            Ok::<_, String>(found)
        };
        let [a, b] = ["a", "b"].map(|text| Some(json!({"prompt": text})));
        let lines = "\u{feff}{\"prompt\": \"a\"}\n\n{\n{\"prompt\": \"b\"}";
        for name in ["a.jsonl", "a.json", "a"] {
            assert_eq!(read(name, lines).unwrap(), [(1, a.clone()), (3, None), (4, b.clone())], "{name}");
        }
        assert_eq!(read("a.txt", "\u{feff}a\r\n \nb\n").unwrap(), [(1, a.clone()), (3, b.clone())]);
        assert_eq!(read("a.TXT", "{ \"a\"").unwrap(), [(1, Some(json!({"prompt": "{ \"a\""})))]);
        let list = "\u{feff}\n [{\"prompt\": \"a\"},\n {\"prompt\": \"b\"}]\n";
        assert_eq!(read("a.json", list).unwrap(), [(1, a), (2, b)]);
        assert!(read("a.json", "[]").unwrap().is_empty());
        let error = read("a.json", "[{\"prompt\": \"a\"}").unwrap_err();
        assert!(error.starts_with("not a list of prompts: EOF"), "{error}");
    }

    #[test]
    fn a_table_is_not_read_as_lines_of_json() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["p.csv", "p.PARQUET", "p.jsonl.gz"] {
            let path = folder.path().join(name);
            std::fs::write(&path, "prompt\nhi\n").unwrap();
            let error = Prompts::open(&path).err().unwrap().to_string();
            assert!(error.contains("lines of JSON (.jsonl), a JSON list (.json)"), "{name}: {error}");
        }
    }
}
