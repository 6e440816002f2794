//! The page's address and token, stored in the run's folder. They are kept when the run restarts, so that an open browser tab
//! continues to work.

use loongforge_core::config::Address;
use loongforge_core::files;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// File in the run's folder, for this user only, with the page's (last) address and its token.
pub const WATCH_FILE: &str = "watch.json";

/// The contents of [`WATCH_FILE`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Word {
    pub address: String,
    pub token: String,
    pub pid: u32,
    /// True if the run has ended. A killed run could not record that.
    #[serde(default)]
    pub ended: bool,
}

impl Word {
    /// Returns what an earlier start of the run in `dir` left. `None` where there is nothing, or nothing to trust: a
    /// file of somebody else's, one that others may read, a token that no run has drawn.
    pub fn kept(dir: &Path) -> Option<Self> {
        let path = dir.join(WATCH_FILE);
        let file = files::metadata(&path).ok()?;
        let is_ours = file.uid() == geteuid().as_raw() && file.mode() & 0o077 == 0;
        let word: Self = serde_json::from_str(&files::read_text(&path).ok()?).ok()?;
        let is_drawn = word.token.len() == 32 && word.token.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_ours && is_drawn).then_some(word)
    }

    /// Returns the port that was served, if any.
    pub fn port(&self) -> Option<u16> {
        match self.address.parse() {
            Ok(Address::Tcp { port, .. }) => Some(port),
            _ => None,
        }
    }

    /// Writes the file again, for this user only.
    ///
    /// # Errors
    /// Fails if the folder cannot be written.
    pub fn leave(&self, dir: &Path) -> io::Result<()> {
        let path = dir.join(WATCH_FILE);
        // The one that is there may be open to others.
        files::if_there(fs::remove_file(&path))?;
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        writeln!(file, "{}", serde_json::to_string(self).expect("texts and numbers"))
    }
}

/// Returns whether the run in this folder has said that it is over, or has never begun.
pub fn has_ended(dir: &Path) -> bool {
    Word::kept(dir).is_none_or(|word| word.ended)
}
