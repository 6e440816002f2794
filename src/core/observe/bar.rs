//! Describes how far a tool is: a bar in a terminal, nothing elsewhere.

use indicatif::{ProgressBar, ProgressStyle};

use super::console::Console;

/// Counts things up to a number that is known.
pub struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// `what` stands before the bar.
    pub fn start(console: &Console, what: &'static str, total: u64) -> Self {
        let bar = match console.is_terminal() {
            true => {
                let style = ProgressStyle::with_template(
                    "{prefix} {bar:24.green/black.bright} {human_pos} of {human_len}, {per_sec}, {eta} left {wide_msg}",
                );
                let style = style.expect("the template is ours").progress_chars("━╸━");
                console.bars().add(ProgressBar::new(total).with_style(style).with_prefix(what))
            }
            false => ProgressBar::hidden(),
        };
        Self { bar }
    }

    /// Counts one more.
    pub fn tick(&self) {
        self.bar.inc(1);
    }

    /// Stands behind the bar.
    pub fn say(&self, message: String) {
        self.bar.set_message(message);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
