//! Standard error and the run's log file, shared by the progress bar and all that has something to say.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressDrawTarget};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::Level;

use super::log_file::LogFile;
use super::log_line::LogLine;
use super::terminal::has_color;
use crate::config::LogFormat;

/// How long the first line waits that nobody reads, such as in the pipe of a collector of logs that hangs. Those after it do not wait.
const PATIENCE: Duration = Duration::from_secs(2);

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
    /// Lines that were left out because nobody read those before them.
    num_left_out: usize,
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

    /// A standard error that is closed, or that nobody reads, is not worth holding up or ending a run for.
    fn show(&self, line: &LogLine<'_>) {
        let Some(mut text) = self.text_of(line) else { return };
        let Some(num_left_out) = self.room(|limit| takes_a_line(&io::stderr(), limit)) else { return };
        if num_left_out > 0 {
            let told = format!("{num_left_out} lines before this one are left out here: nobody read them");
            let told = self.text_of(&LogLine::new(Level::WARN, &told)).unwrap_or_default();
            text = format!("{told}\n{text}");
        }
        self.suspend(|| {
            let _ = writeln!(io::stderr(), "{text}");
        });
    }

    /// Returns what is shown of a line; `None` for a blank one in the form of JSON.
    fn text_of(&self, line: &LogLine<'_>) -> Option<String> {
        self.shared(|shared| match shared.format {
            // A blank line is for the eye.
            LogFormat::Json => (!line.is_empty()).then(|| line.json(shared.name.as_deref())),
            LogFormat::Text => Some(line.shown(self.is_terminal && has_color(&io::stderr()))),
        })
    }

    /// Returns how many lines are left out before one that can be written now, or `None` if that is left out, too. `is_ready` waits for so
    /// long; at a terminal everything waits for who looks at it.
    fn room(&self, is_ready: impl FnOnce(Duration) -> bool) -> Option<usize> {
        if self.is_terminal {
            return Some(0);
        }
        let before = self.shared(|shared| shared.num_left_out);
        let is_ready = is_ready(if before == 0 { PATIENCE } else { Duration::ZERO });
        self.shared(|shared| shared.num_left_out = if is_ready { 0 } else { before + 1 });
        is_ready.then_some(before)
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

/// Returns whether a line can be written within so long without waiting for a reader.
pub fn takes_a_line(file: &impl AsFd, limit: Duration) -> bool {
    let mut asked = [PollFd::new(file, PollFlags::OUT)];
    let limit = Timespec::try_from(limit).ok();
    // What cannot be asked is written to.
    !matches!(poll(&mut asked, limit.as_ref()), Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_pipe_that_nobody_reads_takes_no_line_until_it_is_read() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let mut page = [0; 4096];
        while takes_a_line(&writer, Duration::ZERO) {
            writer.write_all(&page).unwrap();
        }
        assert!(!takes_a_line(&writer, Duration::from_millis(20)));
        reader.read_exact(&mut page).unwrap();
        assert!(takes_a_line(&writer, PATIENCE));
        // Whoever writes then is told that it is closed.
        drop(reader);
        assert!(takes_a_line(&writer, PATIENCE));
    }

    #[test]
    fn one_line_waits_for_a_reader_and_those_after_it_are_counted() {
        let console = Console { is_terminal: false, ..Console::stderr() };
        let room = |is_ready: bool| {
            let mut waited = None;
            let room = console.room(|limit| {
                waited = Some(limit);
                is_ready
            });
            (waited.unwrap(), room)
        };
        assert_eq!(room(true), (PATIENCE, Some(0)));
        assert_eq!(room(false), (PATIENCE, None));
        assert_eq!(room(false), (Duration::ZERO, None));
        assert_eq!(room(true), (Duration::ZERO, Some(2)));
        assert_eq!(room(true), (PATIENCE, Some(0)));
    }
}
