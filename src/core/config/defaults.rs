//! One entry of a `defaults` list, and the package that its file's keys go to.

use super::error::{Problem, code};
use super::node::{Kind, Node, Pos, join};

/// One entry of a `defaults` list.
pub(super) struct Item {
    /// The group as written; empty for a plain file.
    pub group: String,
    pub package: Option<String>,
    pub options: Vec<String>,
    pub optional: bool,
    pub is_override: bool,
    pub pos: Option<Pos>,
}

pub(super) const ENTRY_HELP: &str = "entries are `group: option`, `group@package: option`, a file name, or `_self_`";

impl Item {
    /// Reads an entry of the list.
    ///
    /// # Errors
    /// It is neither a name nor `group: option`, or an option is no file's name.
    pub fn parse(node: &Node) -> Result<Self, Problem> {
        let problem = |message: &str| Problem::new(code::DEFAULTS, node.pos, message).help(ENTRY_HELP);
        let text = |node: &Node| match &node.kind {
            Kind::Text(text) if !text.is_empty() => Ok(text.clone()),
            Kind::Number(_) | Kind::Bool(_) => Ok(node.brief()),
            _ => Err(problem("an option must be the name of a file, without `.yaml`")),
        };
        let (key, options, pos) = match &node.kind {
            Kind::Text(name) if !name.is_empty() => {
                let (name, package) = split_package(name);
                return Ok(Self {
                    group: String::new(),
                    package,
                    options: vec![name],
                    optional: false,
                    is_override: false,
                    pos: node.pos,
                });
            }
            Kind::Map(map) if map.len() == 1 => {
                let (key, entry) = map.iter().next().expect("one entry");
                let options = match &entry.node.kind {
                    Kind::Null => Vec::new(),
                    Kind::Seq(items) => items.iter().map(text).collect::<Result<_, _>>()?,
                    _ => vec![text(&entry.node)?],
                };
                (key.as_str(), options, entry.node.pos)
            }
            _ => return Err(problem("not an entry of a `defaults` list")),
        };
        let mut words: Vec<&str> = key.split_whitespace().collect();
        let group = words.pop().ok_or_else(|| problem("the entry has no group"))?;
        if let Some(word) = words.iter().find(|word| !matches!(**word, "optional" | "override")) {
            return Err(problem(&format!("unknown keyword `{word}`, expected `optional` or `override`")));
        }
        let (group, package) = split_package(group);
        let (optional, is_override) = (words.contains(&"optional"), words.contains(&"override"));
        Ok(Self { group, package, options, optional, is_override, pos })
    }
}

/// Splits `group@package` into the group and the package, if one is named.
pub(super) fn split_package(text: &str) -> (String, Option<String>) {
    match text.split_once('@') {
        Some((group, package)) => (group.to_owned(), Some(package.to_owned())),
        None => (text.to_owned(), None),
    }
}

/// Returns the dotted path that a file's keys go to.
pub(super) fn final_package(written: &str, group: &str, parent: &str) -> String {
    let written = written.replace('/', ".");
    match written.as_str() {
        "_group_" => group.replace('/', "."),
        "_here_" | "" => parent.to_owned(),
        "_global_" => String::new(),
        other => match other.strip_prefix("_global_.") {
            Some(path) => path.to_owned(),
            None => join(parent, other),
        },
    }
}

/// Returns the package in a `# @package NAME` header, among the comments at the start of a file.
pub(super) fn header_package(lines: &[String]) -> Option<String> {
    let comments = lines.iter().map(|line| line.trim()).take_while(|line| line.is_empty() || line.starts_with('#'));
    let mut headers = comments.filter_map(|line| line.trim_start_matches('#').trim_start().strip_prefix("@package"));
    headers.next().map(|package| package.trim().to_owned())
}
