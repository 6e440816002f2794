//! The TOML of a config: sections, lists of sections, and keys with texts of one line, numbers, truth values and lists of these.

use serde_json::{Map, Number, Value};

/// The greatest depth of lists within each other.
const MAX_DEPTH: usize = 8;

/// Reads a file of TOML; a key is dotted, with its section. Sections `[[name]]` are a list under their name.
///
/// # Errors
/// Says in which line it is no TOML, or of a kind that configs do not have.
pub(super) fn read(text: &str) -> Result<Map<String, Value>, String> {
    let mut reader = Reader { rest: text, line: 1 };
    let (mut all, mut section, mut listed) = (Map::new(), String::new(), None);
    loop {
        reader.skip(true);
        if reader.rest.is_empty() {
            close(&mut all, listed);
            return Ok(all);
        }
        if reader.eat("[[") {
            close(&mut all, listed);
            let name = reader.name()?;
            reader.expect("]]")?;
            if !all.entry(name.as_str()).or_insert_with(|| Vec::<Value>::new().into()).is_array() {
                return Err(reader.error(&format!("the key {name} is there twice")));
            }
            section.clear();
            listed = Some((name, Map::new()));
        } else if reader.eat("[") {
            close(&mut all, listed.take());
            section = format!("{}.", reader.name()?);
            reader.expect("]")?;
        } else {
            let key = format!("{section}{}", reader.name()?);
            reader.expect("=")?;
            let value = reader.value(0)?;
            let fields = listed.as_mut().map_or(&mut all, |(_, fields)| fields);
            if fields.contains_key(&key) {
                return Err(reader.error(&format!("the key {key} is there twice")));
            }
            fields.insert(key, value);
        }
        reader.end_of_line()?;
    }
}

/// Adds a section that has ended to the list of its name.
fn close(all: &mut Map<String, Value>, section: Option<(String, Map<String, Value>)>) {
    let Some((name, fields)) = section else { return };
    if let Some(list) = all.get_mut(&name).and_then(Value::as_array_mut) {
        list.push(fields.into());
    }
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Reader<'a> {
    fn error(&self, what: &str) -> String {
        format!("line {}: {what}", self.line)
    }

    /// Goes over blanks, and over line breaks and comments if they may be here.
    fn skip(&mut self, over_lines: bool) {
        loop {
            self.rest = self.rest.trim_start_matches([' ', '\t', '\r']);
            if over_lines && self.rest.starts_with('#') {
                self.rest = self.rest.find('\n').map_or("", |end| &self.rest[end..]);
            } else if over_lines && self.eat("\n") {
                self.line += 1;
            } else {
                return;
            }
        }
    }

    fn eat(&mut self, what: &str) -> bool {
        let rest = self.rest.strip_prefix(what);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, what: &str) -> Result<(), String> {
        self.skip(false);
        if self.eat(what) { Ok(()) } else { Err(self.error(&format!("expected `{what}`"))) }
    }

    fn end_of_line(&mut self) -> Result<(), String> {
        self.skip(false);
        match self.rest.chars().next() {
            None | Some('\n' | '#') => Ok(()),
            Some(_) => Err(self.error("expected the end of the line")),
        }
    }

    /// Takes the characters up to a mark that ends a name or a value.
    fn word(&mut self, is_end: impl Fn(char) -> bool) -> &'a str {
        let (word, rest) = self.rest.split_at(self.rest.find(is_end).unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }

    /// Returns the name of a section or key, which may have several parts.
    fn name(&mut self) -> Result<String, String> {
        let mut parts = Vec::new();
        loop {
            self.skip(false);
            let part = match self.rest.starts_with(['"', '\'']) {
                true => self.text()?,
                false => self.word(|c| !(c.is_ascii_alphanumeric() || c == '_' || c == '-')).to_owned(),
            };
            if part.is_empty() {
                return Err(self.error("expected the name of a section or a key"));
            }
            parts.push(part);
            self.skip(false);
            if !self.eat(".") {
                return Ok(parts.join("."));
            }
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        self.skip(false);
        match self.rest.chars().next() {
            Some('"' | '\'') => self.text().map(Value::from),
            Some('[') => self.list(depth),
            _ => {
                let word = self.word(|c| c.is_whitespace() || ",]#".contains(c));
                scalar(word).ok_or_else(|| {
                    self.error(&format!("`{word}` is no text, number, truth value or list; other values are not read"))
                })
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, String> {
        if depth == MAX_DEPTH {
            return Err(self.error(&format!("more than {MAX_DEPTH} lists are within each other")));
        }
        self.expect("[")?;
        let mut list = Vec::new();
        loop {
            self.skip(true);
            if self.eat("]") {
                return Ok(list.into());
            }
            list.push(self.value(depth + 1)?);
            self.skip(true);
            if !self.eat(",") {
                self.expect("]")?;
                return Ok(list.into());
            }
        }
    }

    /// Returns a text in quotes; in single ones nothing is escaped.
    fn text(&mut self) -> Result<String, String> {
        let several = ["\"\"\"", "'''"];
        if several.iter().any(|quotes| self.rest.starts_with(quotes)) {
            return Err(self.error("a text of several lines is not read"));
        }
        let is_plain = self.rest.starts_with('\'');
        let mut chars = self.rest.char_indices().skip(1);
        let mut text = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' | '\'' if (c == '\'') == is_plain => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(text);
                }
                '\n' => break,
                '\\' if !is_plain => match chars.next() {
                    Some((_, c @ ('"' | '\\'))) => text.push(c),
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, 't')) => text.push('\t'),
                    _ => return Err(self.error("of escapes only \\\", \\\\, \\n and \\t are read")),
                },
                c => text.push(c),
            }
        }
        Err(self.error("a quote does not end"))
    }
}

/// Returns a truth value or a number.
fn scalar(word: &str) -> Option<Value> {
    let digits = word.replace('_', "");
    match word {
        "true" => Some(true.into()),
        "false" => Some(false.into()),
        _ if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+') => None,
        _ => match digits.parse::<i64>() {
            Ok(whole) => Some(whole.into()),
            Err(_) => digits.parse::<f64>().ok().and_then(Number::from_f64).map(Value::Number),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sections_and_values_are_read() {
        let top = "top = 1 # one\n[a]\nb = \"x # \\\"y\\\"\"\r\n c-d=2_000\n";
        let lists = "[ a . e ]\nf = ['1', [true,\n 2.5e-3], # two\n]\n\"g\".h = -3";
        let text = format!("{top}{lists}");
        let found = Value::Object(read(&text).unwrap());
        let expected = json!({
            "top": 1, "a.b": "x # \"y\"", "a.c-d": 2000, "a.e.f": ["1", [true, 2.5e-3]], "a.e.g.h": -3
        });
        assert_eq!(found, expected);
        assert_eq!(read("").unwrap().len(), 0);
    }

    #[test]
    fn sections_with_two_brackets_are_a_list() {
        let text = "[a]\nb = 1\n[[sets]]\nx = 2\n\n[[ sets ]] # the second\n[[sets]]\nx = 3\ny = [4]\n[c]\nd = 5";
        let found = Value::Object(read(text).unwrap());
        let expected = json!({ "a.b": 1, "sets": [{ "x": 2 }, {}, { "x": 3, "y": [4] }], "c.d": 5 });
        assert_eq!(found, expected);
    }

    #[test]
    fn mistakes_name_their_line() {
        let deep = format!("a = {}", "[".repeat(1000));
        for (text, error) in [
            ("a = 1\nb 2", "line 2: expected `=`"),
            ("[a\nb = 1", "line 1: expected `]`"),
            ("a = \"x\nb = 1", "line 1: a quote does not end"),
            ("\n[[]]", "line 2: expected the name"),
            ("[[a]\nb = 1", "line 1: expected `]]`"),
            ("a = 1\n[[a]]", "line 2: the key a is there twice"),
            ("[[a]]\nb = 1\nb = 2", "line 3: the key b is there twice"),
            ("a = 1\na = 2", "line 2: the key a is there twice"),
            ("a = {b = 1}", "line 1: `{b` is no text"),
            ("a = nan", "line 1: `nan` is no text"),
            ("a = [1\n2]", "line 2: expected `]`"),
            ("a = 1 2", "line 1: expected the end of the line"),
            ("a = \"\"\"x\"\"\"", "line 1: a text of several lines"),
            (deep.as_str(), "line 1: more than 8 lists"),
        ] {
            let found = read(text).unwrap_err();
            assert!(found.starts_with(error), "{text}: {found}");
        }
    }
}
