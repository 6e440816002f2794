//! Standard error and the run's log file, shared by the progress bar and all that has something to say.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressDrawTarget};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::Level;

use super::log_file::LogFile;
use super::log_line::LogLine;
use super::terminal::has_color;
use crate::config::LogFormat;

/// The time for which the first line waits that nobody reads, such as in the pipe of a collector of logs that hangs. Those after it do
/// not wait.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes that a pipe takes at once if it takes any.
const ROOM: usize = 4096;

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

    /// Writes one line to standard error and the log file. It may begin with `warning: ` or another level.
    pub fn line(&self, text: &str) {
        self.told(&LogLine::of(text));
    }

    /// Writes a line of which the log file has another form: without what must not be kept.
    pub fn line_kept_as(&self, text: &str, kept: &str) {
        self.show(&LogLine::of(text));
        self.keep(&LogLine::of(kept));
    }

    /// Writes a line for the log file alone.
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
        let Some(text) = self.text_of(line) else { return };
        if self.is_terminal {
            // Everything waits for who looks at it.
            self.suspend(|| {
                let _ = writeln!(io::stderr(), "{text}");
            });
            return;
        }
        // No other thread takes the room that one has found.
        let mut stderr = io::stderr().lock();
        self.unless_full(|limit, num_left_out| write_line(&mut stderr, &self.behind_gap(text, num_left_out), limit));
    }

    /// Returns the text that is shown of a line; `None` for a blank one in the form of JSON.
    fn text_of(&self, line: &LogLine<'_>) -> Option<String> {
        self.shared(|shared| match shared.format {
            // A blank line is for the eye.
            LogFormat::Json => (!line.is_empty()).then(|| line.json(shared.name.as_deref())),
            LogFormat::Text => Some(line.shown(self.is_terminal && has_color(&io::stderr()))),
        })
    }

    /// Returns the text of a line, with a line before it where others are left out.
    fn behind_gap(&self, text: String, num_left_out: usize) -> String {
        if num_left_out == 0 {
            return text;
        }
        let told = format!("{num_left_out} lines before this one are left out here: nobody read them");
        let told = self.text_of(&LogLine::new(Level::WARN, &told)).unwrap_or_default();
        format!("{told}\n{text}")
    }

    /// Writes a line by `write`, which waits for a reader for so long, behind so many that are left out, and returns whether there was
    /// room. Without room the line is left out, too.
    fn unless_full(&self, write: impl FnOnce(Duration, usize) -> bool) {
        let before = self.shared(|shared| shared.num_left_out);
        let is_written = write(if before == 0 { PATIENCE } else { Duration::ZERO }, before);
        self.shared(|shared| shared.num_left_out = if is_written { 0 } else { before + 1 });
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

/// Writes a line to standard error, and gives it up where nobody reads there, unless that is a terminal: the last words of a process do
/// not hold up its end.
pub fn print_line(line: &str) {
    print_line_within(line, PATIENCE);
}

/// Works like [`print_line`], and waits for a reader for so long. Returns false if the line was given up.
pub fn print_line_within(line: &str, limit: Duration) -> bool {
    let mut stderr = io::stderr().lock();
    if stderr.is_terminal() {
        let _ = writeln!(stderr, "{line}");
        return true;
    }
    write_line(&mut stderr, line, limit)
}

/// Writes a line, and waits no longer than this for a reader of each part of it. Returns false if nobody read; an output that is closed
/// takes everything.
fn write_line(out: &mut (impl Write + AsFd), line: &str, limit: Duration) -> bool {
    let line = format!("{line}\n");
    for part in line.as_bytes().chunks(ROOM) {
        if !has_room(out, limit) {
            return false;
        }
        let _ = out.write_all(part);
    }
    true
}

/// Returns whether [`ROOM`] bytes can be written within so long without waiting for a reader.
fn has_room(out: &impl AsFd, limit: Duration) -> bool {
    let mut asked = [PollFd::new(out, PollFlags::OUT)];
    is_ready(limit, |limit| poll(&mut asked, limit))
}

/// Returns whether `poll` finds something ready within so long. A signal, such as one that asks the process to stop, ends its wait early.
fn is_ready(limit: Duration, mut poll: impl FnMut(Option<&Timespec>) -> Result<usize, Errno>) -> bool {
    let begin = Instant::now();
    loop {
        let left = Timespec::try_from(limit.saturating_sub(begin.elapsed())).ok();
        match poll(left.as_ref()) {
            Err(Errno::INTR) => {}
            // What cannot be asked is written to.
            result => return result != Ok(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_pipe_that_nobody_reads_takes_no_line_until_it_is_read() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let mut page = [0; ROOM];
        while has_room(&writer, Duration::ZERO) {
            writer.write_all(&page).unwrap();
        }
        assert!(!write_line(&mut writer, "a", Duration::from_millis(20)));
        reader.read_exact(&mut page).unwrap();
        assert!(write_line(&mut writer, "a", PATIENCE));
        // Whoever writes then is told that it is closed.
        drop(reader);
        assert!(write_line(&mut writer, "a", PATIENCE));
    }

    #[test]
    fn a_line_that_is_longer_than_a_pipe_is_given_up_where_nobody_reads() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let short = "a".repeat(2 * ROOM);
        assert!(write_line(&mut writer, &short, PATIENCE));
        assert!(!write_line(&mut writer, &"b".repeat(1 << 21), Duration::from_millis(20)));
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert!(text.starts_with(&(short + "\nb")), "{} bytes", text.len());
    }

    #[test]
    fn a_signal_makes_no_room() {
        let mut answers = [Err(Errno::INTR), Err(Errno::INTR), Ok(0)].into_iter();
        assert!(!is_ready(PATIENCE, |_| answers.next().unwrap()));
        assert!(is_ready(PATIENCE, |_| Ok(1)) && is_ready(PATIENCE, |_| Err(Errno::INVAL)));
    }

    #[test]
    fn one_line_waits_for_a_reader_and_those_after_it_are_counted() {
        let console = Console { is_terminal: false, ..Console::stderr() };
        let seen = |is_written: bool| {
            let mut seen = None;
            console.unless_full(|limit, num_left_out| {
                seen = Some((limit, num_left_out));
                is_written
            });
            seen.unwrap()
        };
        assert_eq!(seen(true), (PATIENCE, 0));
        assert_eq!(seen(false), (PATIENCE, 0));
        assert_eq!(seen(false), (Duration::ZERO, 1));
        assert_eq!(seen(true), (Duration::ZERO, 2));
        assert_eq!(seen(true), (PATIENCE, 0));
        let text = console.behind_gap("last".into(), 2);
        assert!(text.contains("2 lines before this one") && text.ends_with("\nlast"), "{text}");
        assert_eq!(console.behind_gap("alone".into(), 0), "alone");
    }
}
