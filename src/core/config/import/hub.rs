//! Data sets of the hub as other trainers name them, and their paths here.

use std::path::Path;

/// Ends of the names of files that hold samples.
const FILES: [&str; 11] = ["arrow", "csv", "feather", "gz", "json", "jsonl", "parquet", "tar", "tsv", "txt", "zst"];

/// Returns whether `name` is that of a data set of the hub, and not of a file or folder here.
pub(super) fn is_of_hub(name: &str) -> bool {
    let is_file = name.rsplit_once('.').is_some_and(|(_, end)| FILES.contains(&end));
    name.split('/').count() == 2 && !name.starts_with(['.', '/', '~']) && !is_file && !Path::new(name).exists()
}

/// Returns the path of a data set of the hub, and behind it what is meant of it: a configuration, a split, a file.
pub(super) fn path(name: &str, parts: &[Option<&str>]) -> String {
    let parts = parts.iter().flatten().map(|part| format!("/{part}"));
    parts.fold(format!("hf://datasets/{name}"), |path, part| path + &part)
}

/// Returns whether the text is the name of a split, and not an expression such as `train[:10%]`.
pub(super) fn is_split(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c))
}

/// Returns the split and the number of its first samples that an expression such as `train[:1000]` names.
pub(super) fn first_of(text: &str) -> Option<(&str, u64)> {
    let (split, count) = text.strip_suffix(']')?.split_once("[:")?;
    let count = count.parse::<u64>().ok().filter(|count| *count > 0)?;
    is_split(split).then_some((split, count))
}
