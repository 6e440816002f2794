//! `${a.b}` and `${oc.env:NAME,default}` in values.
//!
//! The set of resolvers is fixed: nothing is evaluated or imported. `${.b}` is a sibling, `${..b}` a sibling of the parent, as in
//! OmegaConf; `\${` is a literal `${`. A value that is a single interpolation keeps the type of the value that it names.

use std::collections::BTreeSet;
use std::iter::Peekable;

use super::error::{Problem, code};
use super::node::{Entry, Kind, Node, canonical, join};
use super::overrides::scalar;

/// Maximum depth of references to references.
const MAX_DEPTH: usize = 16;
/// Mistakes that get a suggestion; no more are shown.
const MAX_SUGGESTED: usize = 20;
/// Maximum number of interpolations in one config, copies included.
const MAX_STEPS: usize = 10_000;
/// Maximum length of the resulting text, in bytes.
const MAX_TEXT: usize = 64 << 10;

struct Resolver<'a> {
    root: &'a Node,
    env: &'a dyn Fn(&str) -> Option<String>,
    /// Paths being resolved, to find circles.
    open: Vec<String>,
    steps: usize,
    /// Suggestions made; each looks at every key.
    suggested: usize,
}

/// A failure, and the way to fix it.
struct Failure {
    code: &'static str,
    message: String,
    help: Option<String>,
}

impl Failure {
    fn new(message: impl Into<String>) -> Self {
        Self { code: code::INTERPOLATION, message: message.into(), help: None }
    }

    fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// Resolves every interpolation. Paths of values that could not be resolved are added to `failed`.
pub(super) fn resolve(
    root: &mut Node,
    env: &dyn Fn(&str) -> Option<String>,
    problems: &mut Vec<Problem>,
    failed: &mut BTreeSet<String>,
) {
    let tree: &Node = root;
    let mut found = Vec::new();
    tree.leaves("", &mut |path, node| {
        if matches!(&node.kind, Kind::Text(text) if text.contains("${")) {
            found.push((path.to_owned(), node));
        }
    });
    let mut resolver = Resolver { root: tree, env, open: Vec::new(), steps: 0, suggested: 0 };
    let mut resolved = Vec::new();
    for (path, node) in found {
        match resolver.node(node, &path) {
            Ok(kind) => resolved.push((path, kind)),
            Err(failure) => {
                // A schema default that cannot be resolved refers to a missing key, which is reported as such.
                if let Some(pos) = node.pos {
                    let problem = Problem::new(failure.code, Some(pos), failure.message);
                    problems.push(failure.help.into_iter().fold(problem, Problem::help));
                }
                failed.insert(path);
            }
        }
    }
    put(root, "", &mut resolved.into_iter().peekable());
}

/// Puts values in their places, in the order of [`Node::leaves`]: a key may contain dots, so that its path does not lead to it.
fn put(node: &mut Node, path: &str, resolved: &mut Peekable<impl Iterator<Item = (String, Kind)>>) {
    match &mut node.kind {
        Kind::Map(map) if !map.is_empty() => {
            map.iter_mut().for_each(|(name, entry)| put(&mut entry.node, &join(path, name), resolved));
        }
        Kind::Seq(items) if !items.is_empty() => {
            items.iter_mut().enumerate().for_each(|(i, item)| put(item, &join(path, &i.to_string()), resolved));
        }
        kind => {
            if let Some((_, value)) = resolved.next_if(|(at, _)| at == path) {
                *kind = value;
            }
        }
    }
}

impl Resolver<'_> {
    /// Returns the value of the node at `path` with all interpolations below it resolved.
    fn node(&mut self, node: &Node, path: &str) -> Result<Kind, Failure> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err(Failure::new("too many interpolations"));
        }
        Ok(match &node.kind {
            Kind::Text(text) if text.contains("${") => {
                if self.open.iter().any(|open| open == path) {
                    let chain = [self.open.join("` -> `"), path.to_owned()].join("` -> `");
                    return Err(Failure::new(format!("the interpolation is circular: `{chain}`")));
                }
                if self.open.len() >= MAX_DEPTH {
                    return Err(Failure::new(format!("interpolations nested deeper than {MAX_DEPTH}")));
                }
                self.open.push(path.to_owned());
                let value = self.text(text, path, 0);
                self.open.pop();
                value?
            }
            Kind::Seq(items) => {
                let items = items.iter().enumerate();
                let resolved = items
                    .map(|(i, item)| Ok(Node { kind: self.node(item, &join(path, &i.to_string()))?, ..item.clone() }));
                Kind::Seq(resolved.collect::<Result<_, Failure>>()?)
            }
            Kind::Map(map) => {
                let mut resolved = std::collections::BTreeMap::new();
                for (name, entry) in map {
                    let kind = self.node(&entry.node, &join(path, name))?;
                    resolved.insert(name.clone(), Entry { key: entry.key, node: Node { kind, ..entry.node.clone() } });
                }
                Kind::Map(resolved)
            }
            scalar => scalar.clone(),
        })
    }

    /// Returns the value of the text at `path`.
    fn text(&mut self, text: &str, path: &str, depth: usize) -> Result<Kind, Failure> {
        if depth > MAX_DEPTH {
            return Err(Failure::new(format!("interpolations nested deeper than {MAX_DEPTH}")));
        }
        let mut out = String::new();
        let mut rest = text;
        while let Some(start) = rest.find("${") {
            if let Some(literal) = rest[..start].strip_suffix('\\') {
                out += literal;
                out += "${";
                rest = &rest[start + 2..];
                continue;
            }
            out += &rest[..start];
            let body = &rest[start + 2..];
            let end = closing(body).ok_or_else(|| Failure::new(format!("`{}` has no closing `}}`", &rest[start..])))?;
            let expression = &body[..end];
            rest = &body[end + 1..];
            if out.is_empty() && rest.is_empty() {
                return self.expression(expression, path, depth);
            }
            if let Some(written) = self.written(expression) {
                out += &written;
            } else {
                match self.expression(expression, path, depth)? {
                    Kind::Seq(_) | Kind::Map(_) => {
                        return Err(Failure::new(format!(
                            "`${{{expression}}}` is a list or map and cannot be part of a text"
                        )));
                    }
                    scalar => out += &Node::new(scalar, None).to_text(),
                }
            }
            if out.len() > MAX_TEXT {
                return Err(Failure::new("the interpolated text is too long"));
            }
        }
        out += rest;
        Ok(Kind::Text(out))
    }

    /// Returns the value of an environment variable, or its default, as it is written: within a text `1.10` is no number.
    fn written(&self, body: &str) -> Option<String> {
        let (_, arguments) = body.split_once(':').filter(|(resolver, _)| resolver.trim() == "oc.env")?;
        let (name, default) = name_and_default(arguments);
        let default = || default.filter(|default| !default.contains("${"));
        (self.env)(name).or_else(|| Some(default()?.trim_matches(['"', '\'']).to_owned()))
    }

    /// Returns the value of the expression between `${` and `}`.
    fn expression(&mut self, body: &str, path: &str, depth: usize) -> Result<Kind, Failure> {
        let (resolver, arguments) = match body.split_once(':') {
            Some((resolver, arguments)) if !resolver.contains("${") => (resolver.trim(), arguments),
            _ => return self.reference(body, path, depth),
        };
        if resolver != "oc.env" {
            let refused = matches!(resolver, "eval" | "oc.eval" | "python" | "exec");
            let failure = Failure::new(format!(
                "`${{{resolver}:...}}` is {}",
                if refused { "refused: a config cannot run code" } else { "not a resolver" }
            ));
            let code = if refused { code::REFUSED } else { code::INTERPOLATION };
            return Err(Failure { code, ..failure.help("resolvers are `${key}` and `${oc.env:NAME,default}`") });
        }
        let (name, default) = name_and_default(arguments);
        match ((self.env)(name), default) {
            (Some(value), _) => Ok(scalar(&value)),
            (None, Some(default)) if default.contains("${") => self.text(default, path, depth + 1),
            (None, Some(default)) => Ok(scalar(default.trim_matches(['"', '\'']))),
            (None, None) => Err(Failure::new(format!("the environment variable `{name}` is not set"))
                .help(format!("set it, or give a default: `${{oc.env:{name},default}}`"))),
        }
    }

    fn reference(&mut self, body: &str, path: &str, depth: usize) -> Result<Kind, Failure> {
        let key = match self.text(body, path, depth + 1)? {
            Kind::Text(key) => key,
            other => Node::new(other, None).to_text(),
        };
        let key = key.trim();
        let relative = key.len() - key.trim_start_matches('.').len();
        let mut parents: Vec<&str> = path.split('.').collect();
        parents.truncate(if relative == 0 { 0 } else { parents.len().saturating_sub(relative) });
        let base = parents.join(".");
        let target = key[relative..].split('.').fold(base, |at, name| join(&at, &canonical(&at, name)));
        let root = self.root;
        match root.get(&target) {
            Some(node) => self.node(node, &target),
            None => {
                let mut names = Vec::new();
                if self.suggested < MAX_SUGGESTED {
                    root.leaves("", &mut |path, _| names.push(path.to_owned()));
                    self.suggested += 1;
                }
                let near = super::suggest::nearest(&target, names.iter().map(String::as_str));
                let failure = Failure::new(format!("`${{{body}}}`: there is no key `{target}`"));
                Err(near.into_iter().fold(failure, |f, near| f.help(format!("did you mean `${{{near}}}`?"))))
            }
        }
    }
}

/// Splits the arguments of `oc.env` into the variable's name and its default.
fn name_and_default(arguments: &str) -> (&str, Option<&str>) {
    match arguments.split_once(',') {
        Some((name, default)) => (name.trim(), Some(default.trim())),
        None => (arguments.trim(), None),
    }
}

/// Returns the index of the brace that closes `body`.
fn closing(body: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (i, byte) in body.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some(i),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::yaml;

    fn resolved(text: &str) -> (String, Vec<Problem>) {
        let mut root = yaml::parse(text, 0, 0).unwrap();
        let (mut problems, mut failed) = (Vec::new(), BTreeSet::new());
        let set = [("SET", "7"), ("VERSION", "1.10"), ("COMMIT", "1234e56")];
        let env = |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        resolve(&mut root, &env, &mut problems, &mut failed);
        assert_eq!(problems.len(), failed.len());
        (root.to_json().to_string(), problems)
    }

    #[test]
    fn references_and_environment() {
        let cases = [
            ("a: {b: 1}\nc: ${a.b}\nd: x${a.b}y\n", r#"{"a":{"b":1},"c":1,"d":"x1y"}"#),
            ("a: {b: '${.c}', c: '${..d}'}\nd: 2e-5\n", r#"{"a":{"b":0.00002,"c":0.00002},"d":0.00002}"#),
            ("a: '${oc.env:SET}'\nb: '${oc.env:UNSET,null}'\n", r#"{"a":7,"b":null}"#),
            ("a: '${oc.env:UNSET,${b}}'\nb: x\n", r#"{"a":"x","b":"x"}"#),
            ("a: v${oc.env:VERSION}-${oc.env:COMMIT}\n", r#"{"a":"v1.10-1234e56"}"#),
            ("a: ${oc.env:NONE,2.0}.x\n", r#"{"a":"2.0.x"}"#),
            ("a: {x: 1}\nb: '${a}'\n", r#"{"a":{"x":1},"b":{"x":1}}"#),
            ("a_b: 1\nc: '${a-b}'\n", r#"{"a_b":1,"c":1}"#),
            ("a: {b.c: '${d}', e: ['${d}']}\nd: 1\n", r#"{"a":{"b.c":1,"e":[1]},"d":1}"#),
            ("a: \\${b}\nk: b\nb: 3\nd: '${${k}}'\n", r#"{"a":"${b}","b":3,"d":3,"k":"b"}"#),
        ];
        for (yaml, wanted) in cases {
            let (got, problems) = resolved(yaml);
            assert!(problems.is_empty(), "{yaml}: {problems:?}");
            assert_eq!(got, wanted, "{yaml}");
        }
    }

    #[test]
    fn failures_say_why() {
        let cases = [
            ("a: ${b}\nb: ${a}\n", "is circular: `a` -> `b` -> `a`"),
            ("a: ${nope}\n", "there is no key `nope`"),
            ("a: ${oc.env:UNSET}\n", "`UNSET` is not set"),
            ("a: ${eval:1+1}\n", "refused: a config cannot run code"),
            ("a: ${now:%Y}\n", "not a resolver"),
            ("a: ${b\n", "no closing `}`"),
            ("a: x${b}\nb: [1]\n", "a list or map"),
        ];
        for (yaml, message) in cases {
            let (_, problems) = resolved(yaml);
            assert!(problems.iter().any(|p| p.message.contains(message)), "{yaml}: {problems:?}");
        }
    }

    #[test]
    fn copies_are_bounded() {
        let mut yaml = "a0: [1, 1, 1, 1, 1, 1, 1, 1]\n".to_owned();
        for i in 1..12 {
            let last = format!("'${{a{}}}'", i - 1);
            yaml += &format!("a{i}: [{}]\n", vec![last; 8].join(", "));
        }
        let (_, problems) = resolved(&yaml);
        assert!(problems.iter().any(|p| p.message.contains("too many") || p.message.contains("deeper")));
    }
}
