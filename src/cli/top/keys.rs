//! Keys that are pressed in a terminal, each at once and without echo.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::io::{self, IsTerminal, Stdin, stdin};
use std::time::Duration;

/// The standard input as single keys, until it is dropped.
pub struct Keys {
    input: Stdin,
    before: Termios,
}

impl Keys {
    /// Opens the terminal; returns `None` if standard input is not a terminal.
    pub fn open() -> Option<Self> {
        let input = stdin();
        let before = input.is_terminal().then(|| tcgetattr(&input).ok()).flatten()?;
        let mut single = before.clone();
        // Also Ctrl-C is a key then: it would end the process with the terminal as it is.
        single.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        tcsetattr(&input, OptionalActions::Now, &single).ok()?;
        Some(Self { input, before })
    }

    /// Waits for a key so long.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn wait(&self, patience: Duration) -> io::Result<Option<u8>> {
        let patience = Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: 0 };
        let mut ready = [PollFd::new(&self.input, PollFlags::IN)];
        match poll(&mut ready, Some(&patience)) {
            // The window has another size now, for example.
            Ok(0) | Err(Errno::INTR) => return Ok(None),
            found => found?,
        };
        let mut key = [0];
        // Past the buffer of the standard input, which would take more than one key and look as if there were none.
        match read(&self.input, &mut key)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(Some(key[0])),
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.input, OptionalActions::Now, &self.before);
    }
}
