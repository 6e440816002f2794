//! Standard error, shared by the progress bar and the log.

use std::io::{self, IsTerminal, Write};

use indicatif::{MultiProgress, ProgressDrawTarget};
use tracing_subscriber::fmt::MakeWriter;

/// A cheap handle; clones draw on the same terminal. Lines written through it appear above the bar.
#[derive(Clone)]
pub struct Console {
    bars: MultiProgress,
    is_terminal: bool,
}

impl Console {
    pub fn stderr() -> Self {
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        let is_terminal = io::stderr().is_terminal() && !bars.is_hidden();
        Self { bars, is_terminal }
    }

    /// Returns whether bars are drawn; plain lines otherwise.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Runs `print` while the bar is away, so that what it prints to the terminal stays whole.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bars.suspend(print)
    }

    /// One line to standard error. A closed standard error is not worth ending a run for.
    pub fn line(&self, text: &str) {
        self.suspend(|| {
            let _ = writeln!(io::stderr(), "{text}");
        });
    }

    pub(super) fn bars(&self) -> &MultiProgress {
        &self.bars
    }
}

/// Writes whole events above the bar.
pub struct ConsoleWriter(Console);

impl Write for ConsoleWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.suspend(|| io::stderr().write_all(bytes)).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

impl<'a> MakeWriter<'a> for Console {
    type Writer = ConsoleWriter;

    fn make_writer(&'a self) -> ConsoleWriter {
        ConsoleWriter(self.clone())
    }
}
