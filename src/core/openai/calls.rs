//! Calls of tools in the text of an answer, as Hermes and Qwen write them: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

use serde_json::{Deserializer, Map, Value as Json};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Text(String),
    Call(Call),
}

/// Finds calls in an answer that comes in pieces. White space around calls is left out, and what may become a call is held back; if it
/// becomes none, it is text as it was written.
///
/// The time for a piece does not grow with the text that is held back: a model may write a very long call token by token.
#[derive(Clone, Debug)]
pub struct CallStream {
    held: String,
    /// Bytes of white space with which `held` is known to begin.
    blank: usize,
    /// The tag in `held` that may open a call.
    open: Option<Open>,
    num_calls: usize,
    /// True if there may be more than one call; else what follows the first is left out.
    are_parallel: bool,
    /// True if nothing but white space has followed the last call.
    is_behind_call: bool,
}

impl CallStream {
    /// Begins an answer, in which there may be one call or more.
    pub fn new(are_parallel: bool) -> Self {
        Self { held: String::new(), blank: 0, open: None, num_calls: 0, are_parallel, is_behind_call: false }
    }

    /// Returns the number of calls so far.
    pub fn num_calls(&self) -> usize {
        self.num_calls
    }

    /// Returns the part of the answer so far that is certain and was not given out yet.
    pub fn push(&mut self, piece: &str) -> Vec<Said> {
        self.held += piece;
        self.take(false)
    }

    /// Returns the rest of the answer, which was held back, when nothing follows. A call whose end is missing is one if it is complete
    /// otherwise.
    pub fn finish(&mut self) -> Vec<Said> {
        self.take(true)
    }

    /// Returns the part of the held text that is certain; `ends`: nothing follows it.
    fn take(&mut self, ends: bool) -> Vec<Said> {
        let mut said = Vec::new();
        while let Some(mut open) = self.open.take().or_else(|| self.find(&mut said)) {
            match open.read(&self.held, ends) {
                Tagged::Call(call, length) => {
                    self.held.drain(..open.body + length);
                    self.blank = 0;
                    self.call(call, &mut said);
                }
                Tagged::Text(length) => self.give(open.body + length, &mut said),
                Tagged::Unfinished => {
                    self.open = Some(open);
                    return said;
                }
            }
        }
        if ends {
            self.give(self.held.len(), &mut said);
            return said;
        }
        // A call may begin with the white space at the end, and the part of a tag behind it.
        let end = self.held.len() - begun(&self.held, OPEN);
        let space = self.held[self.blank..end].trim_end().len();
        self.give(if space == 0 { 0 } else { self.blank + space }, &mut said);
        self.blank = self.held.len() - begun(&self.held, OPEN);
        said
    }

    /// Finds the next tag that opens a call, and gives out the text before it. White space before it belongs to it, until it is known to
    /// be a call.
    fn find(&mut self, said: &mut Vec<Said>) -> Option<Open> {
        let start = self.blank + self.held[self.blank..].find(OPEN)?;
        let before = self.held[..start].trim_end().len();
        self.give(before, said);
        Some(Open { body: start - before + OPEN.len(), ..Open::default() })
    }

    /// Gives out the first `length` bytes of what is held.
    fn give(&mut self, length: usize, said: &mut Vec<Said>) {
        if length == 0 {
            return;
        }
        self.blank = 0;
        let rest = self.held.split_off(length);
        let text = std::mem::replace(&mut self.held, rest);
        let text = if self.is_behind_call { text.trim_start() } else { text.as_str() };
        if text.is_empty() || self.has_ended() {
            return;
        }
        self.is_behind_call = false;
        said.push(Said::Text(text.to_owned()));
    }

    fn call(&mut self, call: Call, said: &mut Vec<Said>) {
        if self.has_ended() {
            return;
        }
        self.num_calls += 1;
        self.is_behind_call = true;
        said.push(Said::Call(call));
    }

    /// Returns whether the only call was told: what follows is left out.
    pub fn has_ended(&self) -> bool {
        self.num_calls > 0 && !self.are_parallel
    }
}

/// Bytes at the end of `text` with which `tag` begins, but not all of it.
fn begun(text: &str, tag: &str) -> usize {
    (1..tag.len()).rev().find(|length| text.ends_with(&tag[..*length])).unwrap_or(0)
}

/// The text behind a tag that opens a call.
enum Tagged {
    /// A call, in so many bytes with the closing tag.
    Call(Call, usize),
    /// No call, up to the closing tag's end, which is so many bytes away.
    Text(usize),
    /// The text so far does not tell which of the two it is.
    Unfinished,
}

/// A tag that may open a call, and what was found in the text behind it, of which each byte is looked at once: its JSON is parsed when the
/// first closing tag has come, and again only when that can tell what it is.
#[derive(Clone, Debug, Default)]
struct Open {
    /// The text begins here in what is held.
    body: usize,
    /// Bytes at the text's beginning in which no closing tag begins.
    searched: usize,
    /// True if there is a closing tag, which may stand within a string.
    is_closed: bool,
    scan: Scan,
    #[cfg(test)]
    num_parsed: usize,
}

impl Open {
    /// Reads the text behind the tag in what is held; `ends`: nothing follows it.
    fn read(&mut self, held: &str, ends: bool) -> Tagged {
        let text = &held[self.body..];
        if self.is_closed {
            if !self.scan.can_tell(text) && !ends {
                return Tagged::Unfinished;
            }
        } else if text[self.searched..].contains(CLOSE) {
            self.is_closed = true;
        } else if !ends {
            self.searched = text.len() - begun(text, CLOSE);
            return Tagged::Unfinished;
        }
        #[cfg(test)]
        {
            self.num_parsed += 1;
        }
        read(text, ends)
    }
}

/// Finds the end of a JSON object whose text comes in pieces.
#[derive(Clone, Debug, Default)]
struct Scan {
    /// Bytes that were looked at.
    at: usize,
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
    /// True if the object has ended before `at`.
    has_ended: bool,
}

impl Scan {
    /// Returns whether [`read`] can tell what the text is: more than the beginning of a closing tag follows the object, or something
    /// stands in it that no JSON has. A mistake that this overlooks is found where the object seems to end.
    fn can_tell(&mut self, text: &str) -> bool {
        while !self.has_ended
            && let Some(&byte) = text.as_bytes().get(self.at)
        {
            self.at += 1;
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'"' => self.is_in_string = !self.is_in_string,
                b'\\' if self.is_in_string => self.is_escaped = true,
                0..b' ' if self.is_in_string => return true,
                _ if self.is_in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' if self.depth > 1 => self.depth -= 1,
                b'}' | b']' => self.has_ended = true,
                b' ' | b'\t' | b'\r' | b'\n' | b':' | b',' | b'+' | b'-' | b'.' => {}
                byte if byte.is_ascii_alphanumeric() => {}
                _ => return true,
            }
        }
        if !self.has_ended {
            return false;
        }
        let rest = text[self.at..].trim_start();
        self.at = text.len() - rest.len();
        rest.len() >= CLOSE.len() || !CLOSE.starts_with(rest)
    }
}

/// Reads what stands behind an opening tag; `ends`: nothing follows it. A closing tag within a string of the JSON closes nothing.
fn read(text: &str, ends: bool) -> Tagged {
    let close = text.find(CLOSE);
    let mut objects = Deserializer::from_str(text).into_iter::<Map<String, Json>>();
    let object = objects.next();
    let rest = text[objects.byte_offset()..].trim_start();
    let length = match &object {
        Some(Ok(_)) if rest.starts_with(CLOSE) => Some(text.len() - rest.len() + CLOSE.len()),
        Some(Ok(_)) if ends && CLOSE.starts_with(rest) => Some(text.len()),
        Some(Ok(_)) if CLOSE.starts_with(rest) => return Tagged::Unfinished,
        Some(Err(error)) if !ends && error.is_eof() => return Tagged::Unfinished,
        _ => None,
    };
    let call = object.and_then(Result::ok).and_then(call_of);
    match call.zip(length) {
        Some((call, length)) => Tagged::Call(call, length),
        None => Tagged::Text(close.map_or(text.len(), |at| at + CLOSE.len())),
    }
}

/// Returns a call by its JSON; `None`: it is none.
fn call_of(mut fields: Map<String, Json>) -> Option<Call> {
    let Some(Json::String(name)) = fields.remove("name") else { return None };
    let arguments = match fields.remove("arguments")? {
        // Some models write the object as text.
        Json::String(text) => serde_json::from_str::<Map<String, Json>>(&text).ok().map(|_| text)?,
        Json::Object(arguments) => Json::Object(arguments).to_string(),
        _ => return None,
    };
    (!name.is_empty()).then_some(Call { name, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the texts and calls of an answer that comes in pieces of so many characters, with texts put together.
    fn said(answer: &str, piece: usize, are_parallel: bool) -> Vec<Said> {
        let mut stream = CallStream::new(are_parallel);
        let letters: Vec<char> = answer.chars().collect();
        let pieces = letters.chunks(piece).map(|letters| letters.iter().collect::<String>());
        let mut parts: Vec<Said> = pieces.flat_map(|piece| stream.push(&piece)).collect();
        parts.extend(stream.finish());
        let mut all: Vec<Said> = Vec::new();
        for part in parts {
            match (all.last_mut(), part) {
                (Some(Said::Text(before)), Said::Text(text)) => *before += &text,
                (_, part) => all.push(part),
            }
        }
        assert_eq!(stream.num_calls(), all.iter().filter(|part| matches!(part, Said::Call(_))).count());
        all
    }

    fn call(name: &str, arguments: &str) -> Said {
        Said::Call(Call { name: name.to_owned(), arguments: arguments.to_owned() })
    }

    fn text(text: &str) -> Said {
        Said::Text(text.to_owned())
    }

    #[test]
    fn calls_are_found_however_the_answer_comes() {
        let one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": \"é</x>\", \"a\": 1}}\n</tool_call>";
        let f = || call("f", r#"{"b":"é</x>","a":1}"#);
        let other = r#"<tool_call>{"arguments": "{\"c\": 2}", "name": "g"}</tool_call>"#;
        let g = || call("g", r#"{"c": 2}"#);
        let quoting = r#"<tool_call>{"name": "q", "arguments": {"a": "</tool_call> <tool_call>"}} </tool_call>"#;
        let q = || call("q", r#"{"a":"</tool_call> <tool_call>"}"#);
        let open = r#"a<tool_call>{"name": "q", "arguments": {"a": "b}}</tool_call>"#;
        let broken = "\n<tool_call>\n<function=f>\n</tool_call> ";
        for (answer, expected) in [
            ("a < b <tool", vec![text("a < b <tool")]),
            (" a \n ", vec![text(" a \n ")]),
            ("", vec![]),
            (one, vec![f()]),
            (format!("Let me see.\n\n{one}\n{other}\n").as_str(), vec![text("Let me see."), f(), g()]),
            (format!("{one}\n Done. \n{other}").as_str(), vec![f(), text("Done."), g()]),
            // No calls: another form, no arguments, no name, and one that is cut.
            (broken, vec![text(broken)]),
            (format!("a{broken}{one}").as_str(), vec![text(&format!("a{}", broken.trim_end())), f()]),
            (r#"<tool_call>{"name": "f"}</tool_call>"#, vec![text(r#"<tool_call>{"name": "f"}</tool_call>"#)]),
            (
                r#"<tool_call>{"name": "", "arguments": {}}</tool_call>"#,
                vec![text(r#"<tool_call>{"name": "", "arguments": {}}</tool_call>"#)],
            ),
            (r#"a <tool_call>{"name": "f", "#, vec![text(r#"a <tool_call>{"name": "f", "#)]),
            (one.strip_suffix("</tool_call>").unwrap(), vec![f()]),
            // A tag within a string is a part of it.
            (format!("{quoting}{other}").as_str(), vec![q(), g()]),
            (quoting.strip_suffix("</tool_call>").unwrap(), vec![q()]),
            (quoting.strip_suffix("call>").unwrap(), vec![q()]),
            // A string without an end.
            (format!("{open} b").as_str(), vec![text(&format!("{open} b"))]),
            (format!("{open} b\n{other}").as_str(), vec![text(&format!("{open} b")), g()]),
            // A brace is missing.
            (format!("{}{other}", one.replace("}\n", "\n")).as_str(), vec![text(&one.replace("}\n", "\n")), g()]),
        ] {
            for piece in [1, 2, 7, 1000] {
                assert_eq!(said(answer, piece, true), expected, "{answer:?} in pieces of {piece}");
            }
        }
        let three = format!("a{one}b{other}{one}");
        for piece in [1, 5, 1000] {
            assert_eq!(said(&three, piece, false), [text("a"), f()]);
        }
    }

    #[test]
    fn a_long_call_is_parsed_twice_at_most() {
        for (begin, middle, end, expected) in [
            // Closing tags within a string, and white space behind the object and before the tag.
            ("\n<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"", CLOSE, "\"}}</tool_call>", 2),
            ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}", " \n", "</tool_call>", 2),
            ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"", "é", "\"}}</tool_call>", 1),
        ] {
            let mut stream = CallStream::new(true);
            assert!(stream.push(begin).is_empty());
            for _ in 0..1000 {
                assert!(stream.push(middle).is_empty());
            }
            assert_eq!(stream.open.as_ref().map(|open| open.num_parsed), Some(expected - 1), "{middle:?}");
            let said = stream.push(end);
            assert!(matches!(&said[..], [Said::Call(call)] if call.name == "f"), "{said:?}");
            assert!(stream.held.is_empty() && stream.open.is_none());
        }
    }

    #[test]
    fn white_space_is_looked_at_once() {
        let mut stream = CallStream::new(true);
        assert_eq!(stream.push("a\u{2003}\n"), [text("a")]);
        for piece in ["  ", "\n", "<tool", "_"] {
            assert!(stream.push(piece).is_empty());
        }
        assert_eq!((stream.blank, stream.held.len()), ("\u{2003}\n  \n".len(), "\u{2003}\n  \n<tool_".len()));
        assert_eq!(stream.push("x\n<"), [text("\u{2003}\n  \n<tool_x")]);
        assert_eq!(stream.blank, 1);
        assert_eq!(stream.push("tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"), [call("f", "{}")]);
        assert_eq!((stream.push(" "), stream.push("b"), stream.finish()), (vec![], vec![text("b")], vec![]));
    }
}
