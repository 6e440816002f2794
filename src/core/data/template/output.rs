//! The output of a template.

use std::io::Write;

/// Bytes of a rendered conversation.
pub(super) const MAX_OUTPUT: usize = 16 << 20;

/// The rendered text, up to a length.
#[derive(Default)]
pub(super) struct Output {
    pub text: Vec<u8>,
    pub is_full: bool,
}

impl Write for Output {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.is_full |= self.text.len() + text.len() > MAX_OUTPUT;
        if self.is_full {
            return Err(std::io::Error::other("too much text"));
        }
        self.text.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
