//! Reads a line of a chat: a message or a command.

pub const HELP: &str = "\
/image FILE    add a picture to the next message
/audio FILE    add a recording to the next message
/system TEXT   set the system message and start over; without TEXT there is none
/reset         start over
/exit          end the chat (or Ctrl-D)
/help          list the commands
To send a message that begins with /, begin it with //.";

#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    Nothing,
    Message(String),
    Image(String),
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
            ("/audio", false) => Self::Audio(rest),
            ("/system", _) => Self::System(rest),
            ("/reset", true) => Self::Reset,
            ("/exit" | "/quit", true) => Self::Exit,
            ("/help", true) => Self::Help,
            _ => Self::Unknown(line.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_begin_with_one_slash() {
        let text = |text: &str| text.to_owned();
        for (line, expected) in [
            (" \n", Line::Nothing),
            ("hello /exit\n", Line::Message(text("hello /exit"))),
            ("//usr is a folder", Line::Message(text("/usr is a folder"))),
            ("/image  my cat.jpg\r\n", Line::Image(text("my cat.jpg"))),
            ("/audio a.wav", Line::Audio(text("a.wav"))),
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
