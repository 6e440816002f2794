//! The built-in model configs: `configs/models`, by group and option.
//!
//! Their values come from the models' publishers; this module does not know which models are implemented.

use std::path::Path;

use super::JsonMap;
use super::error::Sources;
use super::read::parse;

/// `models/FAMILY/NAME` and the file's text, sorted.
static FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/builtin.rs"));

/// One built-in config of a model or of a part of one.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelFile {
    /// Group of the `defaults` list: `models/qwen3`.
    pub group: &'static str,
    /// Option of the `defaults` list: `qwen3_0_6b`.
    pub name: &'static str,
    /// The hub ids it is published under, and how the values were checked: the comments at its head.
    pub hub_id: Option<String>,
    pub checked: String,
    /// The keys of its `config.json`.
    pub config: JsonMap,
}

/// Returns every built-in model config.
pub fn model_files() -> impl Iterator<Item = ModelFile> {
    FILES.iter().map(|(path, text)| {
        let (group, name) = path.rsplit_once('/').expect("a group and a name");
        let tree = parse(Path::new(path), text, &mut Sources::default()).expect("built-in configs are YAML");
        let config = tree.get("config").map(|node| node.to_json());
        let config = config.and_then(|value| value.as_object().cloned()).unwrap_or_default();
        let mut comments = text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim);
        let head = comments.next().unwrap_or_default();
        let (hub_id, checked) = head.split_once("; ").unwrap_or(("", head));
        let hub_id = (hub_id != "no hub id" && !hub_id.is_empty()).then(|| hub_id.to_owned());
        ModelFile { group, name, hub_id, checked: checked.to_owned(), config }
    })
}

/// Returns the text of the built-in file `models/FAMILY/NAME`.
pub(super) fn text(path: &str) -> Option<&'static str> {
    let found = FILES.binary_search_by(|(name, _)| (*name).cmp(path));
    found.ok().map(|index| FILES[index].1)
}

/// Returns the options of a group.
pub(super) fn options(group: &str) -> impl Iterator<Item = &'static str> {
    FILES
        .iter()
        .filter_map(move |(path, _)| path.strip_prefix(group)?.strip_prefix('/'))
        .filter(|rest| !rest.contains('/'))
}

/// Returns all groups.
pub(super) fn groups() -> Vec<&'static str> {
    let mut groups: Vec<_> = FILES.iter().filter_map(|(path, _)| Some(path.rsplit_once('/')?.0)).collect();
    groups.dedup();
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_says_where_it_is_from_and_has_a_model_type() {
        for file in model_files() {
            assert!(!file.checked.is_empty(), "{}: how its values were checked", file.name);
            // Policies of lerobot call it `type`.
            let has_type = ["model_type", "type"].iter().any(|key| file.config.contains_key(*key));
            assert!(has_type, "{}: model_type", file.name);
            assert!(file.hub_id.is_none_or(|id| id.split(", ").all(|id| id.split('/').count() == 2)), "{}", file.name);
        }
        assert!(FILES.is_sorted() && groups().contains(&"models/qwen3"));
        assert!(text("models/qwen3/qwen3_0_6b").is_some() && options("models/qwen3").any(|name| name == "qwen3_0_6b"));
    }
}
