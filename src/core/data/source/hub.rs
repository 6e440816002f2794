//! Data sets of the Hugging Face hub, `hf://datasets/ORG/NAME[@REVISION][/CONFIGURATION][/SPLIT]` or with a pattern of file names behind
//! the name: which of a repository's files are meant, and where they are in the cache that Python's tools share. Nothing is fetched
//! here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use globset::GlobBuilder;
use serde::{Deserialize, Serialize};

use super::hub_card::{Configuration, configurations};
use super::hub_commit::hub_snapshot;
use super::kinds::kind;
use crate::data::lerobot::{FOLDERS, INFO};
use crate::files;

const SCHEME: &str = "hf://datasets/";
/// The file that describes the data set; its head may say which files are which split.
pub const HUB_CARD: &str = "README.md";
/// Files about data.
const ABOUT: [&str; 4] = ["dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json"];
const TRAIN: &str = "train";
/// Words in names of files and folders that tell a split.
const SPLITS: [(&str, &[&str]); 3] = [
    (TRAIN, &["train", "training"]),
    ("validation", &["validation", "valid", "val", "dev"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// A path of the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubPath {
    /// `ORG/NAME`
    pub repo: String,
    pub revision: Option<String>,
    /// The rest of the path: a pattern, a configuration, a split, or nothing.
    pub inner: String,
}

/// Names of all files of a commit, which is kept beside the snapshot, so that a part of it is not taken for the whole.
#[derive(Serialize, Deserialize)]
pub struct HubListing {
    pub files: Vec<String>,
}

impl HubPath {
    /// `None`: it is another path.
    ///
    /// # Errors
    /// It names no repository.
    pub fn parse(path: &str) -> Result<Option<Self>, String> {
        let Some(rest) = path.strip_prefix(SCHEME) else { return Ok(None) };
        let mut parts = rest.splitn(3, '/');
        let (org, name, inner) = (parts.next(), parts.next(), parts.next().unwrap_or_default());
        let plain = |text: &str| {
            !text.is_empty()
                && !text.starts_with('.')
                && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        let (name, revision) = match name.and_then(|name| name.split_once('@')) {
            Some((name, revision)) => (Some(name), Some(revision.to_owned())),
            None => (name, None),
        };
        match (org.filter(|org| plain(org)), name.filter(|name| plain(name))) {
            (Some(org), Some(name)) if revision.as_deref().is_none_or(plain) => {
                Ok(Some(Self { repo: format!("{org}/{name}"), revision, inner: inner.trim_matches('/').to_owned() }))
            }
            _ => Err(format!("must name a data set of the hub: write {SCHEME}ORG/NAME or {SCHEME}ORG/NAME@REVISION")),
        }
    }

    /// Returns the branch, tag or commit; `main` if the path names none.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }

    /// Returns the folder of the repository in the cache `hub`.
    fn folder(&self, hub: &Path) -> PathBuf {
        hub.join(format!("datasets--{}", self.repo.replace('/', "--")))
    }

    /// Returns the path of the file that keeps the names of a commit's files.
    pub fn listing(&self, hub: &Path, commit: &str) -> PathBuf {
        self.folder(hub).join("loongforge").join(format!("{commit}.json"))
    }

    /// Returns the files that are meant, in the cache `hub`.
    ///
    /// # Errors
    /// The reason: the cache lacks it or a part of it, or no file is meant.
    pub fn find(&self, hub: &Path) -> Result<Vec<PathBuf>, String> {
        Ok(self.snapshot(hub)?.1)
    }

    /// Returns the folder of the LeRobot set that is meant, in the cache `hub`; `None`: it is another data set.
    ///
    /// # Errors
    /// See [`HubPath::find`].
    pub fn find_episodes(&self, hub: &Path) -> Result<Option<PathBuf>, String> {
        let (snapshot, files) = self.snapshot(hub)?;
        let folder = if self.inner.is_empty() { snapshot } else { snapshot.join(&self.inner) };
        Ok(files.contains(&folder.join(INFO)).then_some(folder))
    }

    /// Returns the folder of the commit in the cache `hub`, and the files that are meant.
    fn snapshot(&self, hub: &Path) -> Result<(PathBuf, Vec<PathBuf>), String> {
        let absent = || {
            let (repo, revision) = (&self.repo, self.revision());
            format!("{repo} ({revision}) is not in {}: unset HF_HUB_OFFLINE to download it", hub.display())
        };
        let (commit, snapshot) = hub_snapshot(&self.folder(hub), self.revision()).ok_or_else(absent)?;
        let listing = files::read(&self.listing(hub, &commit), files::MAX_TEXT_BYTES).ok();
        let listing = listing.and_then(|text| serde_json::from_slice::<HubListing>(&text).ok());
        let names = match listing {
            Some(listing) => listing.files,
            None => files_below(&snapshot),
        };
        let card = files::read_text(&snapshot.join(HUB_CARD)).ok();
        let chosen = choose_hub_files(&names, card.as_deref(), &self.inner)?;
        whole_shards(&chosen, &names)?;
        match chosen.iter().find(|name| !snapshot.join(name).is_file()) {
            Some(missing) => Err(format!("{missing} is missing: {}", absent())),
            None => {
                let files = chosen.iter().map(|name| snapshot.join(name)).collect();
                Ok((snapshot, files))
            }
        }
    }
}

/// Returns the files of a repository that `inner` means; `card` is its `README.md`.
///
/// # Errors
/// The reason: none, or it may mean several sets.
pub fn choose_hub_files(names: &[String], card: Option<&str>, inner: &str) -> Result<Vec<String>, String> {
    let data: Vec<&String> = names.iter().filter(|name| is_data(name)).collect();
    if inner.contains(['*', '?', '[', '{']) {
        return matching(names, "", &[inner.to_owned()])
            .and_then(|found| some(found, || format!("no file matches {inner}")));
    }
    if let Some(name) = names.iter().find(|name| *name == inner) {
        return Ok(vec![name.clone()]);
    }
    // Cards of LeRobot sets have a configuration that names their rows alone.
    if let Some(files) = of_episodes(names, inner) {
        return Ok(files);
    }
    let configurations = card.map(configurations).transpose()?.unwrap_or_default();
    if !configurations.is_empty() {
        let (first, rest) = inner.split_once('/').unwrap_or((inner, ""));
        let named = configurations.iter().find(|it| it.name == first);
        let (found, split) = match named {
            Some(found) => (found, rest),
            None => (the_default(&configurations)?, inner),
        };
        return of_configuration(names, found, split);
    }
    let is_within = |name: &&&String| name.strip_prefix(inner).is_some_and(|rest| rest.starts_with('/'));
    if data.iter().any(|name| is_within(&name)) {
        return of_split(data.iter().filter(is_within).copied(), inner, "");
    }
    match inner.rsplit_once('/') {
        Some((folder, split)) => {
            let begin = format!("{folder}/");
            of_split(data.iter().filter(|name| name.starts_with(&begin)).copied(), folder, split)
        }
        None => of_split(data.iter().copied(), "", inner),
    }
}

/// Returns the files of the LeRobot set in the folder `inner` of a repository; `None`: there is none.
fn of_episodes(names: &[String], inner: &str) -> Option<Vec<String>> {
    let begin = if inner.is_empty() { String::new() } else { format!("{inner}/") };
    let is_of_it = |name: &&String| {
        let folder = name.strip_prefix(&begin).and_then(|rest| rest.split_once('/'));
        folder.is_some_and(|(folder, _)| FOLDERS.contains(&folder))
    };
    names.contains(&format!("{begin}{INFO}")).then(|| names.iter().filter(is_of_it).cloned().collect())
}

/// # Errors
/// Several, of which none is the default.
fn the_default(configurations: &[Configuration]) -> Result<&Configuration, String> {
    let chosen = configurations
        .iter()
        .find(|it| it.is_default)
        .or_else(|| configurations.iter().find(|it| it.name == "default"));
    match (chosen, configurations) {
        (Some(chosen), _) => Ok(chosen),
        (None, [only]) => Ok(only),
        _ => {
            let names: Vec<&str> = configurations.iter().map(|it| it.name.as_str()).collect();
            Err(format!("has several configurations ({}): append the name of one to the data set's", names.join(", ")))
        }
    }
}

fn of_configuration(names: &[String], found: &Configuration, split: &str) -> Result<Vec<String>, String> {
    let wanted = if split.is_empty() { TRAIN } else { split };
    let folder = &found.folder;
    if found.splits.is_empty() {
        let begin = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        return of_split(names.iter().filter(|name| is_data(name) && name.starts_with(&begin)), folder, split);
    }
    let patterns = found.splits.iter().find(|(name, _)| name == wanted).map(|(_, patterns)| patterns);
    let patterns = patterns.ok_or_else(|| {
        let has: Vec<&str> = found.splits.iter().map(|(name, _)| name.as_str()).collect();
        format!("has no split {wanted}: configuration {} has {}", found.name, has.join(", "))
    })?;
    some(matching(names, folder, patterns)?, || format!("has no file that matches {}", patterns.join(", ")))
}

/// Returns the files of a split: those whose names tell it; where no name tells any, all are for training.
fn of_split<'a>(names: impl Iterator<Item = &'a String>, folder: &str, split: &str) -> Result<Vec<String>, String> {
    let mut splits: BTreeMap<Option<&str>, Vec<String>> = BTreeMap::new();
    for name in names {
        splits.entry(split_of(&name[folder.len()..])).or_default().push(name.clone());
    }
    let wanted = SPLITS.iter().find(|(_, words)| words.contains(&split)).map_or(split, |(name, _)| name);
    let wanted = if wanted.is_empty() { TRAIN } else { wanted };
    let is_one = splits.len() == 1 && splits.contains_key(&None);
    let found = if is_one && wanted == TRAIN { splits.remove(&None) } else { splits.remove(&Some(wanted)) };
    let found = found.ok_or_else(|| {
        let has: Vec<&str> = splits.keys().copied().flatten().collect();
        match has.is_empty() {
            true => format!("has no split {wanted}: no file name says that it belongs to it"),
            false => format!("has no split {wanted}; by its file names it has {}", has.join(", ")),
        }
    })?;
    let first = found.iter().filter_map(|name| kind(name)).min();
    let mut found: Vec<String> = found.into_iter().filter(|name| kind(name) == first).collect();
    found.sort();
    Ok(found)
}

/// Returns the split that a path within a repository tells: by the name of its file, else by its folders.
fn split_of(path: &str) -> Option<&'static str> {
    let words = |part: &str| -> Vec<String> {
        part.split(|c: char| !c.is_ascii_alphabetic()).map(str::to_ascii_lowercase).collect()
    };
    path.rsplit('/').find_map(|part| {
        let words = words(part);
        let told = SPLITS.iter().find(|(_, known)| words.iter().any(|word| known.contains(&word.as_str())));
        told.map(|(split, _)| *split)
    })
}

fn matching(names: &[String], folder: &str, patterns: &[String]) -> Result<Vec<String>, String> {
    let mut found: Vec<String> = Vec::new();
    for pattern in patterns {
        let whole = if folder.is_empty() { pattern.clone() } else { format!("{folder}/{pattern}") };
        let glob = GlobBuilder::new(whole.trim_start_matches("./")).literal_separator(true).build();
        let matcher = glob.map_err(|error| error.to_string())?.compile_matcher();
        found.extend(names.iter().filter(|name| matcher.is_match(name)).cloned());
    }
    found.sort();
    found.dedup();
    Ok(found)
}

fn some(found: Vec<String>, none: impl Fn() -> String) -> Result<Vec<String>, String> {
    if found.is_empty() { Err(none()) } else { Ok(found) }
}

fn is_data(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    kind(name).is_some() && !ABOUT.contains(&file) && !name.split('/').any(|part| part.starts_with('.'))
}

/// Checks that sets of numbered files of which some are `chosen` are whole among all `names`.
///
/// # Errors
/// `NAME-00000-of-00002` is there, and `NAME-00001-of-00002` is not.
fn whole_shards(chosen: &[String], names: &[String]) -> Result<(), String> {
    let set_of = |name: &String| -> Option<(String, u64)> {
        let (before, after) = name.split_once("-of-")?;
        let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
        Some((before.rsplit_once('-')?.0.to_owned(), digits.parse().ok()?))
    };
    let mut sets: BTreeMap<(String, u64), u64> = chosen.iter().filter_map(set_of).map(|set| (set, 0)).collect();
    for set in names.iter().filter_map(set_of) {
        if let Some(found) = sets.get_mut(&set) {
            *found += 1;
        }
    }
    match sets.iter().find(|((_, count), found)| *found < count) {
        Some(((stem, count), found)) => Err(format!("only {found} of the {count} files {stem}-…-of-{count:05} exist")),
        None => Ok(()),
    }
}

/// Names of the files in a folder and in folders within, with slashes, in order.
pub fn files_below(folder: &Path) -> Vec<String> {
    let (mut names, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(inner) = folders.pop() {
        for entry in std::fs::read_dir(&inner).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() && path.components().count() < folder.components().count() + 16 {
                folders.push(path);
            } else if let Ok(name) = path.strip_prefix(folder) {
                names.push(name.to_string_lossy().into_owned());
            }
        }
    }
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str], card: Option<&str>, inner: &str) -> Result<String, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        choose_hub_files(&names, card, inner).map(|found| found.join(" "))
    }

    #[test]
    fn paths_are_taken_apart() {
        let path = |text: &str| HubPath::parse(text).unwrap().unwrap();
        let of = |repo: &str, revision: Option<&str>, inner: &str| HubPath {
            repo: repo.into(),
            revision: revision.map(str::to_owned),
            inner: inner.into(),
        };
        assert_eq!(path("hf://datasets/a/b"), of("a/b", None, ""));
        assert_eq!(path("hf://datasets/a/b@v1.0/data/*.parquet"), of("a/b", Some("v1.0"), "data/*.parquet"));
        assert_eq!(path("hf://datasets/a/b/test/"), of("a/b", None, "test"));
        assert_eq!(HubPath::parse("data/a.jsonl"), Ok(None));
        for wrong in ["hf://datasets/a", "hf://datasets/../b", "hf://datasets/a/b@x%2f..", "hf://datasets//b"] {
            assert!(HubPath::parse(wrong).unwrap_err().contains("ORG/NAME"), "{wrong}");
        }
    }

    #[test]
    fn names_tell_splits() {
        let files = [
            ".gitattributes",
            "README.md",
            "data/train-00000-of-00002.parquet",
            "data/train-00001-of-00002.parquet",
            "data/test-00000-of-00001.parquet",
            "data/validation.jsonl",
        ];
        let train = "data/train-00000-of-00002.parquet data/train-00001-of-00002.parquet";
        assert_eq!(chosen(&files, None, "").as_deref(), Ok(train));
        assert_eq!(chosen(&files, None, "data").as_deref(), Ok(train));
        assert_eq!(chosen(&files, None, "test").as_deref(), Ok("data/test-00000-of-00001.parquet"));
        assert_eq!(chosen(&files, None, "data/dev").as_deref(), Ok("data/validation.jsonl"));
        assert_eq!(chosen(&files, None, "data/validation.jsonl").as_deref(), Ok("data/validation.jsonl"));
        assert_eq!(chosen(&files, None, "data/t*.parquet").unwrap().split(' ').count(), 3);
        assert!(
            chosen(&files, None, "train2")
                .unwrap_err()
                .contains("no split train2; by its file names it has test, train, validation")
        );
        assert!(chosen(&files, None, "*.csv").unwrap_err().contains("no file matches *.csv"));
        // Nothing tells a split, and other kinds of files are left to themselves.
        assert_eq!(
            chosen(&["a.jsonl", "b.jsonl", "notes.txt", "dataset_infos.json"], None, "").as_deref(),
            Ok("a.jsonl b.jsonl")
        );
        assert_eq!(chosen(&["train/x.csv", "test/y.csv"], None, "").as_deref(), Ok("train/x.csv"));
        assert!(chosen(&["latest.csv"], None, "").as_deref() == Ok("latest.csv"), "a part of a word is none");
        assert!(chosen(&["README.md"], None, "").is_err());
    }

    #[test]
    fn the_card_tells_configurations() {
        let card = "---\nlicense: mit\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train-*\n  - split: test\n    \
                    path: [main/test-*]\n- config_name: other\n  data_files: other/*.jsonl\n---\n# A set\n";
        let files = ["main/train-0.parquet", "main/test-0.parquet", "other/a.jsonl"];
        assert_eq!(chosen(&files, Some(card), "main").as_deref(), Ok("main/train-0.parquet"));
        assert_eq!(chosen(&files, Some(card), "main/test").as_deref(), Ok("main/test-0.parquet"));
        assert_eq!(chosen(&files, Some(card), "other").as_deref(), Ok("other/a.jsonl"));
        assert!(chosen(&files, Some(card), "").unwrap_err().contains("several configurations (main, other)"));
        assert!(
            chosen(&files, Some(card), "main/dev")
                .unwrap_err()
                .contains("no split dev: configuration main has train, test")
        );
        let one = card.replace("config_name: main", "config_name: main\n  default: true");
        assert_eq!(chosen(&files, Some(&one), "test").as_deref(), Ok("main/test-0.parquet"));
        assert_eq!(chosen(&files, Some("# no head"), "other").as_deref(), Ok("other/a.jsonl"));
    }

    #[test]
    fn a_set_of_episodes_is_all_of_its_folders() {
        let card = "---\nconfigs:\n- config_name: default\n  data_files: data/*/*.parquet\n---\n";
        let files = ["README.md", "data/a/a.parquet", "meta/info.json", "meta/tasks.parquet", "notes/a.json"];
        assert_eq!(chosen(&files, Some(card), ""), Ok(files[1..4].join(" ")));
        assert_eq!(chosen(&files, Some(card), "data/*/*.parquet").as_deref(), Ok("data/a/a.parquet"));
        let two = ["arm/meta/info.json", "arm/videos/front/file-000.mp4", "leg/meta/info.json"];
        assert_eq!(chosen(&two, None, "arm").as_deref(), Ok("arm/meta/info.json arm/videos/front/file-000.mp4"));
        let hub = tempfile::tempdir().unwrap();
        let snapshot = hub.path().join("datasets--a--b/snapshots/c0ffee");
        std::fs::create_dir_all(snapshot.join("arm/meta")).unwrap();
        std::fs::write(snapshot.join("arm/meta/info.json"), "{}").unwrap();
        let found = |path: &str| HubPath::parse(path).unwrap().unwrap().find_episodes(hub.path());
        assert_eq!(found("hf://datasets/a/b@c0ffee/arm"), Ok(Some(snapshot.join("arm"))));
        assert_eq!(found("hf://datasets/a/b@c0ffee/arm/meta/info.json"), Ok(None));
        assert!(found("hf://datasets/a/b@main/arm").unwrap_err().contains("HF_HUB_OFFLINE"));
    }

    #[test]
    fn the_cache_is_that_of_other_tools_and_a_part_is_no_whole() {
        let hub = tempfile::tempdir().unwrap();
        let path = HubPath::parse("hf://datasets/a/b").unwrap().unwrap();
        assert!(path.find(hub.path()).unwrap_err().contains("HF_HUB_OFFLINE"));
        let folder = hub.path().join("datasets--a--b");
        let snapshot = folder.join("snapshots/c0ffee");
        std::fs::create_dir_all(snapshot.join("data")).unwrap();
        std::fs::create_dir_all(folder.join("refs")).unwrap();
        std::fs::write(folder.join("refs/main"), "c0ffee\n").unwrap();
        std::fs::write(snapshot.join("data/train-00000-of-00002.jsonl"), "x").unwrap();
        assert!(path.find(hub.path()).unwrap_err().contains("1 of the 2 files data/train-…-of-00002"));
        std::fs::write(snapshot.join("data/train-00001-of-00002.jsonl"), "x").unwrap();
        assert_eq!(path.find(hub.path()).unwrap().len(), 2);
        let one = HubPath { inner: "data/train-00001-of-00002.jsonl".into(), ..path.clone() };
        assert_eq!(one.find(hub.path()).unwrap().len(), 1, "a part that is named");
        let listing = HubListing { files: vec!["data/train-a.jsonl".into(), "data/train-00000-of-00001.jsonl".into()] };
        let at = path.listing(hub.path(), "c0ffee");
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(at, serde_json::to_vec(&listing).unwrap()).unwrap();
        assert!(path.find(hub.path()).unwrap_err().contains("data/train-00000-of-00001.jsonl is missing"));
        let pinned = HubPath { revision: Some("c0ffee".into()), inner: "data/*-00002.jsonl".into(), ..path };
        assert!(
            pinned.find(hub.path()).unwrap_err().contains("no file matches"),
            "the listing goes before what is there"
        );
    }
}
