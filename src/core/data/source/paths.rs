//! The files that a path in a config stands for: a file, the files of a folder, a glob, `{000..099}`, a URL.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use globset::GlobBuilder;

use super::folder;
use super::foreign;
use super::hub::HubPath;
use super::hub_commit::hub_cache;
use super::indexed;
use super::kinds::{KINDS, kind};
use super::parallel::in_parallel;
use super::saved;
use super::shard::Shard;
use crate::config::{Format, Paths, folders_in, folders_within};
use crate::data::error::DataError;
use crate::data::locator::is_remote;

/// Names that braces may make.
const MAX_NAMES: usize = 1_000_000;

/// Returns the files, in order: as listed, those of a folder or glob by name.
///
/// # Errors
/// Named by the path: nothing there, nothing matches, or it cannot be listed.
pub fn expand(paths: &Paths, format: Format) -> Result<Vec<Shard>, DataError> {
    let mut shards = Vec::new();
    for path in &paths.0 {
        let fail = |reason: String| DataError::file(Path::new(path), reason);
        if let Some(hub) = HubPath::parse(path).map_err(fail)? {
            let found = hub.find(&hub_cache()).map_err(fail)?;
            let stat = |file: &PathBuf| Shard::stat(&file.to_string_lossy());
            shards.extend(found.iter().map(stat).collect::<Result<Vec<_>, _>>()?);
            continue;
        }
        if !is_remote(path) && Path::new(path).exists() {
            shards.extend(existing(Path::new(path), format)?);
            continue;
        }
        let patterns = braces(path).map_err(|reason| DataError::file(Path::new(path), reason))?;
        if patterns.iter().all(|pattern| is_remote(pattern) && !has_glob(pattern) && !pattern.ends_with('/')) {
            // Each is a question over the network.
            let found = in_parallel(&patterns, "checking shards", |pattern| Shard::stat(pattern));
            shards.extend(found.into_iter().collect::<Result<Vec<_>, _>>()?);
            continue;
        }
        for pattern in patterns {
            if is_remote(&pattern) {
                shards.extend(remote(&pattern)?);
            } else if has_glob(&pattern) {
                shards.extend(glob(&pattern)?);
            } else {
                shards.extend(existing(Path::new(&pattern), format)?);
            }
        }
    }
    match shards.is_empty() {
        true => Err(DataError::NoSource),
        false => Ok(shards),
    }
}

/// Returns a file, or the data files of a folder.
fn existing(path: &Path, format: Format) -> Result<Vec<Shard>, DataError> {
    if let Some(reason) = foreign::file(path) {
        return Err(DataError::file(path, reason));
    }
    if let Some(index) = indexed::index_of(path) {
        return Ok(vec![Shard::stat(&index)?]);
    }
    if !path.is_dir() {
        return Ok(vec![Shard::stat(&path.to_string_lossy())?]);
    }
    if let Some(shards) = saved::shards(path)? {
        return Ok(shards);
    }
    let [read, _] = of_folder(path)?;
    // With transcripts beside its recordings it is read, whatever else it has.
    if let Some(reason) = foreign::folder(path).filter(|_| read.is_empty()) {
        return Err(DataError::file(path, reason));
    }
    if read.iter().all(|file| is_caption(file)) {
        let samples = folder::shard(path, format).map_err(|reason| DataError::file(path, reason))?;
        if let Some(samples) = samples {
            return Ok(vec![samples]);
        }
    }
    match read.is_empty() {
        true => {
            let hint = folder::with_samples(path, &|_| false).map(|hint| format!("; {hint}")).unwrap_or_default();
            let samples = match format {
                Format::Captioned => "pictures, clips and ",
                Format::Transcripts => "recordings and ",
                _ => "",
            };
            let kinds = KINDS.concat().join(", ");
            Err(DataError::file(path, format!("is a folder without {samples}data files ({kinds}){hint}")))
        }
        false => sorted(read),
    }
}

/// Returns whether a data file may be the caption of a picture, or the transcript of a recording, beside it.
fn is_caption(path: &Path) -> bool {
    kind(&path.to_string_lossy()).is_some_and(|kind| KINDS[kind].contains(&"txt"))
}

/// Returns the data files of a folder: those of the first kind, which are read, and those of other kinds, which are left out.
fn of_folder(path: &Path) -> Result<[Vec<PathBuf>; 2], DataError> {
    let read = |error| DataError::read(path, error);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(read)? {
        let path = entry.map_err(read)?.path();
        // A link that leads nowhere is a file that cannot be read, and said to be one.
        if let Some(kind) = kind(&path.to_string_lossy()).filter(|_| !path.is_dir()) {
            names.push((kind, path));
        }
    }
    let first = names.iter().map(|(kind, _)| *kind).min();
    let (read, others): (Vec<_>, Vec<_>) = names.into_iter().partition(|(kind, _)| Some(*kind) == first);
    Ok([read, others].map(|files| files.into_iter().map(|(_, path)| path).collect()))
}

/// Returns sentences about the files of a folder that are not read in this format, because it has others. `is_read`: the folders that
/// are named as data, too.
pub fn left_out(path: &str, format: Format, is_read: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let folder = Path::new(path);
    let is_local = !is_remote(path) && folder.is_dir();
    let read = of_folder(folder).ok().filter(|_| is_local).map(|[read, _]| read);
    let is_captions = read.is_some_and(|read| read.iter().all(|file| is_caption(file)));
    match is_captions && folder::shard(folder, format).is_ok_and(|shard| shard.is_some()) {
        true => folder::left_out(folder, format, is_read),
        false => other_kinds(path).into_iter().chain(deeper(path, is_read)).collect(),
    }
}

/// The depth to which folders within a folder are searched.
const DEEP: usize = 3;

/// Returns a sentence about the folders in a folder that have files like those that are read, and are not read themselves.
fn deeper(path: &str, is_read: &dyn Fn(&Path) -> bool) -> Option<String> {
    let folder = Path::new(path);
    let first = |folder: &Path| of_folder(folder).ok()?[0].first().and_then(|file| kind(&file.to_string_lossy()));
    let read = first(folder).filter(|_| !is_remote(path) && folder.is_dir())?;
    let is_like = |folder: &Path| !is_read(folder) && first(folder) == Some(read);
    // A folder that is read tells of its own.
    let is_told = |inner: &Path| !is_read(inner) && any_within(inner, &is_like, DEEP);
    folders_within(folder, is_told).map(|told| format!("{path}: {told}"))
}

/// Returns whether a folder, or one in it, is meant.
fn any_within(folder: &Path, is_meant: &dyn Fn(&Path) -> bool, depth: usize) -> bool {
    is_meant(folder) || (depth > 1 && folders_in(folder).iter().any(|inner| any_within(inner, is_meant, depth - 1)))
}

/// Returns a sentence about the data files of a folder that are not read; `None` where there are none.
fn other_kinds(path: &str) -> Option<String> {
    let folder = Path::new(path);
    let [read, mut others] = of_folder(folder).ok().filter(|_| !is_remote(path) && folder.is_dir())?;
    others.retain(|file| !saved::describes(folder, file));
    others.sort();
    let first = others.first()?.file_name()?.to_string_lossy().into_owned();
    let more = if others.len() > 1 { format!(" and {} more", others.len() - 1) } else { String::new() };
    let like = read.first()?.file_name()?.to_string_lossy().into_owned();
    Some(format!(
        "{path} has data files of several kinds: those like {like} are read, {first}{more} left out; name the files to \
         read others"
    ))
}

fn glob(pattern: &str) -> Result<Vec<Shard>, DataError> {
    let fail = |reason: String| DataError::file(Path::new(pattern), reason);
    let glob = GlobBuilder::new(pattern).literal_separator(true).build().map_err(|error| fail(error.to_string()))?;
    let matcher = glob.compile_matcher();
    // Only folders that can hold a match are looked into.
    let fixed: PathBuf =
        Path::new(pattern).components().take_while(|part| !has_glob(&part.as_os_str().to_string_lossy())).collect();
    let depth = Path::new(pattern).components().count() - fixed.components().count();
    let is_deep = pattern.contains("**");
    let depth = if is_deep { 64 } else { depth };
    let shows_hidden =
        Path::new(pattern).strip_prefix(&fixed).is_ok_and(|rest| format!("/{}", rest.display()).contains("/."));
    let mut names = Vec::new();
    let mut folders = vec![(fixed, 1)];
    while let Some((folder, level)) = folders.pop() {
        let listed = if folder.as_os_str().is_empty() { Path::new(".") } else { &folder };
        let entries = std::fs::read_dir(listed).map_err(|error| match error.kind() {
            ErrorKind::NotFound if level == 1 => {
                fail(format!("no file matches: there is no folder {}", listed.display()))
            }
            _ => DataError::read(listed, error),
        });
        for entry in entries? {
            let entry = entry.map_err(|error| DataError::read(listed, error))?;
            // As a shell does.
            if entry.file_name().to_string_lossy().starts_with('.') && !shows_hidden {
                continue;
            }
            let path = folder.join(entry.file_name());
            // A link to a folder is one, as for a shell; below `**` it is not followed, since it may lead back.
            let is_dir =
                entry.file_type().is_ok_and(|kind| kind.is_dir() || (!is_deep && kind.is_symlink() && path.is_dir()));
            if is_dir && level < depth {
                folders.push((path, level + 1));
            } else if !is_dir && matcher.is_match(&path) {
                names.push(path);
            }
        }
    }
    if names.is_empty() {
        return Err(fail("no file matches".to_owned()));
    }
    sorted(names)
}

fn sorted(mut names: Vec<PathBuf>) -> Result<Vec<Shard>, DataError> {
    names.sort();
    names.iter().map(|name| Shard::stat(&name.to_string_lossy())).collect()
}

#[cfg(feature = "cloud")]
fn remote(url: &str) -> Result<Vec<Shard>, DataError> {
    let fail = |reason: String| DataError::file(Path::new(url), reason);
    let fixed = &url[..url.find(['*', '?', '[']).unwrap_or(url.len())];
    let folder = &fixed[..=fixed.rfind('/').unwrap_or(0)];
    let glob = GlobBuilder::new(&url[folder.len()..]).literal_separator(true).build();
    let matcher = glob.map_err(|error| fail(error.to_string()))?.compile_matcher();
    let mut shards = super::remote::list(folder).map_err(fail)?;
    let inner = |shard: &Shard| shard.name.strip_prefix(folder).unwrap_or("/").to_owned();
    if url.ends_with('/') {
        shards.retain(|shard| !inner(shard).contains('/') && kind(&shard.name).is_some());
        let first = shards.iter().map(|shard| kind(&shard.name)).min();
        shards.retain(|shard| Some(kind(&shard.name)) == first);
    } else {
        shards.retain(|shard| matcher.is_match(inner(shard)));
    }
    shards.sort_by(|a, b| a.name.cmp(&b.name));
    match shards.is_empty() {
        true => Err(fail("no object matches".to_owned())),
        false => Ok(shards),
    }
}

#[cfg(not(feature = "cloud"))]
fn remote(url: &str) -> Result<Vec<Shard>, DataError> {
    Ok(vec![Shard::stat(url)?])
}

fn has_glob(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Expands `a-{00..02}.tar` and `{a,b}.tar`, as a shell does.
///
/// # Errors
/// The reason: a range cannot be read, or there would be too many names.
pub fn braces(text: &str) -> Result<Vec<String>, String> {
    let group = text.find('{').and_then(|open| Some((open, open + matching(&text[open..])?)));
    let Some((open, close)) = group else { return Ok(vec![text.to_owned()]) };
    let (before, inside, after) = (&text[..open], &text[open + 1..close], &text[close + 1..]);
    let choices = match inside.split_once("..") {
        Some((from, to)) if !inside.contains(',') => {
            range(from, to).ok_or_else(|| format!("{{{inside}}} is not a range"))?
        }
        _ => alternatives(inside).into_iter().map(braces).collect::<Result<Vec<_>, _>>()?.concat(),
    };
    let ends = braces(after)?;
    if choices.len().saturating_mul(ends.len()) > MAX_NAMES {
        return Err(format!("expands to more than {MAX_NAMES} names"));
    }
    Ok(choices.iter().flat_map(|choice| ends.iter().map(move |end| format!("{before}{choice}{end}"))).collect())
}

/// Returns where the brace that opens `text` is closed.
fn matching(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    text.char_indices().find_map(|(at, letter)| {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(at)
    })
}

fn alternatives(text: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut depth) = (Vec::new(), 0, 0i32);
    for (at, letter) in text.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    parts
}

/// Returns the numbers from one to another, as wide as the longer is written where one begins with a zero that is not all of it.
fn range(from: &str, to: &str) -> Option<Vec<String>> {
    let (first, last): (u64, u64) = (from.parse().ok()?, to.parse().ok()?);
    let is_padded = |number: &str| number.len() > 1 && number.starts_with('0');
    let width = if is_padded(from) || is_padded(to) { from.len().max(to.len()) } else { 0 };
    (first <= last && last - first < MAX_NAMES as u64)
        .then(|| (first..=last).map(|number| format!("{number:0width$}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_are_written_out() {
        let names = |text: &str| braces(text).unwrap().join(" ");
        assert_eq!(names("s-{08..11}.tar"), "s-08.tar s-09.tar s-10.tar s-11.tar");
        // The number 0 alone says nothing of a width.
        assert_eq!((names("{0..10}"), names("{00..1}")), ("0 1 2 3 4 5 6 7 8 9 10".to_owned(), "00 01".to_owned()));
        assert_eq!(names("{a,b{1..2}}-{0..1}"), "a-0 a-1 b1-0 b1-1 b2-0 b2-1");
        assert_eq!(names("plain{"), "plain{");
        assert!(braces("{5..1}").unwrap_err().contains("{5..1}") && braces("{a..b}").is_err());
        assert!(braces("{0..99999}{0..99999}").unwrap_err().contains("more than"));
    }

    #[test]
    fn links_are_what_they_lead_to_and_deeper_files_are_said() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        for name in ["set/images", "set/parts/one", "store/a"] {
            std::fs::create_dir_all(at(name)).unwrap();
        }
        for name in ["set/y.jsonl", "set/images/a.png", "store/a/x.jsonl"] {
            std::fs::write(at(name), "x").unwrap();
        }
        let found = |path: &str| expand(&at(path).as_str().into(), Format::Auto).map(|shards| shards.len());
        let left_out = |path: &str| left_out(&at(path), Format::Auto, &|_| false);
        assert_eq!(left_out("set"), [""; 0]);
        std::fs::write(at("set/parts/one/x.jsonl"), "x").unwrap();
        let said = left_out("set").concat();
        assert!(said.ends_with(&format!("name them: path: [{}]", at("set/parts"))), "{said}");
        // A folder that is a link, and one that leads back.
        std::os::unix::fs::symlink(at("store"), at("linked")).unwrap();
        std::os::unix::fs::symlink(at(""), at("store/back")).unwrap();
        assert_eq!((found("linked/*/x.jsonl").unwrap(), found("link*/a/x.jsonl").unwrap()), (1, 1));
        assert_eq!(found("store/**/*.jsonl").unwrap(), 1);
        // A link to nothing.
        std::os::unix::fs::symlink(at("gone"), at("set/z.jsonl")).unwrap();
        let error = found("set").unwrap_err().to_string();
        assert!(error.contains("z.jsonl"), "{error}");
    }

    #[test]
    fn folders_globs_and_lists_are_files_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        std::fs::create_dir_all(at("d/e")).unwrap();
        for name in ["d/b.jsonl", "d/a.jsonl.gz", "d/notes.txt", "d/.hidden.tar", "d/e/c.jsonl", "x[1].txt"] {
            std::fs::write(at(name), "x").unwrap();
        }
        let names = |paths: &[&str]| -> Vec<String> {
            let shards = expand(&Paths(paths.iter().map(|path| at(path)).collect()), Format::Auto).unwrap();
            shards.iter().map(|shard| shard.name[at("").len()..].to_owned()).collect()
        };
        assert_eq!(names(&["d"]), ["d/a.jsonl.gz", "d/b.jsonl"]);
        assert_eq!(names(&["d/*.jsonl", "x[1].txt"]), ["d/b.jsonl", "x[1].txt"]);
        assert_eq!(names(&["d/**/*.jsonl"]), ["d/b.jsonl", "d/e/c.jsonl"]);
        assert_eq!(names(&["*/{e/c,b}.jsonl"]), ["d/e/c.jsonl", "d/b.jsonl"]);
        for (path, part) in
            [("gone.jsonl", "gone.jsonl"), ("d/*.tar", "no file matches"), ("d/e/../e/f-{0..1}.tar", "f-0")]
        {
            let error = expand(&at(path).as_str().into(), Format::Auto).err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
        }
        let error = expand(&at("gone/*.tar").as_str().into(), Format::Auto).err().unwrap().to_string();
        assert!(error.contains("gone/*.tar: no file matches: there is no folder"), "{error}");
        std::fs::remove_file(at("d/e/c.jsonl")).unwrap();
        assert!(
            expand(&at("d/e").as_str().into(), Format::Auto).err().unwrap().to_string().contains("without data files")
        );
        // With recordings in it, whose transcripts are not beside them.
        for name in ["d/e/a.wav", "d/e/wav.scp", "d/e/text"] {
            std::fs::write(at(name), "x").unwrap();
        }
        let error = expand(&at("d/e").as_str().into(), Format::Auto).err().unwrap().to_string();
        assert!(error.contains("is a Kaldi data folder (wav.scp), which is not read"), "{error}");
        std::fs::write(at("d/e/a.txt"), "x").unwrap();
        assert_eq!(names(&["d/e"]), ["d/e/"]);
        let said = left_out(&at("d"), Format::Auto, &|_| false).concat();
        assert!(said.contains("like b.jsonl are read") || said.contains("like a.jsonl.gz are read"), "{said}");
        assert!(said.contains("notes.txt left out"), "{said}");
        assert!(left_out(&at("x[1].txt"), Format::Auto, &|_| false).is_empty());
    }
}
