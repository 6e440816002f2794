//! `loongforge generate --prompts`: an answer to each line of a file.

use super::prompts::Prompts;
use crate::answer::{Piece, Wanted, answer_each, room};
use crate::cli::asking::{AskedModel, Choosing, MAX_NEW_TOKENS};
use crate::cli::{UsageError, exit};
use crate::eval::generator::Reader;
use anyhow::{Context, Result};
use loongforge_core::data::{Conversation, MediaSource, Part, Question, Sample, Turn, Written};
use loongforge_core::message::SampleId;
use loongforge_core::observe::safe;
use loongforge_core::openai::Finish;
use loongforge_core::text::plural;
use serde_json::{Map, Value, json};
use std::fs::OpenOptions;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;

/// Bad lines that are named one by one.
const LISTED: usize = 10;

/// Options for the answers to the lines of a file.
pub struct FileArgs<'a> {
    pub model: &'a AskedModel,
    pub choosing: &'a Choosing,
    /// `None`: as of a single prompt.
    pub max_new_tokens: Option<usize>,
    /// Texts are continued without the chat template.
    pub raw: bool,
    /// Answers that are made together.
    pub batch: usize,
    /// Answers to each line.
    pub num_answers: u64,
    /// An output file that is there is replaced.
    pub overwrite: bool,
}

/// A line that can be answered.
#[derive(Clone)]
struct Asked {
    /// The fields of the output beside the answer.
    record: Value,
    sample: Rc<Sample>,
    wanted: Wanted,
}

impl Asked {
    /// Returns the line once for each of `count` answers, which have draws of their own.
    fn draws(self, count: u64) -> impl Iterator<Item = Self> {
        (0..count).zip(std::iter::repeat_n(self, count as usize)).map(move |(draw, mut asked)| {
            if let Some(sampling) = &mut asked.wanted.sampling {
                sampling.seed = sampling.seed.wrapping_add(draw);
            }
            if count > 1 {
                asked.record["sample"] = draw.into();
            }
            asked
        })
    }
}

/// An answer that is made.
#[derive(Default)]
struct Told {
    text: String,
    end: Option<(Finish, usize)>,
}

/// Answers every line of `prompts`, in order, into `out`. Bad lines are named, counted and left out; with one the exit code is that
/// of a failed check.
///
/// # Errors
/// Fails if the model or `prompts` cannot be read, or `out` exists, is `prompts` or cannot be written.
pub fn answer_file(args: &FileArgs<'_>, prompts: &Path, out: &Path) -> Result<ExitCode> {
    let named = |path: &Path, error: &dyn std::fmt::Display| UsageError::new(format!("{}: {error}", path.display()));
    let mut lines = Prompts::open(prompts).map_err(|error| named(prompts, &error))?;
    // Before the model is loaded, and never over what is being read.
    if !args.overwrite && out.exists() {
        return Err(named(out, &"already exists; --overwrite replaces it").into());
    }
    if out.canonicalize().is_ok_and(|out| prompts.canonicalize().is_ok_and(|prompts| prompts == out)) {
        return Err(named(out, &"is the file that the prompts are read from").into());
    }
    let reader = args.model.open()?;
    let mut options = OpenOptions::new();
    options.write(true);
    let file = if args.overwrite { options.create(true).truncate(true) } else { options.create_new(true) }.open(out);
    let mut output = BufWriter::new(file.map_err(|error| named(out, &error))?);
    let mut folder = prompts.parent().map(|it| it.display().to_string()).unwrap_or_default();
    if !folder.is_empty() && !folder.ends_with('/') {
        folder.push('/');
    }
    let mut waiting = Vec::new();
    let (mut num_answers, mut num_tokens, mut num_bad) = (0, 0, 0);
    while let Some((number, record)) = lines.next_prompt().with_context(|| prompts.display().to_string())? {
        let asked = match record.and_then(|record| ask(&reader, args, record, number, &folder)) {
            Ok(asked) => asked,
            Err(reason) => {
                num_bad += 1;
                if num_bad <= LISTED {
                    eprintln!("{}:{number}: {}", prompts.display(), safe(&reason));
                }
                continue;
            }
        };
        for asked in asked.draws(args.num_answers) {
            waiting.push(asked);
            if waiting.len() == args.batch {
                num_tokens += write_answers(&reader, &mut waiting, &mut output, &mut num_answers)?;
            }
        }
    }
    num_tokens += write_answers(&reader, &mut waiting, &mut output, &mut num_answers)?;
    output.into_inner().map_err(|error| error.into_error()).and_then(|file| file.sync_all()).context("the output")?;
    reader.processor().notes().iter().for_each(|note| eprintln!("note: {}", safe(note)));
    let (answers, tokens) = (plural("answer", num_answers), plural("token", num_tokens as u64));
    let lines = plural("line", num_bad as u64);
    println!("{num_answers} {answers}, {num_tokens} {tokens}; {num_bad} bad {lines}");
    Ok(if num_bad == 0 { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILED) })
}

fn ask(reader: &Reader, args: &FileArgs<'_>, record: Value, number: u64, folder: &str) -> Result<Asked, String> {
    let id = record.get("id").cloned();
    let (question, expected) = Question::of_record(record, folder).map_err(|error| error.to_string())?;
    let (messages, goes_on, sample) = match &question {
        Question::Text(text) => {
            (json!([{"role": "user", "content": text}]), true, reader.processor().text_prompt(SampleId(number), text))
        }
        Question::Chat(conversation) => {
            let has_one_text = conversation.turns.len() == 1 && conversation.media.is_empty();
            let is_raw = args.raw || has_one_text && reader.processor().expect_template().is_err();
            let sample = match is_raw {
                true if !has_one_text => return Err("--raw needs a single text, not a conversation".to_owned()),
                true if !is_plain(&conversation.turns[0]) => {
                    let unused = "`tools`, `chat_template_kwargs` and keys of a message";
                    return Err(format!("{unused} need the chat template, without which the text is continued"));
                }
                true => reader.processor().text_prompt(SampleId(number), &conversation.turns[0].joined_text()),
                false => reader.processor().prompt(SampleId(number), conversation, Path::new("")),
            };
            (messages_of(conversation), is_raw, sample)
        }
    };
    let sample = sample.map_err(|error| error.to_string())?;
    if sample.input_ids.is_empty() {
        return Err("the prompt has no tokens".to_owned());
    }
    let mut record = json!({"line": number});
    let [tools, kwargs] = beside(&question);
    let expected = expected.map(Value::from);
    let fields = [
        ("id", id),
        ("messages", Some(messages)),
        ("tools", tools),
        ("chat_template_kwargs", kwargs),
        ("expected", expected),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            record[name] = value;
        }
    }
    let room = room(&reader.model().folder().json, sample.input_ids.len(), args.max_new_tokens, MAX_NEW_TOKENS)
        .map_err(|no_room| format!("the prompt has {no_room}: see --max-new-tokens"))?;
    let wanted = args.choosing.wanted(room, (number - 1) * args.num_answers);
    Ok(Asked { record, sample: Rc::new(sample), wanted: Wanted { goes_on, ..wanted } })
}

/// Returns the messages of a conversation as a line of prompts has them; media are named.
fn messages_of(conversation: &Conversation) -> Value {
    let mut media = conversation.media.iter();
    let turn = |turn: &Turn| {
        let mut message = json!({"role": turn.role});
        match turn.written {
            _ if turn.num_media() > 0 => {
                message["content"] = turn.parts.iter().map(|part| part_json(part, &mut media)).collect();
            }
            Written::Text | Written::Parts => message["content"] = turn.joined_text().into(),
            Written::Null => message["content"] = Value::Null,
            Written::Absent => {}
        }
        turn.fields.iter().for_each(|(name, value)| message[name] = value.clone());
        message
    };
    conversation.turns.iter().map(turn).collect()
}

/// Returns the functions and the variables of the chat template that a line has beside its messages, if any.
fn beside(question: &Question) -> [Option<Value>; 2] {
    let Question::Chat(conversation) = question else { return [None, None] };
    let tools: Vec<Value> = conversation.turns.iter().flat_map(|turn| turn.tools.iter().cloned()).collect();
    let variables = conversation.turns.iter().flat_map(|turn| turn.kwargs.clone());
    let variables: Map<String, Value> = variables.collect();
    [
        Some(tools).filter(|tools| !tools.is_empty()).map(Value::from),
        Some(variables).filter(|variables| !variables.is_empty()).map(Value::from),
    ]
}

/// Returns whether a message is nothing but its text, and nothing beside it is for a chat template.
fn is_plain(turn: &Turn) -> bool {
    turn.tools.is_empty() && turn.kwargs.is_empty() && turn.fields.is_empty()
}

/// Returns a part of a message; media are named.
fn part_json<'a>(part: &Part, media: &mut impl Iterator<Item = &'a MediaSource>) -> Value {
    let mut value = json!(part);
    if let Part::Text { .. } = part {
        return value;
    }
    let (kind, name) = (value["type"].as_str().unwrap_or_default().to_owned(), media.next().map(MediaSource::name));
    value[kind] = name.into();
    value
}

/// Answers what waits and writes it; returns the number of tokens.
fn write_answers(
    reader: &Reader,
    waiting: &mut Vec<Asked>,
    output: &mut impl Write,
    num_answers: &mut u64,
) -> Result<usize> {
    if waiting.is_empty() {
        return Ok(0);
    }
    let mut told: Vec<Told> = waiting.iter().map(|_| Told::default()).collect();
    let questions: Vec<_> = waiting.iter().map(|asked| (&*asked.sample, &asked.wanted)).collect();
    answer_each(reader, &questions, &mut |index, piece| {
        match piece {
            Piece::Text { text, .. } => told[index].text += &text,
            Piece::Likely(_) => {}
            Piece::End { finish, num_tokens } => told[index].end = Some((finish, num_tokens)),
        }
        true
    })?;
    let mut total = 0;
    for (Asked { mut record, .. }, Told { text, end }) in waiting.drain(..).zip(told) {
        let (finish, num_tokens) = end.context("an answer has no end")?;
        record["answer"] = text.into();
        record["tokens"] = num_tokens.into();
        record["finish_reason"] = finish.name().into();
        writeln!(output, "{record}").context("the output")?;
        (total, *num_answers) = (total + num_tokens, *num_answers + 1);
    }
    // Who reads along sees whole lines.
    output.flush().context("the output")?;
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_written_with_all_that_its_template_was_given() {
        let called = json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]});
        let messages = json!([{"role": "user", "content": "a"}, called, {"role": "tool", "content": "1"}]);
        let tools = json!([{"type": "function", "function": {"name": "f"}}]);
        let kwargs = json!({"enable_thinking": false});
        let record = json!({"messages": messages, "tools": tools, "chat_template_kwargs": kwargs});
        let (question, _) = Question::of_record(record, "").unwrap();
        let Question::Chat(conversation) = &question else { panic!("a chat") };
        assert_eq!((messages_of(conversation), beside(&question)), (messages, [Some(tools), Some(kwargs)]));
        let (question, _) = Question::of_record(json!({"messages": [{"role": "user", "content": "a"}]}), "").unwrap();
        assert_eq!(beside(&question), [None, None]);
    }

    #[test]
    fn keys_that_only_a_chat_template_reads_are_seen() {
        let is_plain = |more: Value| {
            let mut record = json!({"messages": [{"role": "user", "content": "a"}]});
            more.as_object().unwrap().iter().for_each(|(name, value)| record[name] = value.clone());
            let (Question::Chat(conversation), _) = Question::of_record(record, "").unwrap() else { panic!("a chat") };
            is_plain(&conversation.turns[0])
        };
        assert!(is_plain(json!({"id": 3})));
        for more in [
            json!({"tools": [{"type": "function", "function": {"name": "f"}}]}),
            json!({"chat_template_kwargs": {"enable_thinking": false}}),
            json!({"messages": [{"role": "user", "content": "a", "name": "Ann"}]}),
        ] {
            assert!(!is_plain(more.clone()), "{more}");
        }
    }
}
