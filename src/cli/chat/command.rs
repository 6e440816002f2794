//! Reads a line of a chat: a message or a command.

use std::io::{BufRead, Read};

pub const HELP: &str = "\
/image FILE    add a picture to the next message
/video FILE    add a video to the next message: an animated GIF or an MP4 file
/audio FILE    add a recording to the next message
/system TEXT   set the system message and start over; without TEXT it is that of the model's run, if any
/reset         start over
/exit          end the chat (or Ctrl-D)
/help          list the commands
To send a message that begins with /, begin it with //.";

#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    Nothing,
    Message(String),
    Image(String),
    Video(String),
    Audio(String),
    System(String),
    Reset,
    Exit,
    Help,
    Unknown(String),
}

impl Line {
    /// Reads a line: a command if it begins with one slash, otherwise a message.
    pub fn read(line: &str) -> Self {
        let line = line.trim();
        if line.is_empty() {
            return Self::Nothing;
        }
        if line.starts_with("//") || !line.starts_with('/') {
            let escaped = line.strip_prefix('/').filter(|_| line.starts_with("//"));
            return Self::Message(escaped.unwrap_or(line).to_owned());
        }
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim().to_owned();
        match (name, rest.is_empty()) {
            ("/image", false) => Self::Image(rest),
            ("/video", false) => Self::Video(rest),
            ("/audio", false) => Self::Audio(rest),
            ("/system", _) => Self::System(rest),
            ("/reset", true) => Self::Reset,
            ("/exit" | "/quit", true) => Self::Exit,
            ("/help", true) => Self::Help,
            _ => Self::Unknown(line.to_owned()),
        }
    }
}

/// Returns the next line, of which at most a byte more than `most` is kept; the rest of a longer one is passed over.
///
/// # Errors
/// The input cannot be read.
pub fn next_line(input: &mut impl BufRead, most: u64) -> std::io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    if input.by_ref().take(most + 1).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.len() as u64 > most && line.last() != Some(&b'\n') {
        input.skip_until(b'\n')?;
    }
    Ok(Some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_line_that_is_too_long_is_no_line() {
        let mut input = &b"abcdefg\nhij\nkl"[..];
        let mut next = || next_line(&mut input, 4).unwrap();
        let lines = [next(), next(), next(), next()].map(|line| line.map(|line| String::from_utf8(line).unwrap()));
        assert_eq!(lines.each_ref().map(Option::as_deref), [Some("abcde"), Some("hij\n"), Some("kl"), None]);
    }

    #[test]
    fn commands_begin_with_one_slash() {
        let text = |text: &str| text.to_owned();
        for (line, expected) in [
            (" \n", Line::Nothing),
            ("hello /exit\n", Line::Message(text("hello /exit"))),
            ("//usr is a folder", Line::Message(text("/usr is a folder"))),
            ("/image  my cat.jpg\r\n", Line::Image(text("my cat.jpg"))),
            ("/audio a.wav", Line::Audio(text("a.wav"))),
            ("/video a b.mp4", Line::Video(text("a b.mp4"))),
            ("/image", Line::Unknown(text("/image"))),
            ("/system Be brief.", Line::System(text("Be brief."))),
            ("/system", Line::System(String::new())),
            ("/reset", Line::Reset),
            ("/exit", Line::Exit),
            ("/help", Line::Help),
            ("/exit now", Line::Unknown(text("/exit now"))),
            ("/imagine", Line::Unknown(text("/imagine"))),
        ] {
            assert_eq!(Line::read(line), expected, "{line:?}");
        }
    }
}
