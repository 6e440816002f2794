//! Standard error and the run's log file, shared by the progress bar and all that has something to say.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use indicatif::{MultiProgress, ProgressDrawTarget};
use tracing::Level;

use super::log_file::LogFile;
use super::log_line::LogLine;
use super::terminal::has_color;
use crate::config::LogFormat;

/// A cheap handle; clones draw on the same terminal. Lines written through it appear above the bar.
#[derive(Clone)]
pub struct Console {
    bars: MultiProgress,
    is_terminal: bool,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    format: LogFormat,
    /// The process, where several write to one place.
    name: Option<String>,
    file: LogFile,
}

impl Console {
    /// Writes to standard error, with bars where that is a terminal.
    pub fn stderr() -> Self {
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        let is_terminal = io::stderr().is_terminal() && !bars.is_hidden();
        Self { bars, is_terminal, shared: Arc::default() }
    }

    /// Returns whether bars are drawn; plain lines otherwise.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal && self.shared(|shared| shared.format) == LogFormat::Text
    }

    /// Sets the form of the lines from now on.
    pub(super) fn set_format(&self, format: LogFormat) {
        self.shared(|shared| shared.format = format);
    }

    /// Keeps all lines in a file as well, those from before included: `PATH.txt`, or `PATH.jsonl` in the form of JSON. Without a
    /// line there is no file.
    pub fn keep_log(&self, path: &Path) {
        let kept = self.shared(|shared| {
            let ending = if shared.format == LogFormat::Json { "jsonl" } else { "txt" };
            shared.file.keep_in(path.with_added_extension(ending))
        });
        self.warn_of(kept);
    }

    /// Gives this process a name that its lines have in the form of JSON.
    pub fn name(&self, name: &str) {
        self.shared(|shared| shared.name = Some(name.to_owned()));
    }

    /// Runs `print` while the bar is away, so that what it prints to the terminal stays whole.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bars.suspend(print)
    }

    /// One line to standard error and the log file. It may begin with `warning: ` or another level.
    pub fn line(&self, text: &str) {
        self.told(&LogLine::of(text));
    }

    /// A line of which the log file has another form: without what must not be kept.
    pub fn line_kept_as(&self, text: &str, kept: &str) {
        self.show(&LogLine::of(text));
        self.keep(&LogLine::of(kept));
    }

    /// A line for the log file alone.
    pub fn note(&self, text: &str) {
        self.keep(&LogLine::of(text));
    }

    /// Returns whether someone looks at standard error, rather than a file.
    pub fn is_watched(&self) -> bool {
        self.is_terminal
    }

    /// Shows a line and keeps it in the log file.
    pub(super) fn told(&self, line: &LogLine<'_>) {
        self.show(line);
        self.keep(line);
    }

    /// A closed standard error is not worth ending a run for.
    fn show(&self, line: &LogLine<'_>) {
        let text = self.shared(|shared| match shared.format {
            // A blank line is for the eye.
            LogFormat::Json => (!line.is_empty()).then(|| line.json(shared.name.as_deref())),
            LogFormat::Text => Some(line.shown(self.is_terminal && has_color(&io::stderr()))),
        });
        if let Some(text) = text {
            self.suspend(|| {
                let _ = writeln!(io::stderr(), "{text}");
            });
        }
    }

    fn keep(&self, line: &LogLine<'_>) {
        let kept = self.shared(|shared| shared.file.write(line, shared.format, shared.name.as_deref()));
        self.warn_of(kept);
    }

    fn warn_of(&self, kept: Result<(), super::error::ObserveError>) {
        if let Err(error) = kept {
            self.show(&LogLine::new(Level::WARN, &format!("{error}; the run continues without a log file")));
        }
    }

    fn shared<T>(&self, with: impl FnOnce(&mut Shared) -> T) -> T {
        with(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn bars(&self) -> &MultiProgress {
        &self.bars
    }
}
