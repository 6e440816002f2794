//! One line of a log: what it says, and how grave that is. The same on the terminal, in a file and as JSON.

use super::calendar::Utc;
use serde_json::{Map, Value};
use std::borrow::Cow;
use tracing::Level;

/// The beginnings of lines that set a level.
const BEGINNINGS: [(&str, Level); 5] = [
    ("error: ", Level::ERROR),
    ("ALARM: ", Level::ERROR),
    ("warning: ", Level::WARN),
    ("debug: ", Level::DEBUG),
    ("trace: ", Level::TRACE),
];

/// A line of a log.
#[derive(Clone, Debug)]
pub(super) struct LogLine<'a> {
    level: Level,
    /// The text that a terminal shows before the message.
    begin: &'static str,
    /// The text without the level.
    message: Cow<'a, str>,
    /// Named values beside the message.
    fields: Map<String, Value>,
}

impl<'a> LogLine<'a> {
    /// Makes a line of this level, which the terminal shows as a word before the message; of `info` it shows none.
    pub fn new(level: Level, message: &'a str) -> Self {
        let begin = BEGINNINGS.iter().find(|(_, other)| *other == level).map_or("", |(begin, _)| *begin);
        Self { level, begin, message: message.into(), fields: Map::new() }
    }

    /// Reads the level from the text's beginning; without one it is `info`.
    pub fn of(text: &'a str) -> Self {
        let found = BEGINNINGS.iter().find_map(|(begin, level)| Some((*begin, *level, text.strip_prefix(begin)?)));
        let (begin, level, message) = found.unwrap_or(("", Level::INFO, text));
        Self { begin, ..Self::new(level, message) }
    }

    /// Adds what the JSON form of the line says beside the message.
    pub fn with_fields(self, fields: Map<String, Value>) -> Self {
        Self { fields, ..self }
    }

    /// Returns the line for a terminal: `warning: text`, in color where there is some.
    pub fn shown(&self, color: bool) -> String {
        let begin = self.begin;
        let code = match self.level {
            Level::ERROR => "1;31",
            Level::WARN => "1;33",
            _ => "2",
        };
        match color && !begin.is_empty() {
            true => format!("\x1b[{code}m{begin}\x1b[0m{}{}", self.message, self.named()),
            false => format!("{begin}{}{}", self.message, self.named()),
        }
    }

    /// Returns the line for a file: `2026-11-25T08:13:02.123Z WARN  text`, each line of the text behind its own time. Empty text gives no
    /// line.
    pub fn kept(&self) -> String {
        let time = Utc::now().milliseconds();
        let text = plain(&self.message) + &self.named();
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        lines.map(|line| format!("{time} {:5} {line}\n", self.level)).collect()
    }

    /// Returns the line as one JSON object, without a line end; `process` is the process that said it.
    pub fn json(&self, process: Option<&str>) -> String {
        let mut object = Map::new();
        object.insert("time".into(), Utc::now().milliseconds().into());
        object.insert("level".into(), self.level.to_string().to_lowercase().into());
        object.insert("message".into(), plain(&self.message).into());
        if let Some(process) = process {
            object.insert("process".into(), process.into());
        }
        for (name, value) in &self.fields {
            object.entry(name.clone()).or_insert_with(|| value.clone());
        }
        Value::Object(object).to_string()
    }

    /// Returns whether the message is empty or only white space; fields do not count.
    pub fn is_empty(&self) -> bool {
        self.message.trim().is_empty()
    }

    fn named(&self) -> String {
        self.fields.iter().map(|(name, value)| format!(" {name}={value}")).collect()
    }
}

/// Returns the text without colors.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\x1b[") {
        plain += before;
        rest = after.split_once('m').map_or("", |(_, after)| after);
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_has_one_level_wherever_it_goes() {
        let line = LogLine::of("warning: the \x1b[1mdisk\x1b[0m is full\n\nreally");
        assert_eq!(line.shown(false), "warning: the \x1b[1mdisk\x1b[0m is full\n\nreally");
        assert!(line.shown(true).starts_with("\x1b[1;33mwarning: \x1b[0mthe"));
        let kept = line.kept();
        let texts: Vec<&str> = kept.lines().map(|line| line.split_once(' ').unwrap().1).collect();
        assert_eq!(texts, ["WARN  the disk is full", "WARN  really"]);
        assert_eq!(kept.find('Z'), Some(23));
        let fields = json!({"port": 3}).as_object().unwrap().clone();
        let read: Value =
            serde_json::from_str(&LogLine::new(Level::INFO, "a").with_fields(fields.clone()).json(Some("encoder-0")))
                .unwrap();
        assert_eq!(
            [&read["level"], &read["message"], &read["process"], &read["port"]],
            [&json!("info"), &json!("a"), &json!("encoder-0"), &json!(3)]
        );
        assert_eq!(LogLine::new(Level::INFO, "a").with_fields(fields).shown(false), "a port=3");
        assert_eq!(LogLine::of("").kept(), "");
    }
}
