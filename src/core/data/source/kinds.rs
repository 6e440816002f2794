//! Kinds of data files, by their names.

/// Extensions of data files, before that of a compression. In a folder the first kind that is there is taken: shards often
/// have notes in JSON beside them.
pub const KINDS: [&[&str]; 7] = [
    &["tar", "tgz"],
    &["parquet"],
    &["arrow", "feather"],
    &["idx"],
    &["jsonl", "ndjson", "json"],
    &["csv", "tsv"],
    &["txt", "text"],
];

/// Returns which of [`KINDS`] a file is.
pub fn kind(name: &str) -> Option<usize> {
    let lower = name.to_ascii_lowercase();
    let name = lower.trim_end_matches(".gz").trim_end_matches(".zst");
    let file_name = name.rsplit('/').next().unwrap_or(name);
    let is = |extension: &&str| file_name.ends_with(&format!(".{extension}"));
    KINDS.iter().position(|kinds| !file_name.starts_with('.') && kinds.iter().any(&is))
}
