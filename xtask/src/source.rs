//! The paths, imports, modules and `unsafe` words of a Rust file, read from its tokens; comments and literals are none.
//!
//! It reads tokens, not types: a method call names no path, and a path that a macro puts together is not seen.

use std::str::FromStr;

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Ident, Span, TokenStream, TokenTree};

/// The references of one file to others.
#[derive(Debug, Default)]
pub struct Source {
    pub paths: Vec<Path>,
    pub modules: Vec<Module>,
    /// The lines of the word `unsafe`.
    pub unsafe_lines: Vec<usize>,
}

/// A path of at least two names, or an imported one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    pub names: Vec<String>,
    pub line: usize,
    /// The inline modules that it is written in, from the outside.
    pub within: Vec<String>,
    pub is_test: bool,
    /// The name that an import gives it; `*` imports all that is there.
    pub alias: Option<String>,
    /// It is a `pub use` of any visibility: it makes a name of another module one of this.
    pub is_export: bool,
}

/// `mod name;`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    pub name: String,
    /// The `#[path = "…"]` before it.
    pub file: Option<String>,
    pub within: Vec<String>,
    pub is_test: bool,
}

impl Source {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// The text is not made of Rust's tokens.
    pub fn read(text: &str) -> Result<Self> {
        let tokens = TokenStream::from_str(text).map_err(|error| anyhow!("{error}"))?;
        let mut source = Self::default();
        source.scan(tokens, &[], false);
        Ok(source)
    }

    fn scan(&mut self, tokens: TokenStream, within: &[String], is_test: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut attributes = Attributes::default();
        let mut at = 0;
        while at < tokens.len() {
            let is_test = is_test || attributes.is_test;
            let path =
                |names, line| Path { names, line, within: within.into(), is_test, alias: None, is_export: false };
            match &tokens[at] {
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    attributes.read(tokens.get(at + 1));
                }
                TokenTree::Punct(punct) if punct.as_char() == ';' => attributes = Attributes::default(),
                TokenTree::Group(group) => {
                    self.scan(group.stream(), within, is_test);
                    if group.delimiter() == Delimiter::Brace {
                        attributes = Attributes::default();
                    }
                }
                TokenTree::Ident(word) if *word == "unsafe" => self.unsafe_lines.push(line(word.span())),
                TokenTree::Ident(word) if *word == "mod" => {
                    match (tokens.get(at + 1), tokens.get(at + 2)) {
                        (Some(TokenTree::Ident(name)), Some(TokenTree::Group(body))) => {
                            let within = [within, &[name.to_string()]].concat();
                            self.scan(body.stream(), &within, is_test);
                            at += 2;
                        }
                        (Some(TokenTree::Ident(name)), _) => {
                            let (name, file) = (name.to_string(), attributes.file.take());
                            self.modules.push(Module { name, file, within: within.into(), is_test });
                            at += 1;
                        }
                        _ => {}
                    }
                    attributes = Attributes::default();
                }
                // `use<'a>` bounds an `impl Trait`.
                TokenTree::Ident(word) if *word == "use" && !is_punct(tokens.get(at + 1), '<') => {
                    let is_export = tokens[..at].iter().rev().find_map(visibility).unwrap_or(false);
                    let found = self.paths.len();
                    at = self.import(&tokens, at + 1, &path(Vec::new(), line(word.span())));
                    self.paths[found..].iter_mut().for_each(|path| path.is_export = is_export);
                    continue;
                }
                TokenTree::Ident(word) if starts_path(&tokens, at) => {
                    let mut names = vec![word.to_string()];
                    while let Some(next) = name_after_colons(&tokens, at) {
                        names.push(next.to_string());
                        at += 3;
                    }
                    self.paths.push(path(names, line(word.span())));
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Reads the tree of an import from `at`, under the names of `outer`; returns where it ends.
    fn import(&mut self, tokens: &[TokenTree], mut at: usize, outer: &Path) -> usize {
        let mut path = outer.clone();
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Ident(word) if *word == "as" => {
                    path.alias = tokens.get(at + 1).map(ToString::to_string);
                    at += 1;
                }
                TokenTree::Ident(name) => {
                    path.line = line(name.span());
                    path.names.push(name.to_string());
                }
                TokenTree::Punct(punct) if punct.as_char() == '*' => path.alias = Some("*".into()),
                TokenTree::Group(group) => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    let mut next = 0;
                    while next < inner.len() {
                        next = self.import(&inner, next, &path) + 1;
                    }
                    path.names.clear();
                }
                TokenTree::Punct(punct) if matches!(punct.as_char(), ',' | ';') => break,
                _ => {}
            }
            at += 1;
        }
        if path.names.len() > outer.names.len() {
            // `a::{self, b}` imports `a`.
            if path.names.len() > 1 && path.names.last().is_some_and(|name| name == "self") {
                path.names.pop();
            }
            path.alias = path.alias.or_else(|| path.names.last().cloned());
            self.paths.push(path);
        } else if path.alias.is_some() && !path.names.is_empty() {
            self.paths.push(path);
        }
        at
    }
}

/// The attributes before an item, as far as they say where a module is.
#[derive(Default)]
struct Attributes {
    is_test: bool,
    file: Option<String>,
}

impl Attributes {
    fn read(&mut self, attribute: Option<&TokenTree>) {
        let Some(TokenTree::Group(group)) = attribute else { return };
        let text = group.stream().to_string();
        let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        self.is_test |= words.first() == Some(&"cfg") && words.contains(&"test");
        if let Some(value) = text.strip_prefix("path = ") {
            self.file = Some(value.trim_matches('"').to_owned());
        }
    }
}

/// Says of a token before an import whether it makes it an export; `None` where the token before it must be asked.
fn visibility(token: &TokenTree) -> Option<bool> {
    match token {
        // `pub(crate)`
        TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis => None,
        TokenTree::Ident(word) => Some(*word == "pub"),
        _ => Some(false),
    }
}

fn starts_path(tokens: &[TokenTree], at: usize) -> bool {
    let is_inner = at >= 2 && is_punct(tokens.get(at - 1), ':') && is_punct(tokens.get(at - 2), ':');
    // `::name` is a path from the root of all crates; after `name` or `>` it goes on.
    let goes_on = is_inner && at >= 3 && matches!(&tokens[at - 3], TokenTree::Ident(_) | TokenTree::Group(_));
    let goes_on = goes_on || is_inner && at >= 3 && is_punct(tokens.get(at - 3), '>');
    // `pub(in path)` imports nothing.
    let is_visibility = at == 1 && matches!(&tokens[0], TokenTree::Ident(word) if *word == "in");
    !goes_on && !is_visibility && name_after_colons(tokens, at).is_some() || extern_crate(tokens, at)
}

fn extern_crate(tokens: &[TokenTree], at: usize) -> bool {
    at > 0 && matches!(&tokens[at - 1], TokenTree::Ident(word) if *word == "crate")
}

/// Returns the name in `:: name` behind the token at `at`.
fn name_after_colons(tokens: &[TokenTree], at: usize) -> Option<&Ident> {
    match (tokens.get(at + 1), tokens.get(at + 2), tokens.get(at + 3)) {
        (one, two, Some(TokenTree::Ident(name))) if is_punct(one, ':') && is_punct(two, ':') => Some(name),
        _ => None,
    }
}

fn is_punct(token: Option<&TokenTree>, char: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == char)
}

fn line(span: Span) -> usize {
    span.start().line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        Source::read(text).unwrap().paths.iter().map(|path| path.names.join("::")).collect()
    }

    #[test]
    fn comments_and_literals_name_nothing() {
        let text = "// crate::a\n/* crate::b /* crate::c */ */ let s = \"crate::d\"; r#\"crate::e \"# 'l; unsafe {}\nx";
        let source = Source::read(text).unwrap();
        assert_eq!(source.paths, []);
        assert_eq!(source.unsafe_lines, [2]);
    }

    #[test]
    fn imports_are_flattened_and_keep_their_lines() {
        let text = "use crate::{\n  config::{self, Run as R, load::*}, // crate::no\n  data,\n};";
        let found = Source::read(text).unwrap().paths;
        let shown: Vec<String> = found
            .iter()
            .map(|path| format!("{} {} {}", path.line, path.names.join("::"), path.alias.as_deref().unwrap_or("-")))
            .collect();
        let expected =
            ["2 crate::config config", "2 crate::config::Run R", "2 crate::config::load *", "3 crate::data data"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn paths_start_where_no_other_goes_on() {
        assert_eq!(
            names("pub(crate) fn f(x: crate :: data::X) { crate::engine::go(); x.y::<Z>() }"),
            ["crate::data::X", "crate::engine::go"]
        );
        assert_eq!(
            names("use ::actix; extern crate tokio; fn f(_: ::a::B) -> impl T + use<'a> {}"),
            ["actix", "tokio", "a::B"]
        );
        assert_eq!(names("pub(in crate::a) fn f() { println!(\"{}\", super::b()) }"), ["super::b"]);
    }

    #[test]
    fn modules_and_tests_are_told_apart() {
        let text = "mod a; #[cfg(test)] #[path = \"b_tests.rs\"] mod b; #[cfg(test)] mod tests { use super::x::Y; } use a::C; \
                    pub(crate) use a::D;";
        let source = Source::read(text).unwrap();
        let modules: Vec<_> = source.modules.iter().map(|m| (m.name.as_str(), m.file.as_deref(), m.is_test)).collect();
        assert_eq!(modules, [("a", None, false), ("b", Some("b_tests.rs"), true)]);
        let paths: Vec<_> = source.paths.iter().map(|p| (p.within.len(), p.is_test, p.is_export)).collect();
        assert_eq!(paths, [(1, true, false), (0, false, false), (0, false, true)]);
    }
}
