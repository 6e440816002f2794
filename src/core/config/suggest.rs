//! "Did you mean": the nearest name by edits (insert, delete, replace, swap of neighbors).

use std::path::Path;

use strsim::osa_distance;

/// The candidate nearest to `name`, if one is near enough to be what was meant.
pub(super) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = fold(name);
    let limit = (wanted.chars().count() / 3).max(1);
    let scored = candidates.into_iter().map(|candidate| (osa_distance(&wanted, &fold(candidate)), candidate));
    scored.filter(|(distance, _)| *distance <= limit).min().map(|(_, candidate)| candidate)
}

/// Returns what to say about a path that does not exist: a neighbor of a like name, or how much of it there is.
pub(super) fn path(missing: &Path) -> Option<String> {
    if missing.starts_with("~") {
        return Some("`~` is not a home here: write the whole path, or `${oc.env:HOME}/...`".to_owned());
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

/// Case and separators are what people get wrong most; they count for nothing.
fn fold(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::nearest;

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
}
