//! Config mistakes as plain text: what is wrong, where, and what to write instead; all of them at once.

use std::fmt;
use std::path::PathBuf;

use super::node::Pos;

/// Codes of config errors.
pub mod code {
    /// A config file is missing, unreadable, not YAML or another trainer's.
    pub const FILE: &str = "LF0101";
    /// An unknown key.
    pub const UNKNOWN_KEY: &str = "LF0102";
    /// A value of the wrong type, or not one of the choices.
    pub const WRONG_TYPE: &str = "LF0103";
    /// A value out of range.
    pub const OUT_OF_RANGE: &str = "LF0104";
    /// A required key is missing.
    pub const MISSING_KEY: &str = "LF0105";
    /// A `defaults` list that cannot be composed.
    pub const DEFAULTS: &str = "LF0106";
    /// A command-line override or environment variable that cannot be applied.
    pub const OVERRIDE: &str = "LF0107";
    /// An interpolation that cannot be resolved.
    pub const INTERPOLATION: &str = "LF0108";
    /// Something that is refused because it would run code.
    pub const REFUSED: &str = "LF0109";
    /// Values that contradict each other.
    pub const COMBINATION: &str = "LF0111";
    /// Parts of a model that do not fit each other.
    pub const MODEL_PARTS: &str = "LF0113";
    /// A file or directory that the config names does not exist.
    pub const NO_SUCH_FILE: &str = "LF0112";
    /// A wrong list of stages, or a stage that is not selected or does not exist.
    pub const STAGES: &str = "LF0114";
    /// An address that other machines can reach, without authentication.
    pub const NOT_LOCAL: &str = "LF0501";
}

/// Number of errors that a report shows; the rest are counted.
const SHOWN: usize = 20;

/// The widest source line shown around a mistake, in characters.
const WIDTH: usize = 100;

/// The source of a text of the config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    File(PathBuf),
    /// The number of the override, counted from 1.
    Override(usize),
    /// The variable's name.
    Env(String),
}

/// The place of a mistake, with the text that stands there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snippet {
    pub origin: Origin,
    /// Counts from 1.
    pub line: usize,
    /// Counts from 1, in characters.
    pub column: usize,
    /// Characters underlined.
    pub len: usize,
    /// The whole line.
    pub text: String,
    /// Said beside the underline; may be empty.
    pub label: String,
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// `LF01xx`, see [`code`].
    pub code: &'static str,
    pub message: String,
    /// `None` where nothing was written, as for a missing key.
    pub snippet: Option<Snippet>,
    pub help: Option<String>,
}

/// Every mistake of a config. Its `Display` is what a user reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub errors: Vec<ConfigError>,
    /// A line for each environment variable that begins as the program's own do and is none: it may have been meant for a key.
    pub ignored: Vec<String>,
}

/// The texts that positions point into, as lines.
#[derive(Debug, Default)]
pub(super) struct Sources(Vec<(Origin, Vec<String>)>);

/// A mistake before its place is turned into text.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub code: &'static str,
    pub pos: Option<Pos>,
    pub message: String,
    pub label: Box<str>,
    pub help: Option<Box<str>>,
}

impl Problem {
    /// Creates a problem at a place, with one of the codes of `docs/errors`.
    pub fn new(code: &'static str, pos: Option<Pos>, message: impl Into<String>) -> Self {
        Self { code, pos, message: message.into(), label: "".into(), help: None }
    }

    /// Sets the text beside the underlined part.
    pub fn label(mut self, label: impl Into<Box<str>>) -> Self {
        self.label = label.into();
        self
    }

    /// Sets the advice on what to write instead.
    pub fn help(mut self, help: impl Into<Box<str>>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl Sources {
    /// Adds a source text and returns its number, which places refer to.
    pub fn add(&mut self, origin: Origin, text: &str) -> usize {
        self.0.push((origin, text.lines().map(str::to_owned).collect()));
        self.0.len() - 1
    }

    /// Returns the number that the next added source will get.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the lines of a source. Panics if there is no such source.
    pub fn lines(&self, source: usize) -> &[String] {
        &self.0[source].1
    }

    /// Returns whether a text has an interpolation of this environment variable, used or not: stages read each their own.
    pub fn read_variable(&self, name: &str) -> bool {
        let reads = |line: &String| line.contains("oc.env") && line.contains(name);
        self.0.iter().any(|(_, lines)| lines.iter().any(reads))
    }

    /// Returns the line of a place; empty if the place is past the end.
    pub fn line(&self, pos: Pos) -> &str {
        self.lines(pos.source).get(pos.line - 1).map_or("", String::as_str)
    }

    /// Returns the file, override or variable that a place is in. Panics if there is no such source.
    pub fn origin(&self, pos: Pos) -> &Origin {
        &self.0[pos.source].0
    }

    /// Returns the characters at `pos`, if they are on one line.
    pub fn slice(&self, pos: Pos) -> Option<String> {
        let slice: String = self.line(pos).chars().skip(pos.column - 1).take(pos.len).collect();
        (slice.chars().count() == pos.len).then_some(slice)
    }

    /// Resolves places and sorts by them; mistakes without a place come last.
    pub fn report(&self, mut problems: Vec<Problem>) -> Report {
        problems.sort_by_key(|p| (p.pos.is_none(), p.pos));
        problems.dedup_by(|a, b| a.pos == b.pos && a.message == b.message);
        let errors = problems.into_iter().map(|problem| {
            let snippet = problem.pos.map(|pos| Snippet {
                origin: self.origin(pos).clone(),
                line: pos.line,
                column: pos.column,
                len: pos.len,
                text: self.line(pos).to_owned(),
                label: problem.label.into(),
            });
            ConfigError { code: problem.code, message: problem.message, snippet, help: problem.help.map(String::from) }
        });
        Report { errors: errors.collect(), ignored: Vec::new() }
    }
}

impl std::error::Error for Report {}

impl std::error::Error for ConfigError {}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for error in self.errors.iter().take(SHOWN) {
            writeln!(f, "{error}")?;
        }
        for line in &self.ignored {
            writeln!(f, "warning: {}", printable(line))?;
        }
        match self.errors.len() {
            0 => f.write_str("no errors"),
            1 => f.write_str("1 error in the config"),
            n if n <= SHOWN => write!(f, "{n} errors in the config"),
            n => write!(f, "{n} errors in the config; the first {SHOWN} are shown"),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "error[{}]: {}", self.code, printable(&self.message))?;
        if let Some(snippet) = &self.snippet {
            write!(f, "{snippet}")?;
        }
        match (&self.help, &self.snippet) {
            (Some(help), Some(_)) => writeln!(f, "  ╰─ help: {}", printable(help)),
            (Some(help), None) => writeln!(f, "  help: {}", printable(help)),
            (None, Some(_)) => writeln!(f, "  ╰─"),
            (None, None) => Ok(()),
        }
    }
}

impl fmt::Display for Snippet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::File(_) => writeln!(f, "  ╭─ {}:{}:{}", self.origin, self.line, self.column)?,
            _ => writeln!(f, "  ╭─ {}", self.origin)?,
        }
        let total = self.text.chars().count();
        let start = if total > WIDTH { (self.column - 1).saturating_sub(WIDTH / 4) } else { 0 };
        let shown: String = self.text.chars().skip(start).take(WIDTH).collect();
        writeln!(f, "  │  {}", printable(&shown).trim_end())?;
        let before = (self.column - 1).saturating_sub(start).min(WIDTH);
        // A place may point past the end of its line, as for an empty value.
        let len = self.len.min(shown.chars().count().saturating_sub(before)).max(1);
        let mark = match self.label.as_str() {
            "" => "─".repeat(len),
            label => {
                let left = (len - 1) / 2;
                format!("{}┬{}  {}", "─".repeat(left), "─".repeat(len - 1 - left), printable(label))
            }
        };
        writeln!(f, "  │  {}{mark}", " ".repeat(before))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Override(number) => write!(f, "command line, override #{number}"),
            Self::Env(name) => write!(f, "environment variable {name}"),
        }
    }
}

/// Replaces control characters, which would act on the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pos(line: usize, column: usize, len: usize) -> Pos {
        Pos { source: 0, line, column, len }
    }

    #[test]
    fn an_error_reads_as_documented() {
        let mut sources = Sources::default();
        sources.add(Origin::Override(1), "train.micro_batchsize=1");
        let problem = Problem::new(code::UNKNOWN_KEY, Some(pos(1, 7, 15)), "unknown key `train.micro_batchsize`")
            .label("did you mean `micro_batch_size`?")
            .help("keys of `train`: ...");
        let wanted = "\
error[LF0102]: unknown key `train.micro_batchsize`
  ╭─ command line, override #1
  │  train.micro_batchsize=1
  │        ───────┬───────  did you mean `micro_batch_size`?
  ╰─ help: keys of `train`: ...

1 error in the config";
        assert_eq!(sources.report(vec![problem]).to_string(), wanted);
    }

    #[test]
    fn long_lines_are_cut_and_many_errors_are_counted() {
        let mut sources = Sources::default();
        let text = format!("{}KEY{}\u{1b}[31m", "x".repeat(500), "y".repeat(500));
        sources.add(Origin::File("a.yaml".into()), &text);
        let problems = (0..30).map(|i| Problem::new(code::FILE, Some(pos(1, 501, 3)), format!("m{i}")));
        let text = sources.report(problems.collect()).to_string();
        assert!(text.contains("a.yaml:1:501") && text.contains("KEY") && !text.contains('\u{1b}'));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH + 8));
        assert!(text.ends_with("30 errors in the config; the first 20 are shown"), "{text}");
        assert!(text.contains("m19") && !text.contains("m20"));
    }
}
