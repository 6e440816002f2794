//! Reads the text of a config into a tree.

use std::path::Path;

use super::error::{Origin, Problem, Sources, code};
use super::import;
use super::node::{Kind, Node, Pos};
use super::suggest;
use super::yaml;
use crate::files;
use crate::text::shell_word;

/// Reads and parses one file; the tree is a map.
pub(super) fn read(path: &Path, sources: &mut Sources) -> Result<Node, Problem> {
    let failed = |message: String| Problem::new(code::FILE, None, message);
    let bytes = files::read(path, files::MAX_TEXT_BYTES).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            let problem = failed(format!("no such config file `{}`", path.display()));
            suggest::path(path).into_iter().fold(problem, Problem::help)
        }
        _ => failed(format!("cannot read the config file `{}`: {error}", path.display())),
    })?;
    let Ok(text) = String::from_utf8(bytes) else {
        return Err(failed(format!("the config file `{}` is not UTF-8 text", path.display())));
    };
    let text = text.trim_start_matches('\u{feff}');
    if let Some(trainer) = import::trainer(text) {
        let help = format!("translate it: `loongforge import {} -o my.yaml`", shell_word(path));
        return Err(failed(format!("`{}` was written for {trainer}", path.display())).help(help));
    }
    parse(path, text, sources)
}

/// Parses the text of the file `path`; the tree is a map.
pub(super) fn parse(path: &Path, text: &str, sources: &mut Sources) -> Result<Node, Problem> {
    let parsed = yaml::parse(text, sources.len(), 0);
    let source = sources.add(Origin::File(path.to_owned()), text);
    let node = parsed.map_err(|error| {
        let line = error.pos.map_or("", |pos| sources.line(pos));
        let help = line.contains("${").then_some("inside `{ }` and `[ ]` text with `${...}` must be quoted");
        let start = Pos { source, line: 1, column: 1, len: 1 };
        let problem = Problem::new(code::FILE, error.pos.or(Some(start)), format!("not valid YAML: {}", error.message));
        help.into_iter().fold(problem, Problem::help)
    })?;
    match node.kind {
        Kind::Map(_) => Ok(node),
        Kind::Null => Ok(Node::empty_map(node.pos)),
        _ => {
            let message = format!("a config must be a map of keys, found {}", node.describe());
            Err(Problem::new(code::FILE, node.pos, message))
        }
    }
}
