//! Edits of the tree by path: set, add, remove.

use super::error::{Problem, code};
use super::node::{Entry, Kind, Node, Pos, canonical, join};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Set,
    Add,
    Force,
    Drop,
}

/// One edit of a key.
#[derive(Debug)]
pub(super) struct Edit {
    pub op: Op,
    /// Names along the path, with the place of each.
    pub path: Vec<(String, Pos)>,
    pub value: Option<Node>,
}

impl Edit {
    /// Changes the tree.
    ///
    /// # Errors
    /// The tree has no place for the value: the problem names the path and what is there.
    pub fn apply(self, root: &mut Node) -> Result<(), Problem> {
        let mut node = root;
        let mut at = String::new();
        let (last, parents) = self.path.split_last().expect("a path has at least one name");
        for (name, pos) in parents {
            if node.kind == Kind::Null && self.op != Op::Drop {
                node.replace(Node::empty_map(Some(*pos)));
            }
            let name = canonical(&at, name);
            node = child(node, &at, &name, *pos, self.op)?;
            at = join(&at, &name);
        }
        let (name, pos) = (canonical(&at, &last.0), last.1);
        let path = join(&at, &name);
        if node.kind == Kind::Null && self.op != Op::Drop {
            node.replace(Node::empty_map(Some(pos)));
        }
        match (&mut node.kind, self.value) {
            (Kind::Map(map), None) => match map.remove(&name) {
                Some(_) => Ok(()),
                None => Err(nothing_to_drop(&path, pos)),
            },
            (Kind::Map(map), Some(mut value)) => {
                normalize(&mut value, &path)?;
                if self.op == Op::Add && map.contains_key(&name) {
                    let message = format!("`+{path}`: the key is already there");
                    let help = format!("`{path}=...` changes it, `++{path}=...` sets it in any case");
                    return Err(Problem::new(code::OVERRIDE, Some(pos), message).help(help));
                }
                match map.get_mut(&name) {
                    Some(entry) => entry.node.merge(value),
                    None => drop(map.insert(name, Entry { key: Some(pos), node: value })),
                }
                Ok(())
            }
            (Kind::Seq(items), value) => {
                let old = item(items, &at, &name, pos)?;
                match value {
                    Some(mut value) => {
                        normalize(&mut value, &path)?;
                        old.merge(value);
                    }
                    None => drop(items.remove(name.parse().expect("item() has read the index"))),
                }
                Ok(())
            }
            _ => Err(no_keys(&at, &name, pos)),
        }
    }
}

/// Returns the child node `name`, creating it if it is missing, except when something is removed.
fn child<'a>(node: &'a mut Node, at: &str, name: &str, pos: Pos, op: Op) -> Result<&'a mut Node, Problem> {
    match &mut node.kind {
        Kind::Map(map) if op == Op::Drop && !map.contains_key(name) => Err(nothing_to_drop(&join(at, name), pos)),
        Kind::Map(map) => {
            let new = || Entry { key: Some(pos), node: Node::empty_map(Some(pos)) };
            Ok(&mut map.entry(name.to_owned()).or_insert_with(new).node)
        }
        Kind::Seq(items) => item(items, at, name, pos),
        _ => Err(no_keys(at, name, pos)),
    }
}

fn item<'a>(items: &'a mut [Node], at: &str, name: &str, pos: Pos) -> Result<&'a mut Node, Problem> {
    let len = items.len();
    name.parse::<usize>().ok().and_then(|index| items.get_mut(index)).ok_or_else(|| {
        let message = format!("`{at}` is a list of {len}; `{name}` is not one of its indices");
        Problem::new(code::OVERRIDE, Some(pos), message).help("indices count from 0")
    })
}

fn nothing_to_drop(path: &str, pos: Pos) -> Problem {
    Problem::new(code::OVERRIDE, Some(pos), format!("`~{path}`: no file sets this key, so there is nothing to drop"))
}

fn no_keys(at: &str, name: &str, pos: Pos) -> Problem {
    let message = format!("`{at}` is a single value and has no key `{name}`");
    Problem::new(code::OVERRIDE, Some(pos), message)
}

/// Replaces `-` by `_` in every key below `path`.
pub(super) fn normalize(node: &mut Node, path: &str) -> Result<(), Problem> {
    match &mut node.kind {
        Kind::Map(map) => {
            for (name, mut entry) in std::mem::take(map) {
                let name = canonical(path, &name);
                let child = join(path, &name);
                normalize(&mut entry.node, &child)?;
                let pos = entry.key;
                if map.insert(name, entry).is_some() {
                    let message = format!("duplicate key `{child}`: `-` and `_` are the same in keys");
                    return Err(Problem::new(code::FILE, pos, message));
                }
            }
            Ok(())
        }
        Kind::Seq(items) => {
            items.iter_mut().enumerate().try_for_each(|(i, item)| normalize(item, &join(path, &i.to_string())))
        }
        _ => Ok(()),
    }
}
