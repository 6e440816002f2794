//! The samples of several files one after another, each sample under one number. No shuffling and no weights.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value as Json, json};

use crate::config::{Phase, TrainFile};
use crate::data::decoder::MediaDecoder;
use crate::data::error::{BadSample, DataError};
use crate::data::in_process::InProcess;
use crate::data::source::{Content, Source};

/// Files, opened.
pub struct Inputs {
    sources: Vec<Source>,
    files: Vec<TrainFile>,
    /// Samples before each file, and all of them.
    before: Vec<u64>,
    decoder: Arc<dyn MediaDecoder>,
}

impl Inputs {
    /// Texts are taken whole, however long.
    ///
    /// # Errors
    /// Named by the file: it cannot be read, or holds no samples.
    pub fn open(files: Vec<TrainFile>) -> Result<Self, DataError> {
        Self::open_cut(files, usize::MAX, &str::len)
    }

    /// Works like [`Inputs::open`] with texts as a run has them: cut into samples of at most `max_tokens` tokens, which `num_tokens`
    /// counts.
    ///
    /// # Errors
    /// Fails as [`Inputs::open`] does.
    pub fn open_cut(
        files: Vec<TrainFile>,
        max_tokens: usize,
        num_tokens: &dyn Fn(&str) -> usize,
    ) -> Result<Self, DataError> {
        if files.is_empty() {
            return Err(DataError::NoSource);
        }
        let open = |file: &TrainFile| Source::open(file, Phase::Pretrain, max_tokens, num_tokens);
        let sources: Vec<Source> = files.iter().map(open).collect::<Result<_, _>>()?;
        let mut before = vec![0];
        for source in &sources {
            before.push(before[before.len() - 1] + source.len() as u64);
        }
        Ok(Self { sources, files, before, decoder: Arc::new(InProcess) })
    }

    /// Lets `decoder` decode pictures and videos; else this process does.
    pub fn with_decoder(self, decoder: Arc<dyn MediaDecoder>) -> Self {
        Self { decoder, ..self }
    }

    /// Gives conversations that have no system message, of sets that state none, that of `systems` for their file, as `data.system` does
    /// in a run.
    pub fn with_systems(mut self, systems: &[Option<String>]) -> Self {
        for (source, system) in self.sources.iter_mut().zip(systems) {
            system.iter().for_each(|text| source.default_system(text));
        }
        self
    }

    pub(super) fn decoder(&self) -> &dyn MediaDecoder {
        &*self.decoder
    }

    /// Returns the number of samples in all files.
    pub fn len(&self) -> u64 {
        self.before[self.before.len() - 1]
    }

    /// Returns how many of what `data.val_size` sets aside there are: samples, or of LeRobot sets whole episodes.
    pub fn num_splittable(&self) -> u64 {
        let of = |source: &Source| source.episode_lens().map_or(source.len(), |episodes| episodes.len()) as u64;
        self.sources.iter().map(of).sum()
    }

    /// Always returns false: empty files are refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns each file and its samples.
    pub fn files(&self) -> impl Iterator<Item = (&TrainFile, u64)> {
        self.files.iter().zip(self.before.windows(2).map(|around| around[1] - around[0]))
    }

    /// Reads sample `index` of all, and what its files are relative to.
    ///
    /// # Errors
    /// It cannot be read, or is damaged: it is named by its place.
    pub fn read(&self, index: u64) -> Result<(Content, &Path), BadSample> {
        let (source, index) = self.place(index);
        Ok((source.read(index)?, source.base()))
    }

    /// Creates the error of sample `index`, which cannot be used for this `reason`.
    pub fn bad(&self, index: u64, reason: String) -> BadSample {
        let (source, index) = self.place(index);
        source.bad(index, reason)
    }

    /// Creates the error of sample `index`, which is skipped because of `error`.
    pub fn refused(&self, index: u64, error: &DataError) -> BadSample {
        let (source, index) = self.place(index);
        source.refused(index, error)
    }

    /// Returns a sentence about each folder that has files which are not read, and about each set whose records are read as lines.
    pub fn left_out(&self) -> Vec<String> {
        Source::left_out(&self.sources)
    }

    fn place(&self, index: u64) -> (&Source, usize) {
        let file = self.before.partition_point(|&before| before <= index) - 1;
        (&self.sources[file], (index - self.before[file]) as usize)
    }

    /// Returns the format of the samples of each file.
    pub fn formats(&self) -> impl Iterator<Item = &'static str> {
        self.sources.iter().map(Source::format)
    }

    /// Returns the files as a job notes them: names, sizes, times of change and numbers of samples.
    pub fn spec(&self) -> Json {
        let of = |((file, samples), source): ((&TrainFile, u64), &Source)| {
            let shards: Vec<(&str, u64, &str)> = source.stamps().collect();
            json!({ "file": file, "shards": shards, "samples": samples })
        };
        self.files().zip(&self.sources).map(of).collect()
    }
}

/// Returns how a data set is called in messages.
pub(super) fn path_text(file: &TrainFile) -> String {
    file.name().display().to_string()
}

/// Returns the first object of JSON lines or of a JSON array.
pub(super) fn first_record(path: &Path) -> Result<Option<Json>, DataError> {
    use std::io::{BufReader, Read};
    const LOOKED_AT: u64 = 16 << 20;
    let file = crate::files::open(path).map_err(|error| DataError::read(path, error))?;
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
    use std::path::PathBuf;

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
        let plain = TrainFile { format: Format::Plain, ..TrainFile::new(two) };
        let files = vec![TrainFile::new(one), plain];
        let inputs = Inputs::open(files).unwrap();
        let texts: Vec<String> = (0..inputs.len())
            .map(|index| match inputs.read(index).unwrap().0 {
                Content::Messages(conversation) => conversation.turns[0].joined_text(),
                Content::Text(piece) => piece.text,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(texts, ["a", "b", "c", "d"]);
        let bad = inputs.bad(3, "why".to_owned()).to_string();
        assert!(bad.contains("2.txt") && bad.contains("why"), "{bad}");
        let spec = inputs.spec();
        assert_eq!((&spec[1]["samples"], &spec[1]["shards"][0][1]), (&2.into(), &4.into()));
        let turns = |inputs: &Inputs| match inputs.read(0).unwrap().0 {
            Content::Messages(conversation) => conversation.turns.len(),
            other => panic!("{other:?}"),
        };
        let systems = [Some("Be brief.".to_owned()), None];
        assert_eq!((turns(&inputs), turns(&inputs.with_systems(&systems))), (1, 2));
    }

    #[test]
    fn the_first_record_is_found_in_lines_and_arrays() {
        let folder = tempfile::tempdir().unwrap();
        let first = |text: &str| first_record(&write(folder.path(), "a", text)).unwrap();
        assert_eq!(first("{\"a\": 1}\n{"), Some(json!({"a": 1})));
        assert_eq!(first("\u{feff}[\n {\"a\": 1}, x"), Some(json!({"a": 1})));
        let long = "x".repeat(200_000);
        assert_eq!(first(&format!("[{{\"a\": {long:?}}}]")), Some(json!({"a": long})));
        for text in ["", "[", "hello", "{\"a\": ", "[[1]]x"] {
            assert_eq!(first(text), None, "{text}");
        }
    }
}
