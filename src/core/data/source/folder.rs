//! A folder of pictures and clips, each with its caption in a `.txt` or `.caption` of the same name, or of recordings with their
//! transcripts. Extensions may be in capitals.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde_json::{Map, Value as Json};

use super::block::{Block, Body, Record};
use super::shard::Shard;
use crate::config::{Format, folders_in, folders_within};
use crate::data::file_kind::{FileKind, is_recording, kind_of};
use crate::data::media::natural;
use crate::files;
use crate::rng::mix;

/// The extensions of captions: of several files the first is read, and one in small letters before one in capitals.
const CAPTIONS: [&str; 2] = ["txt", "caption"];

/// Says what the samples of a folder are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Visuals,
    Recordings,
}

impl Kind {
    /// Recordings beside pictures or clips are no samples, unless the format is theirs.
    fn of<'a>(mut names: impl Iterator<Item = &'a str> + Clone, format: Format) -> Option<Self> {
        match format != Format::Transcripts && names.clone().any(is_visual) {
            true => Some(Self::Visuals),
            false => names.any(is_recording).then_some(Self::Recordings),
        }
    }

    fn has(self, name: &str) -> bool {
        match self {
            Self::Visuals => is_visual(name),
            Self::Recordings => is_recording(name),
        }
    }

    /// Returns the words for the text of a sample, for the sample, and for several of them.
    fn words(self) -> [&'static str; 3] {
        match self {
            Self::Visuals => ["caption", "picture", "pictures"],
            Self::Recordings => ["transcript", "recording", "recordings"],
        }
    }

    /// Returns the fields of a sample.
    fn fields(self) -> [&'static str; 2] {
        match self {
            Self::Visuals => ["file_name", "caption"],
            Self::Recordings => ["audio", "text"],
        }
    }
}

/// The pictures and clips of a folder, or its recordings, numbers in their names by value.
pub struct Folder {
    path: PathBuf,
    kind: Kind,
    names: Vec<String>,
    /// The file of each caption, by the name without its extension.
    captions: BTreeMap<String, String>,
    /// The caption of pictures and clips that have none.
    caption: Option<String>,
}

impl Folder {
    /// Lists the folder as a set of this format.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn open(path: &Path, format: Format) -> Result<Self, String> {
        let mut names: Vec<String> = names_in(path)?.into_iter().map(|(name, ..)| name).collect();
        let captions = captions(names.iter().map(String::as_str));
        let kind = Kind::of(names.iter().map(String::as_str), format).unwrap_or(Kind::Visuals);
        names.retain(|name| kind.has(name));
        names.sort_by(|a, b| natural(a, b));
        Ok(Self { path: path.to_owned(), kind, names, captions, caption: None })
    }

    /// Returns the same folder, in which this is the caption of pictures and clips that have none.
    pub fn with_caption(self, caption: Option<String>) -> Self {
        Self { caption, ..self }
    }

    fn caption_file(&self, index: u64) -> PathBuf {
        let name = &self.names[index as usize];
        match self.captions.get(&stem(name)) {
            Some(caption) => self.path.join(caption),
            None => self.path.join(Path::new(name).with_extension(CAPTIONS[0])),
        }
    }
}

impl Block for Folder {
    fn len(&self) -> u64 {
        self.names.len() as u64
    }

    fn num_bytes(&self, _: u64) -> u64 {
        0
    }

    fn read(&self, index: u64) -> Result<Record, String> {
        let (path, [what, ..]) = (self.caption_file(index), self.kind.words());
        let caption = match (files::read(&path, files::MAX_TEXT_BYTES), &self.caption) {
            (Ok(text), _) => {
                String::from_utf8(text).map_err(|_| format!("its {what} {} is not UTF-8", path.display()))?
            }
            (Err(error), Some(caption)) if error.kind() == ErrorKind::NotFound => caption.clone(),
            (Err(error), None) if error.kind() == ErrorKind::NotFound => {
                let all = match self.kind {
                    Kind::Visuals => ", or set `caption` in data.train for all that have none",
                    Kind::Recordings => "",
                };
                return Err(format!("has no {what}: write {} or take it out of the folder{all}", path.display()));
            }
            (Err(error), _) => return Err(format!("its {what} {} cannot be read: {error}", path.display())),
        };
        let [file, text] = self.kind.fields();
        let fields = [(file, self.names[index as usize].clone()), (text, without_mark(&caption).trim().to_owned())];
        let fields = fields.map(|(key, value)| (key.to_owned(), Json::String(value)));
        let fields = Map::from_iter(fields);
        Ok(Record { body: Body::Json(Json::Object(fields)), ..Record::default() })
    }

    fn name(&self, index: u64) -> String {
        self.names[index as usize].clone()
    }
}

/// Returns the folder as a shard, if it has pictures or clips, or else recordings, and the format is theirs; the tag changes with any of
/// its files.
///
/// # Errors
/// The folder cannot be listed.
pub fn shard(path: &Path, format: Format) -> Result<Option<Shard>, String> {
    let mut names = names_in(path)?;
    let kind = Kind::of(names.iter().map(|(name, ..)| name.as_str()), format).filter(|kind| match format {
        Format::Auto => true,
        Format::Captioned => *kind == Kind::Visuals,
        Format::Transcripts => *kind == Kind::Recordings,
        _ => false,
    });
    let Some(kind) = kind else { return Ok(None) };
    names.retain(|(name, ..)| kind.has(name) || is_caption(name));
    names.sort();
    let words = names.iter().flat_map(|(name, size, changed)| {
        let name = name.bytes().map(u64::from);
        name.chain([u64::MAX, *size, *changed as u64])
    });
    let tag = words.fold(0, |state, word| mix(state ^ mix(word)));
    let mut name = path.to_string_lossy().into_owned();
    if !name.ends_with('/') {
        name.push('/');
    }
    let size = names.iter().map(|(_, size, _)| size).sum();
    Ok(Some(Shard { name, size, tag: format!("{:016x}", tag) }))
}

/// Returns sentences about what a folder of pictures or recordings has beside them that is not read in this format. `is_read`: the
/// folders that are named as data, too. Samples that share a text are told as well.
pub fn left_out(path: &Path, format: Format, is_read: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let Ok(names) = names_in(path) else { return Vec::new() };
    let kind = Kind::of(names.iter().map(|(name, ..)| name.as_str()), format).unwrap_or(Kind::Visuals);
    let mut samples: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, ..) in names.iter().filter(|(name, ..)| kind.has(name)) {
        samples.entry(stem(name)).or_default().push(name);
    }
    // A `.caption` beside a `.txt` of the same name is not read.
    let read = captions(names.iter().map(|(name, ..)| name.as_str()));
    let is_second = |name: &str| read.get(&stem(name)).is_some_and(|first| first != name);
    let second: Vec<&str> =
        names.iter().map(|(name, ..)| name.as_str()).filter(|name| is_caption(name) && is_second(name)).collect();
    let lonely: Vec<&str> = names
        .iter()
        .map(|(name, ..)| name.as_str())
        .filter(|name| is_caption(name) && !samples.contains_key(&stem(name)))
        .collect();
    let others: Vec<&str> =
        names.iter().map(|(name, ..)| name.as_str()).filter(|name| !is_caption(name) && !kind.has(name)).collect();
    let is_empty = |folder: &Path| std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
    let inner = folders_in(path).iter().filter(|folder| !is_read(folder) && !is_empty(folder)).count();
    let nested = (inner > 0).then(|| {
        let what = with_samples(path, is_read).unwrap_or_else(|| "name them as data sets of their own".to_owned());
        format!("{}: its subfolders are left out, {inner} of them; {what}", path.display())
    });
    let path = path.display();
    samples.retain(|stem, names| names.len() > 1 && read.contains_key(stem));
    let shared = samples.iter_mut().next().map(|(stem, names)| {
        names.sort_unstable();
        (names.join(" and "), &read[stem])
    });
    let shared = shared.map(|(first, file)| {
        let more = if samples.len() > 1 { format!(", and {} more", samples.len() - 1) } else { String::new() };
        let [text, _, samples] = kind.words();
        format!("{path}: {samples} that differ only in the extension have the same {text}: {first} have {file}{more}")
    });
    let told = |what: &str, names: &[&str]| {
        let first = names.first()?;
        let more = if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() };
        Some(format!("{path}: {what} left out: {first}{more}"))
    };
    let [text, sample, samples] = kind.words();
    told(&format!("{text}s of a {sample} that has another {text} are"), &second)
        .into_iter()
        .chain(told(&format!("{text}s without a {sample} are"), &lonely))
        .chain(told(&format!("files that are neither {samples} nor {text}s are"), &others))
        .chain(shared)
        .chain(nested)
        .collect()
}

/// Says how to train on the folders in a folder that have pictures, clips or recordings and are not read; `None` where none has.
pub fn with_samples(path: &Path, is_read: &dyn Fn(&Path) -> bool) -> Option<String> {
    let has = |names: Vec<(String, u64, u128)>| {
        Kind::of(names.iter().map(|(name, ..)| name.as_str()), Format::Auto).is_some()
    };
    folders_within(path, |folder| !is_read(folder) && names_in(folder).is_ok_and(has))
}

/// Returns the text of a file without the byte-order mark with which editors on Windows begin it.
pub(super) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

fn is_visual(name: &str) -> bool {
    matches!(kind_of(name), Some(FileKind::Picture | FileKind::Clip)) && name.contains('.')
}

fn is_caption(name: &str) -> bool {
    caption_kind(name).is_some()
}

/// Returns which of the extensions of captions a file has.
fn caption_kind(name: &str) -> Option<usize> {
    let extension = Path::new(name).extension()?.to_str()?;
    CAPTIONS.iter().position(|known| extension.eq_ignore_ascii_case(known))
}

/// Returns the name without its extension, which a picture and its caption have in common.
fn stem(name: &str) -> String {
    Path::new(name).with_extension("").to_string_lossy().into_owned()
}

/// Returns the caption's file for each name without an extension.
fn captions<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    // Small letters come last in the order of names.
    let rank = |name: &str| (caption_kind(name), Reverse(name.to_owned()));
    for name in names.filter(|name| is_caption(name)) {
        let first = found.entry(stem(name)).or_insert_with(|| name.to_owned());
        if rank(name) < rank(first) {
            *first = name.to_owned();
        }
    }
    found
}

/// Returns the files of a folder that are not hidden, with size and time of change.
fn names_in(path: &Path) -> Result<Vec<(String, u64, u128)>, String> {
    let fail = |error: std::io::Error| format!("cannot be listed: {error}");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(metadata) = std::fs::metadata(entry.path()) else { continue };
        if metadata.is_file() && !name.starts_with('.') {
            let changed = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            names.push((name, metadata.len(), changed.map_or(0, |time| time.as_nanos())));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Paths;
    use crate::data::source::paths::{self, expand};

    #[test]
    fn captions_may_have_extensions_in_capitals() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.JPG", "b.png", "c.png", "d.png"] {
            std::fs::write(folder.path().join(name), "a picture").unwrap();
        }
        let captions = ["a.TXT", "b.Caption", "b.TXT", "c.TXT", "c.caption", "c.txt"];
        for name in captions {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        let opened = Folder::open(folder.path(), Format::Auto).unwrap();
        let caption = |index| match opened.read(index).unwrap().body {
            Body::Json(json) => json["caption"].as_str().unwrap().to_owned(),
            _ => unreachable!("a picture of a folder is JSON"),
        };
        assert_eq!([caption(0), caption(1), caption(2)], ["a.TXT", "b.TXT", "c.txt"]);
        assert!(opened.read(3).unwrap_err().contains("d.txt or take it out"));
        let told = left_out(folder.path(), Format::Auto, &|_| false).join("\n");
        assert!(told.contains("another caption are left out: ") && told.ends_with(" and 2 more"), "{told}");
        // Pictures of one name have one caption between them.
        for name in ["b.jpg", "c.webp", "d.gif"] {
            std::fs::write(folder.path().join(name), "another picture").unwrap();
        }
        let told = left_out(folder.path(), Format::Auto, &|_| false).join("\n");
        let shared = "differ only in the extension have the same caption: b.jpg and b.png have b.TXT, and 1 more";
        assert!(told.ends_with(shared), "{told}");
        assert!(shard(folder.path(), Format::Auto).unwrap().unwrap().size > 4 * 9);
    }

    #[test]
    fn recordings_have_their_transcripts_beside_them() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        for (name, text) in [("a 2.WAV", "sound"), ("a 10.flac", "sound"), ("a 2.txt", "two \n"), ("lost.txt", "x")] {
            write(name, text);
        }
        let shards = |format| expand(&Paths(vec![folder.path().display().to_string()]), format);
        let found = shards(Format::Auto).unwrap();
        assert!(found.len() == 1 && found[0].name.ends_with('/'), "{}", found[0].name);
        assert_eq!(shards(Format::Transcripts).unwrap()[0].tag, found[0].tag);
        // As lines the texts are read without their recordings, and a diffusion model has nothing to learn here.
        assert!(shards(Format::Plain).unwrap()[0].name.ends_with(".txt"));
        // None of these lines is left out.
        let said = |format| paths::left_out(&folder.path().display().to_string(), format, &|_| false).concat();
        assert!(said(Format::Auto).contains("lost.txt") && said(Format::Plain).is_empty(), "{}", said(Format::Plain));
        assert!(shards(Format::Captioned).unwrap()[0].name.ends_with(".txt"));
        let opened = Folder::open(folder.path(), Format::Auto).unwrap();
        let Body::Json(json) = opened.read(0).unwrap().body else { panic!("a recording of a folder is JSON") };
        assert_eq!((opened.len(), json), (2, serde_json::json!({"audio": "a 2.WAV", "text": "two"})));
        let error = opened.read(1).unwrap_err();
        assert!(error.contains("has no transcript: write") && error.contains("a 10.txt or take it out"), "{error}");
        let told = left_out(folder.path(), Format::Auto, &|_| false).join("\n");
        assert!(told.ends_with("transcripts without a recording are left out: lost.txt"), "{told}");
        // Beside pictures they are no samples, unless they are asked for.
        write("b.png", "a picture");
        let asked = shard(folder.path(), Format::Transcripts).unwrap().unwrap();
        let opened = Folder::open(folder.path(), Format::Transcripts).unwrap();
        assert_eq!((asked.tag, opened.len(), opened.name(0).as_str()), (found[0].tag.clone(), 2, "a 2.WAV"));
        let told = left_out(folder.path(), Format::Transcripts, &|_| false).join("\n");
        assert!(told.ends_with("files that are neither recordings nor transcripts are left out: b.png"), "{told}");
        let told = left_out(folder.path(), Format::Auto, &|_| false).join("\n");
        let left = "neither pictures nor captions are left out: a ";
        assert!(told.contains(left) && told.ends_with(" and 1 more"), "{told}");
    }

    #[test]
    fn folders_within_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        };
        let error = || {
            let path = Paths(vec![folder.path().display().to_string()]);
            expand(&path, Format::Auto).unwrap_err().to_string()
        };
        write("texts/notes.md");
        write(".cache/a.png");
        assert!(error().contains("is a folder without data files") && !error().contains("subfolders"), "{}", error());
        let captioned = expand(&Paths(vec![folder.path().display().to_string()]), Format::Captioned).unwrap_err();
        assert!(captioned.to_string().contains("without pictures, clips and data files"), "{captioned}");
        write("cats/a.png");
        let cats = folder.path().join("cats").display().to_string();
        assert!(error().ends_with(&format!("name them: path: [{cats}]")), "{}", error());
        for name in ["10_dogs/a.jpg", "a/a.gif", "b/a.mp4", "c/a.png"] {
            write(name);
        }
        let dogs = folder.path().join("10_dogs").display().to_string();
        let (told, weight) = (error(), "set data.train[].weight instead");
        assert!(
            told.contains(&format!("path: [{dogs}, ")) && told.contains(", …]; ") && told.ends_with(weight),
            "{told}"
        );
        // Beside pictures of its own, they are left out with the same words.
        write("own.png");
        let told = left_out(folder.path(), Format::Auto, &|_| false).join("\n");
        assert!(
            told.contains("its subfolders are left out, 6 of them; subfolders") && told.ends_with(weight),
            "{told}"
        );
        // Folders that are read all the same, and those without files, are not told of.
        let is_read = |inner: &Path| !["b", "texts", "empty"].iter().any(|name| inner.ends_with(name));
        std::fs::create_dir(folder.path().join("empty")).unwrap();
        let told = left_out(folder.path(), Format::Auto, &is_read).join("\n");
        let inner = folder.path().join("b").display().to_string();
        let expected = format!("left out, 2 of them; subfolders are not searched; name them: path: [{inner}]");
        assert!(told.ends_with(&expected), "{told}");
        for name in ["cats", "10_dogs", "a", "b", "c"] {
            std::fs::remove_dir_all(folder.path().join(name)).unwrap();
        }
        let told = left_out(folder.path(), Format::Auto, &|_| false).join("\n");
        assert!(
            told.ends_with("its subfolders are left out, 1 of them; name them as data sets of their own"),
            "{told}"
        );
    }
}
