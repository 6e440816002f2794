//! Parses YAML text into a [`Node`]. The only file that uses the YAML library.
//!
//! Sizes are bounded, duplicate keys are errors, there are no includes, and `yes`/`on` are text, not booleans.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;
use serde_saphyr::{DuplicateKeyPolicy, Location, Spanned};

use super::node::{Entry, Kind, Node, Pos};

/// The reason why a text is not YAML; the place is `None` when the library gives none.
#[derive(Debug)]
pub(super) struct YamlError {
    pub pos: Option<Pos>,
    pub message: String,
}

/// The largest config file read, in bytes.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// Parses one document. `source` and `column` (the number of characters before `text` on its first line) place it.
pub(super) fn parse(text: &str, source: usize, column: usize) -> Result<Node, YamlError> {
    parse_as(text, Position { source, column, is_config: true })
}

fn parse_as(text: &str, place: Position) -> Result<Node, YamlError> {
    if text.len() > MAX_BYTES {
        return Err(YamlError { pos: None, message: format!("larger than {MAX_BYTES} bytes") });
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 32, max_nodes: 20_000, max_events: 50_000, max_documents: 1, max_aliases: 200, max_anchors: 200,
            max_recorded_anchor_events: 20_000, max_merge_keys: 200, max_inclusion_depth: 0,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        strict_booleans: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    };
    match serde_saphyr::from_str_with_options::<Spanned<Raw>>(text, options) {
        Ok(raw) => place.node(raw),
        Err(error) => {
            let error = error.without_snippet();
            let pos = error.location().and_then(|location| place.pos(&location));
            Err(YamlError { pos, message: plain(&error.to_string()) })
        }
    }
}

/// Reads a YAML document as JSON, under the limits of a config file.
///
/// # Errors
/// Returns in words why it is not YAML.
pub fn read_yaml(text: &str) -> Result<serde_json::Value, String> {
    let place = Position { source: 0, column: 0, is_config: false };
    parse_as(text, place).map(|node| node.to_json()).map_err(|error| error.message)
}

/// A tree as the library gives it.
enum Raw {
    Scalar(Kind),
    Seq(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

struct Position {
    source: usize,
    column: usize,
    /// Keys of configs have no colon: `{r:4}` is `{"r:4": null}` in YAML, and meant is `{r: 4}`.
    is_config: bool,
}

impl Position {
    fn pos(&self, location: &Location) -> Option<Pos> {
        let line = location.line() as usize;
        let shift = if line == 1 { self.column } else { 0 };
        let column = location.column() as usize + shift;
        (line > 0).then(|| Pos { source: self.source, line, column, len: location.span().len() as usize })
    }

    fn node(&self, raw: Spanned<Raw>) -> Result<Node, YamlError> {
        let pos = self.pos(&raw.referenced);
        let kind = match raw.value {
            Raw::Scalar(kind) => kind,
            Raw::Seq(items) => Kind::Seq(items.into_iter().map(|item| self.node(item)).collect::<Result<_, _>>()?),
            Raw::Map(pairs) => {
                let mut map = BTreeMap::new();
                for (key, value) in pairs {
                    let key_pos = self.pos(&key.referenced);
                    if let (Some((name, given)), Raw::Scalar(Kind::Null)) = (key.value.split_once(':'), &value.value)
                        && self.is_config
                    {
                        let message = format!("a space is missing after a colon: `{name}: {given}`");
                        return Err(YamlError { pos: key_pos, message });
                    }
                    let entry = Entry { key: key_pos, node: self.node(value)? };
                    map.insert(key.value, entry);
                }
                Kind::Map(map)
            }
        };
        Ok(Node::new(kind, pos))
    }
}

/// Returns the library's message without the place, which is shown apart, and without advice to programmers.
fn plain(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    let said = first.rfind(" at line ").map_or(first, |end| &first[..end]);
    if said.starts_with("budget breached: Documents") {
        return "more than one YAML document".to_owned();
    }
    if said.contains("tabs disallowed") {
        return "a tab: indent with spaces".to_owned();
    }
    if said.contains("':' may not precede any of") {
        return "a space is missing after a colon: `key: value`".to_owned();
    }
    let said = said.replace("budget breached:", "too large or too deep:");
    said.split(", set DuplicateKeyPolicy")
        .next()
        .unwrap_or_default()
        .replace("duplicate mapping key: ", "duplicate key ")
}

/// Writes a value as block-style YAML.
pub(super) fn dump(value: &serde_json::Value) -> String {
    serde_saphyr::to_string(value).unwrap_or_else(|error| format!("# cannot be written as YAML: {error}\n"))
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Raw, E> {
        Ok(Raw::Scalar(Kind::Null))
    }

    fn visit_none<E: de::Error>(self) -> Result<Raw, E> {
        Ok(Raw::Scalar(Kind::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Raw, D::Error> {
        Raw::deserialize(deserializer)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Scalar(Kind::Bool(value)))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Scalar(Kind::Number(value.into())))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Scalar(Kind::Number(value.into())))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Raw, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("not a finite number"))?;
        Ok(Raw::Scalar(Kind::Number(number)))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Scalar(Kind::Text(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Raw::Seq(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Raw::Map(pairs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(node: Option<Pos>) -> (usize, usize, usize) {
        node.map(|p| (p.line, p.column, p.len)).unwrap()
    }

    #[test]
    fn keys_and_values_know_their_place() {
        let tree = parse("a: 1\nb:\n  c: 2e-5\n  d: [1, {é: x, f: y}]\n", 0, 0).unwrap();
        assert_eq!(at(tree.get("b.c").unwrap().pos), (3, 6, 4));
        let key = |parent: &str, name: &str| tree.get(parent).unwrap().map().unwrap()[name].key;
        assert_eq!(at(key("b", "c")), (3, 3, 1));
        assert_eq!(at(key("b.d.1", "f")), (4, 17, 1));
        let shifted = parse("[x, y]", 0, 10).unwrap();
        assert_eq!(at(shifted.get("1").unwrap().pos), (1, 15, 1));
    }

    #[test]
    fn scalars_follow_yaml_1_2() {
        let tree = parse("a: yes\nb: 0x1F\nc: ~\nd:\ne: 2e-5\nf: '1'\n", 0, 0).unwrap();
        let wanted = serde_json::json!({"a": "yes", "b": 31, "c": null, "d": null, "e": 2e-5, "f": "1"});
        assert_eq!(tree.to_json(), wanted);
    }

    #[test]
    fn what_is_not_accepted_says_where() {
        let cases = [
            ("a: 1\nb: 2\na: 3\n", "duplicate key a", 3),
            ("a: 1\n---\nb: 2\n", "more than one YAML document", 2),
            ("a: !include x\n", "unsupported tag `!include`", 1),
            ("a:\n\tb: 1\n", "a tab: indent with spaces", 2),
            ("a: .inf\n", "non-finite", 1),
            ("a: [1,\n", "unclosed bracket", 1),
            // Hydra reads these as maps, YAML as keys without values.
            ("a: 1\nb: {r:4, c: 2}\n", "a space is missing after a colon: `r: 4`", 2),
            ("a: {b:[1]}\n", "a space is missing after a colon: `key: value`", 1),
        ];
        for (text, message, line) in cases {
            let error = parse(text, 0, 0).unwrap_err();
            assert!(error.message.contains(message) && !error.message.contains("at line"), "{text:?}: {error:?}");
            assert_eq!(error.pos.unwrap().line, line, "{text:?}");
        }
        // A document that is no config may have such keys.
        assert_eq!(read_yaml("{a:b}"), Ok(serde_json::json!({ "a:b": null })));
    }

    #[test]
    fn bombs_are_defused() {
        let deep = "[".repeat(10_000);
        assert!(parse(&deep, 0, 0).is_err());
        let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for i in 1..10 {
            let refs = vec![format!("*a{}", i - 1); 10].join(", ");
            laughs += &format!("a{i}: &a{i} [{refs}]\n");
        }
        assert!(parse(&laughs, 0, 0).is_err());
        assert!(parse(&"# x\n".repeat(MAX_BYTES), 0, 0).is_err());
    }
}
