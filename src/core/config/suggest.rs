//! "Did you mean": the nearest name by edit distance (insert, delete, replace, swap of neighbors).

use std::path::{Path, PathBuf};

use strsim::osa_distance;

/// Returns the candidate nearest to `name`, if it is close enough.
pub(super) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = fold(name);
    let limit = (wanted.chars().count() / 3).max(1);
    let scored = candidates.into_iter().map(|candidate| (osa_distance(&wanted, &fold(candidate)), candidate));
    scored.filter(|(distance, _)| *distance <= limit).min().map(|(_, candidate)| candidate)
}

/// Returns the only candidate that begins with the words of `name` and has more words, as `every_steps` for `every`.
pub(super) fn begun<'a>(name: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let begins = |candidate: &&&str| candidate.strip_prefix(name).is_some_and(|rest| rest.starts_with('_'));
    let mut found = candidates.iter().filter(begins);
    let only = found.next().filter(|_| !name.is_empty() && found.next().is_none());
    only.copied()
}

/// Returns the only candidate that ends with the words of `name` and has more words, as `max_samples` for `samples`.
pub(super) fn ended<'a>(name: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let ends = |candidate: &&&str| candidate.strip_suffix(name).is_some_and(|rest| rest.ends_with('_'));
    let mut found = candidates.iter().filter(ends);
    let only = found.next().filter(|_| !name.is_empty() && found.next().is_none());
    only.copied()
}

/// Returns a hint about a path that does not exist: a sibling with a similar name, or which part of the path exists.
pub(super) fn path(missing: &Path) -> Option<String> {
    if missing.starts_with("~") {
        return Some("`~` is not expanded: write the whole path, or `${oc.env:HOME}/...`".to_owned());
    }
    let parent = missing.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = parent.unwrap_or(Path::new("."));
    if !folder.is_dir() {
        let existing = folder.ancestors().skip(1).find(|p| !p.as_os_str().is_empty() && p.is_dir());
        return Some(match existing {
            Some(existing) => format!("`{}` exists, `{}` does not", existing.display(), folder.display()),
            None => {
                let here = std::env::current_dir().map_or_else(|_| ".".to_owned(), |dir| dir.display().to_string());
                format!("there is no directory `{}`; paths start at `{here}`", folder.display())
            }
        });
    }
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .ok()?
        .flatten()
        .take(1000)
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    let near = nearest(missing.file_name()?.to_str()?, names.iter().map(String::as_str))?;
    Some(format!("did you mean `{}`?", missing.with_file_name(near).display()))
}

/// Folders within a folder that are named at most.
const MOST_FOLDERS: usize = 4;

/// Returns a hint about a folder that contains folders for which `is_wanted` holds and which are not searched: their names. kohya's
/// scripts call them `REPEATS_NAME`.
pub(crate) fn folders_within(path: &Path, is_wanted: impl Fn(&Path) -> bool) -> Option<String> {
    let folders: Vec<PathBuf> = folders_in(path).into_iter().filter(|folder| is_wanted(folder)).collect();
    let named: Vec<String> = folders.iter().take(MOST_FOLDERS).map(|folder| folder.display().to_string()).collect();
    let more = if folders.len() > MOST_FOLDERS { ", …" } else { "" };
    let has_repeats = |folder: &PathBuf| {
        let name = folder.file_name().and_then(|name| name.to_str());
        name.and_then(|name| name.split_once('_')).is_some_and(|(number, _)| number.parse::<u32>().is_ok())
    };
    let repeats = match folders.iter().any(has_repeats) {
        true => {
            "; repeats in front of a folder's name, as in kohya's scripts, are not read: set data.train[].weight instead"
        }
        false => "",
    };
    (!folders.is_empty())
        .then(|| format!("subfolders are not searched; name them: path: [{}{more}]{repeats}", named.join(", ")))
}

/// Returns the folders in a folder that are not hidden, by name.
pub(crate) fn folders_in(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let is_shown = |entry: &std::fs::DirEntry| !entry.file_name().to_string_lossy().starts_with('.');
    let folders = entries.filter(is_shown).map(|entry| entry.path()).filter(|path| path.is_dir());
    let mut folders: Vec<PathBuf> = folders.collect();
    folders.sort();
    folders
}

/// Removes differences in case and separators, the most common mistakes.
fn fold(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::{begun, ended, nearest};

    #[test]
    fn finds_what_was_meant_and_nothing_else() {
        let keys = ["steps", "global_batch_size", "micro_batch_size", "lr", "min_lr", "schedule"];
        assert_eq!(nearest("micro_batchsize", keys), Some("micro_batch_size"));
        assert_eq!(nearest("Global-Batch-Size", keys), Some("global_batch_size"));
        assert_eq!(nearest("setps", keys), Some("steps"));
        assert_eq!(nearest("l", keys), Some("lr"));
        assert_eq!(nearest("tensor_parallel", keys), None);
        assert_eq!(nearest("", keys), None);
    }

    #[test]
    fn the_first_words_of_a_key_are_enough_where_they_are_of_one() {
        let keys = ["every_steps", "keep_last", "upload", "upload_keep_last", "max_failures", "max_steps"];
        assert_eq!(
            ["every", "keep", "upload"].map(|name| begun(name, &keys)),
            [Some("every_steps"), Some("keep_last"), Some("upload_keep_last")]
        );
        assert_eq!(["max", "ever", "steps", ""].map(|name| begun(name, &keys)), [None; 4]);
        assert_eq!(["failures", "last"].map(|name| ended(name, &keys)), [Some("max_failures"), None]);
        assert_eq!(
            ["steps", "ailures", "keep_last", ""].map(|name| ended(name, &keys)),
            [None, None, Some("upload_keep_last"), None]
        );
    }
}
