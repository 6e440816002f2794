//! `loongforge chat`: a conversation with a trained model in the terminal.

mod command;
mod interrupt;

use super::asking::{AskedModel, Choosing, at_least_one};
use super::{UsageError, exit};
use crate::answer::{Piece, answer_each, room};
use crate::eval::generator::Reader;
use anyhow::{Context, Result};
use clap::Args;
use command::{HELP, Line, next_line};
use interrupt::Interrupt;
use loongforge_core::data::{Conversation, Locator, MediaSource, Part, Sample, Turn, VideoSource};
use loongforge_core::message::SampleId;
use loongforge_core::observe::safe;
use std::io::{IsTerminal, Write, stdin, stdout};
use std::path::Path;
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "\
Examples:
  loongforge chat Qwen/Qwen3-0.6B
  loongforge chat runs/my --system \"Be brief.\" --temperature 0.7 --top-p 0.8
  echo \"What is two and two?\" | loongforge chat runs/my

/help lists the chat commands. Ctrl-C stops an answer; /exit or Ctrl-D ends the chat. From a pipe, every line is a message and
only answers are printed; the exit code is 1 if a message was refused.")]
pub struct ChatArgs {
    #[command(flatten)]
    model: AskedModel,
    /// System message [default: that of the run that trained the model, if any]
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Maximum number of new tokens in an answer [default: 1024, or what the model's context leaves]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    max_new_tokens: Option<usize>,
    #[command(flatten)]
    choosing: Choosing,
}

/// Bytes of a line.
const MAX_LINE: u64 = 16 << 20;
const PROMPT: &str = "> ";
/// New tokens of an answer unless told otherwise.
const MAX_NEW_TOKENS: usize = 1024;

/// The conversation, and what the next message has beside its text.
struct Chat {
    system: Option<String>,
    conversation: Conversation,
    attached: Vec<(Part, MediaSource)>,
    /// The reason for which a file is not attached, where nobody sees that before the message.
    missing: Option<String>,
    num_answers: u64,
    num_refused: u64,
}

/// Runs `loongforge chat` until `/exit` or the end of standard input; from a pipe the exit code tells of refused messages.
pub fn chat(args: ChatArgs) -> Result<ExitCode> {
    let reader = args.model.open()?;
    reader.processor().expect_template().map_err(UsageError::of)?;
    if reader.processor().encoder_decoder().is_some() {
        let reason = "encodes a single prompt and cannot hold a conversation: use `loongforge generate`";
        return Err(UsageError::new(format!("{}: the model {reason}", args.model.checkpoint)).into());
    }
    // Beginning anew would never help.
    if let Some(wanted) = args.max_new_tokens {
        room(&reader.model().folder().json, 1, Some(wanted), MAX_NEW_TOKENS).map_err(|_| {
            UsageError::new(format!("--max-new-tokens {wanted} leaves no room for a message within the model's length"))
        })?;
    }
    let is_terminal = stdin().is_terminal();
    let interrupt = Interrupt::listen(is_terminal.then_some(PROMPT))?;
    if is_terminal {
        println!("{}: /help lists the commands, /exit ends the chat", safe(&args.model.checkpoint));
    }
    let mut chat = Chat {
        system: args.system.clone(),
        conversation: Conversation::text(Vec::new()),
        attached: Vec::new(),
        missing: None,
        num_answers: 0,
        num_refused: 0,
    };
    loop {
        if is_terminal {
            print!("{PROMPT}");
            stdout().flush()?;
        }
        let Some(line) = next_line(&mut stdin().lock(), MAX_LINE).context("standard input")? else { break };
        if line.len() as u64 > MAX_LINE {
            eprintln!("the line has more than {MAX_LINE} bytes, so it was not sent");
            chat.num_refused += 1;
            continue;
        }
        let Ok(line) = String::from_utf8(line) else {
            eprintln!("the line is not UTF-8");
            chat.num_refused += 1;
            continue;
        };
        match Line::read(&line) {
            Line::Nothing => {}
            Line::Exit => break,
            Line::Help => eprintln!("{HELP}"),
            Line::Reset => chat.reset(),
            Line::System(text) => {
                chat.system = Some(text).filter(|text| !text.is_empty());
                chat.reset();
            }
            Line::Image(path) => chat.attach(path, Part::Image, is_terminal),
            Line::Video(path) => chat.attach(path, Part::Video, is_terminal),
            Line::Audio(path) => chat.attach(path, Part::Audio, is_terminal),
            Line::Unknown(name) => {
                eprintln!("there is no command {}; /help lists them", safe(&name));
                chat.num_refused += 1;
            }
            Line::Message(text) => chat.say(&reader, &args, &text, &interrupt)?,
        }
    }
    if is_terminal {
        println!();
    }
    Ok(ExitCode::from(if chat.num_refused > 0 && !is_terminal { exit::FAILED } else { 0 }))
}

impl Chat {
    fn reset(&mut self) {
        self.conversation = Conversation::text(Vec::new());
        self.attached.clear();
        self.missing = None;
        eprintln!("the conversation starts over");
    }

    /// Reads a file, whose bytes are kept: each later message is asked with those of all messages before it.
    fn attach(&mut self, path: String, part: Part, is_terminal: bool) {
        let (file, here) = (Locator::File(path.clone()), Path::new(""));
        let (told, missing) = match Path::new(&path).is_file() {
            false => (format!("{path}: there is no such file"), format!("{path} is missing")),
            true => match if part == Part::Audio { file.read_sound(here) } else { file.read(here) } {
                Ok(bytes) => {
                    let kept = Locator::bytes(path, bytes.into_owned());
                    let media = match part {
                        Part::Audio => MediaSource::Audio(kept.into()),
                        Part::Video => MediaSource::Video(VideoSource { locators: vec![kept], fps: None }),
                        _ => MediaSource::Image(kept),
                    };
                    return self.attached.push((part, media));
                }
                Err(error) => (error.to_string(), error.to_string()),
            },
        };
        eprintln!("{}", safe(&told));
        if !is_terminal {
            self.missing = Some(missing);
        }
    }

    /// Adds a message, and prints and adds the answer. A message that cannot be asked is reported and removed again.
    fn say(&mut self, reader: &Reader, args: &ChatArgs, text: &str, interrupt: &Interrupt) -> Result<()> {
        let before = self.conversation.clone();
        let (sample, max_new_tokens) = match self.ask(reader, text, args.max_new_tokens) {
            Ok(asked) => asked,
            Err(reason) => {
                eprintln!("{}", safe(&reason));
                self.conversation = before;
                self.attached.clear();
                self.num_refused += 1;
                return Ok(());
            }
        };
        let wanted = args.choosing.wanted(max_new_tokens, self.num_answers);
        self.num_answers += 1;
        let (mut answer, mut out, is_terminal) = (String::new(), stdout(), stdout().is_terminal());
        let mut failed = None;
        let stopped = interrupt.during(|stop| {
            answer_each(reader, &[(&sample, &wanted)], &mut |_, piece| {
                if let Piece::Text { text, .. } = piece {
                    let shown = if is_terminal { safe(&text) } else { text.clone() };
                    failed = write!(out, "{shown}").and_then(|()| out.flush()).err();
                    answer += &text;
                }
                failed.is_none() && !stop()
            })
        })?;
        if let Some(error) = failed {
            return Err(exit::OutputError(error).into());
        }
        println!("{}", if stopped { " [stopped]" } else { "" });
        self.conversation.turns.push(Turn::text("assistant", &answer));
        Ok(())
    }

    /// Returns the conversation with one message more, as the model reads it, and how many tokens its answer may have.
    fn ask(&mut self, reader: &Reader, text: &str, max_new_tokens: Option<usize>) -> Result<(Sample, usize), String> {
        if let Some(missing) = self.missing.take() {
            return Err(format!("{missing}, so the message was not sent"));
        }
        let turns = &mut self.conversation.turns;
        if let Some(system) = self.system.as_deref().filter(|_| turns.is_empty()) {
            turns.push(Turn::text("system", system));
        }
        let mut turn = Turn::text("user", text);
        let (parts, media): (Vec<Part>, Vec<MediaSource>) = self.attached.drain(..).unzip();
        turn.parts.splice(0..0, parts);
        turns.push(turn);
        self.conversation.media.extend(media);
        let sample = reader.processor().prompt(SampleId(0), &self.conversation, Path::new(""));
        let sample = sample.map_err(|error| error.to_string())?;
        let config = &reader.model().folder().json;
        match room(config, sample.input_ids.len(), max_new_tokens, MAX_NEW_TOKENS) {
            Ok(room) => Ok((sample, room)),
            Err(no_room) => Err(format!("the conversation has {no_room}: /reset starts over")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat() -> Chat {
        Chat {
            system: None,
            conversation: Conversation::text(Vec::new()),
            attached: Vec::new(),
            missing: None,
            num_answers: 0,
            num_refused: 0,
        }
    }

    #[test]
    fn a_recording_that_cannot_be_read_is_not_called_a_picture() {
        let (mut chat, folder) = (chat(), tempfile::tempdir().unwrap());
        let path = folder.path().join("a.wav");
        // Larger than any recording, without taking room on the disk.
        std::fs::File::create(&path).unwrap().set_len(1 << 30).unwrap();
        chat.attach(path.display().to_string(), Part::Audio, false);
        let told = chat.missing.unwrap();
        assert!(told.starts_with("audio ") && told.contains("a.wav"), "{told}");
        assert!(chat.attached.is_empty());
    }

    #[test]
    fn a_file_is_part_of_the_conversation_as_it_was() {
        let mut chat = chat();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png").display().to_string();
        chat.attach(path.clone(), Part::Image, false);
        assert_eq!((chat.attached.len(), chat.missing.take()), (0, Some(format!("{path} is missing"))));
        std::fs::write(&path, "hi").unwrap();
        chat.attach(path.clone(), Part::Image, false);
        std::fs::write(&path, "ho").unwrap();
        assert_eq!(chat.attached, [(Part::Image, MediaSource::Image(Locator::bytes(path.clone(), *b"hi")))]);
        chat.attach(path.clone(), Part::Video, false);
        let locators = vec![Locator::bytes(path, *b"ho")];
        let video = (Part::Video, MediaSource::Video(VideoSource { locators, fps: None }));
        assert_eq!((chat.attached.len(), &chat.attached[1]), (2, &video));
        assert_eq!(chat.missing, None);
    }
}
