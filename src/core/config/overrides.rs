//! Parses command-line overrides and environment variables into edits of the tree.
//!
//! `a.b=1` sets, `+a.b=1` adds a new key, `++a.b=1` sets in any case, `~a.b` removes; `group=option`, `group@package=option` select
//! from the `defaults` list. `LOONGFORGE__A__B=1` is `a.b=1`.

use serde_json::Number;

use super::edit::{Edit, Op};
use super::error::{Origin, Problem, Sources, code};
use super::node::{Kind, Node, Pos};
use super::yaml;

/// Maximum depth of a tree; deeper ones are mistakes and could overflow the stack.
const MAX_DEPTH: usize = 32;

/// One edit of the `defaults` list.
#[derive(Debug)]
pub(super) struct Choice {
    pub op: Op,
    /// The group as written, `group` or `group@package`.
    pub group: String,
    /// `None` if the entry is removed or switched off with `null`.
    pub option: Option<String>,
    pub pos: Pos,
    pub used: bool,
}

#[derive(Debug)]
pub(super) enum Override {
    Key(Edit),
    Group(Choice),
}

/// Parses override number `number`. `is_group` distinguishes groups of the `defaults` list from keys.
pub(super) fn parse(
    text: &str,
    number: usize,
    sources: &mut Sources,
    is_group: impl Fn(&str) -> bool,
) -> Result<Override, Problem> {
    let source = sources.add(Origin::Override(number), text);
    let whole = Pos { source, line: 1, column: 1, len: text.chars().count().max(1) };
    let bad = |message: &str| {
        Problem::new(code::OVERRIDE, Some(whole), message)
            .help("write `key=value`, `+key=value`, `++key=value`, `~key` or `group=option`")
    };
    let (op, rest) = if let Some(rest) = text.strip_prefix("++") {
        (Op::Force, rest)
    } else if let Some(rest) = text.strip_prefix('+') {
        (Op::Add, rest)
    } else if let Some(rest) = text.strip_prefix('~') {
        (Op::Drop, rest)
    } else {
        (Op::Set, text)
    };
    let (key, value) = match rest.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (rest, None),
    };
    if key.is_empty() {
        return Err(bad(&format!("override `{text}` names no key")));
    }
    if value.is_none() && op != Op::Drop {
        return Err(bad(&format!("override `{text}` has no `=`")));
    }
    let start = text.len() - rest.len();
    if key.contains(['/', '@']) || is_group(key) {
        let option = value.filter(|v| op != Op::Drop && *v != "null").map(str::to_owned);
        return Ok(Override::Group(Choice { op, group: key.to_owned(), option, pos: whole, used: false }));
    }
    let path = segments(key, start, source)?;
    let value = match value {
        Some(value) if op != Op::Drop => {
            Some(parse_value(value, source, text.chars().count() - value.chars().count())?)
        }
        _ => None,
    };
    Ok(Override::Key(Edit { op, path, value }))
}

/// Parses `LOONGFORGE__A__B`; returns `None` for any other variable.
pub(super) fn parse_env(name: &str, value: &str, sources: &mut Sources) -> Option<Result<Edit, Problem>> {
    let key = name.strip_prefix("LOONGFORGE__")?;
    let source = sources.add(Origin::Env(name.to_owned()), &format!("{name}={value}"));
    let mut column = "LOONGFORGE__".len() + 1;
    let mut path = Vec::new();
    for part in key.split("__") {
        let len = part.chars().count();
        let pos = Pos { source, line: 1, column, len: len.max(1) };
        if part.is_empty() || path.len() >= MAX_DEPTH {
            let help = "write the key in capitals with `__` for each dot, as in `LOONGFORGE__TRAIN__LR`";
            return Some(Err(Problem::new(code::OVERRIDE, Some(pos), format!("`{name}` names no key")).help(help)));
        }
        path.push((part.to_lowercase(), pos));
        column += len + 2;
    }
    let value = parse_value(value, source, name.chars().count() + 1);
    Some(value.map(|value| Edit { op: Op::Set, path, value: Some(value) }))
}

/// Splits `a.b[0].c` at its dots; `start` is the number of characters before it.
fn segments(key: &str, start: usize, source: usize) -> Result<Vec<(String, Pos)>, Problem> {
    let mut path = Vec::new();
    let mut column = start + 1;
    for part in key.split(['.', '[']) {
        let len = part.chars().count();
        let pos = Pos { source, line: 1, column, len: len.max(1) };
        let name = part.strip_suffix(']').unwrap_or(part);
        if name.is_empty() || path.len() >= MAX_DEPTH {
            let message = if name.is_empty() { "a name is missing" } else { "too many names" };
            return Err(Problem::new(code::OVERRIDE, Some(pos), format!("{message} in the key `{key}`")));
        }
        path.push((name.to_owned(), pos));
        column += len + 1;
    }
    Ok(path)
}

/// Parses a value: as YAML if it starts like a list, map or quoted text, else as a plain scalar.
fn parse_value(text: &str, source: usize, column: usize) -> Result<Node, Problem> {
    let pos = Pos { source, line: 1, column: column + 1, len: text.chars().count().max(1) };
    if text.starts_with(['[', '{', '"', '\'']) {
        return yaml::parse(text, source, column).map_err(|error| {
            let message = format!("the value is not YAML: {}", error.message);
            Problem::new(code::OVERRIDE, error.pos.or(Some(pos)), message)
                .help("quote the whole override for the shell, and text inside lists and maps for YAML")
        });
    }
    Ok(Node::new(scalar(text), Some(pos)))
}

/// Parses a plain scalar by the rules of YAML 1.2; an empty one is empty text.
pub(super) fn scalar(text: &str) -> Kind {
    match text {
        "null" | "~" => return Kind::Null,
        "true" => return Kind::Bool(true),
        "false" => return Kind::Bool(false),
        _ => {}
    }
    // Rust also reads `inf` and `nan`, which are words here.
    let numeric = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'))
        && !text.contains(|c: char| c.is_ascii_alphabetic() && !matches!(c, 'e' | 'E'));
    let number = || {
        let integer = text.parse::<i64>().map(Number::from).or_else(|_| text.parse::<u64>().map(Number::from));
        integer.ok().or_else(|| Number::from_f64(text.parse().ok()?))
    };
    // `007` is a name, not a count.
    let is_padded = text.starts_with('0') && text[1..].starts_with(|c: char| c.is_ascii_digit());
    match (numeric && !is_padded).then(number).flatten() {
        Some(number) => Kind::Number(number),
        None => Kind::Text(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(yaml: &str, overrides: &[&str]) -> Result<String, String> {
        let mut sources = Sources::default();
        let mut root = yaml::parse(yaml, 0, 0).unwrap();
        for (i, text) in overrides.iter().enumerate() {
            let parsed = parse(text, i + 1, &mut sources, |_| false).map_err(|p| p.message)?;
            let Override::Key(edit) = parsed else {
                return Err("a group".to_owned());
            };
            edit.apply(&mut root).map_err(|p| p.message)?;
        }
        Ok(root.to_json().to_string())
    }

    #[test]
    fn the_grammar() {
        let yaml = "a: {b: 1, c: [1, 2]}\n";
        let cases = [
            (&["a.b=2"][..], r#"{"a":{"b":2,"c":[1,2]}}"#),
            (&["+a.x=2e-5", "~a.c"], r#"{"a":{"b":1,"x":0.00002}}"#),
            (&["++a.b=x=y"], r#"{"a":{"b":"x=y","c":[1,2]}}"#),
            (&["a.c.1=7", "a.c[0]=8"], r#"{"a":{"b":1,"c":[8,7]}}"#),
            (&["~a.c.0"], r#"{"a":{"b":1,"c":[2]}}"#),
            (&["a.c=[3, 'x y']", "a.b="], r#"{"a":{"b":"","c":[3,"x y"]}}"#),
            (&["a={b: 5}", "d-e.f=null"], r#"{"a":{"b":5,"c":[1,2]},"d_e":{"f":null}}"#),
            (&["model.overrides.x-y=1"], r#"{"a":{"b":1,"c":[1,2]},"model":{"overrides":{"x-y":1}}}"#),
            (&["a.b=64MiB", "a.c=nan"], r#"{"a":{"b":"64MiB","c":"nan"}}"#),
        ];
        for (overrides, wanted) in cases {
            assert_eq!(edited(yaml, overrides).as_deref(), Ok(wanted), "{overrides:?}");
        }
    }

    #[test]
    fn mistakes() {
        let yaml = "a: {b: 1, c: [1, 2]}\n";
        let cases = [
            ("a.b", "has no `=`"),
            ("=1", "names no key"),
            ("a..b=1", "a name is missing"),
            ("+a.b=1", "already there"),
            ("~a.x", "nothing to drop"),
            ("~x.y", "nothing to drop"),
            ("a.b.c=1", "`a.b` is a single value"),
            ("a.c.9=1", "a list of 2"),
            ("a.c=[1", "not YAML"),
            ("a={x-y: 1, x_y: 2}", "duplicate key `a.x_y`"),
        ];
        for (text, message) in cases {
            let error = edited(yaml, &[text]).unwrap_err();
            assert!(error.contains(message), "{text}: {error}");
        }
        assert!(edited(yaml, &[&format!("{}b=1", "a.".repeat(100_000))]).unwrap_err().contains("too many names"));
    }

    #[test]
    fn groups_and_environment() {
        let mut sources = Sources::default();
        for (text, group, option) in
            [("models/q@m.f=x", "models/q@m.f", Some("x")), ("db=my", "db", Some("my")), ("~db", "db", None)]
        {
            match parse(text, 1, &mut sources, |name| name == "db") {
                Ok(Override::Group(c)) => {
                    assert_eq!((c.group.as_str(), c.option.as_deref()), (group, option))
                }
                other => panic!("{text}: {other:?}"),
            }
        }
        let edit = parse_env("LOONGFORGE__TRAIN__MIN_LR", "1e-5", &mut sources).unwrap().unwrap();
        assert_eq!(edit.path.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["train", "min_lr"]);
        assert_eq!(edit.path[1].1.column, 20);
        assert!(parse_env("HOME", "/", &mut sources).is_none());
        assert!(parse_env("LOONGFORGE__", "1", &mut sources).unwrap().is_err());
    }
}
