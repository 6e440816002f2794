//! The samples of several files one after another, each sample under one number. No shuffling and no weights.

use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use crate::config::{Phase, TrainFile};
use crate::data::error::{BadSample, DataError};
use crate::data::source::{Content, Source};

/// Files, opened.
pub struct Inputs {
    sources: Vec<Source>,
    files: Vec<TrainFile>,
    /// Samples before each file, and all of them.
    before: Vec<u64>,
}

impl Inputs {
    /// Texts are taken whole, however long.
    ///
    /// # Errors
    /// Named by the file: it cannot be read, or holds no samples.
    pub fn open(files: Vec<TrainFile>) -> Result<Self, DataError> {
        if files.is_empty() {
            return Err(DataError::NoSource);
        }
        let open = |file: &TrainFile| Source::open(file, Phase::Pretrain, usize::MAX, str::len);
        let sources: Vec<Source> = files.iter().map(open).collect::<Result<_, _>>()?;
        let mut before = vec![0];
        for source in &sources {
            before.push(before[before.len() - 1] + source.len() as u64);
        }
        Ok(Self { sources, files, before })
    }

    /// Samples in all files.
    pub fn len(&self) -> u64 {
        self.before[self.before.len() - 1]
    }

    /// Always false: empty files are refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Each file and its samples.
    pub fn files(&self) -> impl Iterator<Item = (&TrainFile, u64)> {
        self.files.iter().zip(self.before.windows(2).map(|around| around[1] - around[0]))
    }

    /// Sample `index` of all, and what its files are relative to.
    pub fn read(&self, index: u64) -> Result<(Content, &Path), BadSample> {
        let (source, index) = self.place(index);
        Ok((source.read(index)?, source.base()))
    }

    /// Sample `index`, and why it cannot be used.
    pub fn bad(&self, index: u64, reason: String) -> BadSample {
        let (source, index) = self.place(index);
        source.bad(index, reason)
    }

    fn place(&self, index: u64) -> (&Source, usize) {
        let file = self.before.partition_point(|&before| before <= index) - 1;
        (&self.sources[file], (index - self.before[file]) as usize)
    }

    /// The files as a job notes them: names, sizes and numbers of samples.
    pub fn spec(&self) -> Json {
        let of = |(file, samples): (&TrainFile, u64)| {
            let bytes = std::fs::metadata(&file.path).ok().filter(std::fs::Metadata::is_file).map(|file| file.len());
            json!({ "file": file, "bytes": bytes, "samples": samples })
        };
        self.files().map(of).collect()
    }
}

/// How a file is called in messages.
pub(super) fn path_text(file: &TrainFile) -> String {
    file.path.display().to_string()
}

/// A file with the format that is named, or the one that its name and first bytes tell.
///
/// # Errors
/// No such format; the file cannot be read, or its format cannot be told.
pub fn file(path: &Path, format: Option<&str>, options: &[(String, Json)]) -> Result<TrainFile, DataError> {
    let format = match format {
        Some(format) => format.to_owned(),
        None => guess(path)?.to_owned(),
    };
    let mut value = json!({ "path": path, "format": format });
    for (key, option) in options {
        value[key] = option.clone();
    }
    serde_json::from_value(value).map_err(|error| DataError::file(path, error))
}

fn guess(path: &Path) -> Result<&'static str, DataError> {
    let unknown = |what: &str| DataError::file(path, format!("{what}: name its format with --format"));
    let name = path.to_string_lossy().to_lowercase();
    let extension = PathBuf::from(&name).extension().map(|extension| extension.to_string_lossy().into_owned());
    match extension.as_deref() {
        Some("parquet") => return Ok("parquet"),
        Some("tar") => return Ok("webdataset"),
        Some("txt") => return Ok("plain"),
        _ => {}
    }
    if path.is_dir() {
        return Ok("webdataset");
    }
    let record = first_record(path)?.ok_or_else(|| unknown("begins with no JSON object"))?;
    let has = |key: &str| record.get(key).is_some_and(|value| !value.is_null());
    Ok(match () {
        () if has("conversations") && (has("image") || has("id") && has("video")) => "llava",
        () if has("conversations") => "sharegpt",
        () if has("messages") => "messages",
        () if has("instruction") && has("output") => "alpaca",
        () if has("text") => "text",
        () => {
            let keys: Vec<&str> = record.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
            return Err(unknown(&format!("has records of keys {keys:?}")));
        }
    })
}

/// The first object of JSON lines or of a JSON array.
pub(super) fn first_record(path: &Path) -> Result<Option<Json>, DataError> {
    use std::io::{BufReader, Read};
    const LOOKED_AT: u64 = 16 << 20;
    let file = std::fs::File::open(path).map_err(|error| DataError::read(path, error))?;
    let mut text = String::new();
    let mut reader = BufReader::new(file.take(LOOKED_AT));
    let mut bytes = Vec::new();
    let mut chunk = [0; 1 << 16];
    // As much as the first object takes.
    loop {
        let len = reader.read(&mut chunk).map_err(|error| DataError::read(path, error))?;
        bytes.extend_from_slice(&chunk[..len]);
        text.clear();
        text.push_str(&String::from_utf8_lossy(&bytes));
        let body = text.trim_start_matches(['\u{feff}', '[', ' ', '\n', '\r', '\t']);
        match serde_json::Deserializer::from_str(body).into_iter::<Json>().next() {
            Some(Ok(value)) => return Ok(value.is_object().then_some(value)),
            Some(Err(error)) if error.is_eof() && len > 0 => {}
            None if len > 0 => {}
            _ => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Format;

    fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn files_follow_one_another() {
        let folder = tempfile::tempdir().unwrap();
        let line = |text: &str| format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}\n");
        let one = write(folder.path(), "1.jsonl", &(line("a") + &line("b")));
        let two = write(folder.path(), "2.txt", "c\nd\n");
        let files = [one, two].map(|path| file(&path, None, &[]).unwrap());
        assert_eq!([files[0].format, files[1].format], [Format::Messages, Format::Plain]);
        let inputs = Inputs::open(files.to_vec()).unwrap();
        let texts: Vec<String> = (0..inputs.len())
            .map(|index| match inputs.read(index).unwrap().0 {
                Content::Messages(conversation) => conversation.turns[0].joined_text(),
                Content::Text(piece) => piece.text,
                #[allow(unreachable_patterns)]
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(texts, ["a", "b", "c", "d"]);
        let bad = inputs.bad(3, "why".to_owned());
        assert!(bad.to_string().contains("2.txt:2: why"), "{bad}");
        assert_eq!(inputs.spec()[1]["samples"], 2);
    }

    #[test]
    fn formats_are_told_by_the_first_record() {
        let folder = tempfile::tempdir().unwrap();
        let guess = |name: &str, text: &str| guess(&write(folder.path(), name, text)).map_err(|e| e.to_string());
        assert_eq!(guess("a.jsonl", "{\"messages\": []}\n{"), Ok("messages"));
        assert_eq!(guess("b.json", "\u{feff}[\n {\"conversations\": [], \"id\": 1, \"image\": \"x\"}"), Ok("llava"));
        assert_eq!(guess("c.json", "[{\"conversations\": [], \"images\": []}]"), Ok("sharegpt"));
        assert_eq!(guess("d.jsonl", "{\"instruction\": \"\", \"output\": \"\"}"), Ok("alpaca"));
        assert_eq!(guess("e.jsonl", &format!("{{\"text\": \"{}\"}}", "x".repeat(200_000))), Ok("text"));
        assert_eq!(guess("f.parquet", ""), Ok("parquet"));
        assert!(guess("g.jsonl", "{\"a\": 1}").unwrap_err().contains("\"a\""));
        for text in ["", "[", "hello", "{\"a\": ", "[[{}]]x"] {
            assert!(guess("h.jsonl", text).unwrap_err().contains("--format"), "{text}");
        }
        assert!(file(Path::new("a"), Some("nonsense"), &[]).unwrap_err().to_string().contains("nonsense"));
    }
}
