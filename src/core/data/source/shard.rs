//! One file or object: what it is known by, and what it holds.

/// A file or an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Path or URL.
    pub name: String,
    pub size: u64,
    /// A tag that changes with the contents: the time of change, or the store's ETag.
    pub tag: String,
}

/// Says what holds the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// One JSON object a line, or an array of them.
    Json,
    /// A text a line.
    Plain,
    /// Rows of cells that are separated by this byte.
    Sheet(u8),
    Tar,
    Parquet,
    /// Record batches, in a file or a stream.
    Arrow,
    /// Tokens with an index, which this is.
    Indexed,
    /// A folder of pictures and clips.
    Folder,
}

impl Shard {
    /// Returns the container of the samples, by the name of the file.
    pub fn container(&self) -> Container {
        let name = self.uncompressed_name();
        match () {
            () if name.ends_with('/') => Container::Folder,
            () if name.ends_with(".tar") || name.ends_with(".tgz") => Container::Tar,
            () if name.ends_with(".parquet") => Container::Parquet,
            () if name.ends_with(".arrow") || name.ends_with(".feather") => Container::Arrow,
            () if name.ends_with(".idx") => Container::Indexed,
            () if name.ends_with(".csv") => Container::Sheet(b','),
            () if name.ends_with(".tsv") => Container::Sheet(b'\t'),
            () if name.ends_with(".txt") || name.ends_with(".text") => Container::Plain,
            () => Container::Json,
        }
    }

    /// Returns whether its name is that of a file of records. [`Container::Json`] is also any text whose name says nothing.
    pub fn is_named_as_records(&self) -> bool {
        let name = self.uncompressed_name();
        [".json", ".jsonl", ".ndjson", ".csv", ".tsv"].iter().any(|ending| name.ends_with(ending))
    }

    /// Returns its name in lower case without the ending of a compressed file.
    fn uncompressed_name(&self) -> String {
        self.name.to_ascii_lowercase().trim_end_matches(".gz").trim_end_matches(".zst").to_owned()
    }

    /// Returns the folder that files in its records are relative to; with a slash at the end, or empty.
    pub fn folder(&self) -> &str {
        &self.name[..self.name.rfind('/').map_or(0, |slash| slash + 1)]
    }
}
