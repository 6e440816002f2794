//! `loongforge generate`: asks a trained model one question, or all questions in a file.

mod file;
mod prompts;

use super::UsageError;
use super::asking::{AskedModel, Choosing, MAX_NEW_TOKENS, at_least_one};
use super::exit::OutputError;
use crate::answer::{Piece, Wanted, answer_each, room};
use crate::eval::generator::Files;
use anyhow::Context;
use clap::Args;
use file::{FileArgs, answer_file};
use loongforge_core::observe::safe;
use std::io::{IsTerminal, Read, Write, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "\
Examples:
  loongforge generate runs/quickstart/checkpoints/step-00000750 --image 4071.png --prompt \"Read the number.\"
  loongforge generate runs/spoken_digits --audio seven.wav --prompt \"Synthetic voice: which digit?\"
  loongforge generate Qwen3-0.6B --prompt \"A story of a fox:\" --temperature 0.7 --top-p 0.8 --seed 1
  loongforge generate runs/my --prompts questions.jsonl -o answers.jsonl --batch 16
  loongforge generate runs/my --prompts questions.jsonl -o answers.jsonl --num-answers 4 --temperature 1

A line of --prompts has `messages`, another conversation format of `data.train`, or `prompt`; a final answer is not part of the
question. Files that end with .json may have a list of these, and those that end with .txt have a text per line. A line of the
output has line, id, messages, tools, answer, tokens, finish_reason (stop or length), expected, if the line had an answer, and
sample, the number of the answer from 0 on, with --num-answers.")]
pub struct GenerateArgs {
    #[command(flatten)]
    model: AskedModel,
    /// Picture of the prompt; may be repeated
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// Video of the prompt: an animated GIF, an MP4 file or a folder of frames; may be repeated
    #[arg(long, value_name = "FILE")]
    video: Vec<PathBuf>,
    /// Recording of the prompt; may be repeated
    #[arg(long, value_name = "FILE")]
    audio: Vec<PathBuf>,
    /// Prompt; `-` reads it from standard input; `<image>`, `<video>` or `<audio>` in it is the place of the next file [default with
    /// files: none]
    #[arg(long, value_name = "TEXT", required_unless_present_any = ["prompts", "image", "video", "audio"])]
    prompt: Option<String>,
    /// File of prompts: JSONL, a JSON list (.json), or a text per line (.txt)
    #[arg(long, value_name = "FILE", requires = "out", conflicts_with_all = ["prompt", "image", "video", "audio"])]
    prompts: Option<PathBuf>,
    /// JSONL file to write with the answers to --prompts
    #[arg(short, long, value_name = "FILE", requires = "prompts")]
    out: Option<PathBuf>,
    /// Replace the output file
    #[arg(long, requires = "prompts")]
    overwrite: bool,
    /// Number of answers made together
    #[arg(long, value_name = "N", default_value_t = 8, requires = "prompts", value_parser = clap::value_parser!(u32).range(1..=1024))]
    batch: u32,
    /// Number of answers to each prompt, drawn independently
    #[arg(
        long, value_name = "N", default_value_t = 1, requires = "prompts", requires = "temperature",
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    num_answers: u32,
    /// Continue the prompt without the chat template [default if the model has none]
    #[arg(long, conflicts_with_all = ["image", "video", "audio", "template_kwargs"])]
    raw: bool,
    /// Maximum number of new tokens [default: 128, or what the model's context leaves]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    max_new_tokens: Option<usize>,
    #[command(flatten)]
    choosing: Choosing,
}

/// Bytes of a prompt from standard input.
const MAX_PROMPT: u64 = 16 << 20;

/// Runs `loongforge generate`: prints the answer to one prompt, or writes those to a file of prompts.
pub fn generate(args: GenerateArgs) -> anyhow::Result<ExitCode> {
    if let (Some(prompts), Some(out)) = (&args.prompts, &args.out) {
        let GenerateArgs { model, choosing, max_new_tokens, raw, overwrite, .. } = &args;
        let (max_new_tokens, raw, overwrite, batch) = (*max_new_tokens, *raw, *overwrite, args.batch as usize);
        let num_answers = u64::from(args.num_answers);
        if num_answers > 1 && choosing.is_greedy() {
            let reason = "--num-answers above 1 needs a --temperature above 0: greedy answers are all the same";
            return Err(UsageError::new(reason).into());
        }
        let args = FileArgs { model, choosing, max_new_tokens, raw, batch, num_answers, overwrite };
        return answer_file(&args, prompts, out);
    }
    let reader = args.model.open()?;
    let prompt = match args.prompt.as_deref().unwrap_or_default() {
        "-" => prompt_of(stdin())?,
        text => text.to_owned(),
    };
    let files = Files { images: &args.image, videos: &args.video, recordings: &args.audio };
    let has_only_text = args.image.is_empty() && args.video.is_empty() && args.audio.is_empty();
    let is_raw = args.raw || (has_only_text && reader.processor().expect_template().is_err());
    let question = match is_raw {
        true => reader.text(&prompt),
        false => reader.question(&prompt, &files),
    };
    let question = question.map_err(UsageError::of_any)?;
    let processor = reader.processor();
    for unplaced in without_files(&prompt, &files, processor.media_processor().is_some(), processor.hears()) {
        eprintln!("warning: {unplaced}");
    }
    let room = room(&reader.model().folder().json, question.input_ids.len(), args.max_new_tokens, MAX_NEW_TOKENS)
        .map_err(|no_room| UsageError::new(format!("the prompt has {no_room}: see --max-new-tokens")))?;
    let wanted = Wanted { goes_on: is_raw, ..args.choosing.wanted(room, 0) };
    let (mut out, is_terminal) = (stdout(), stdout().is_terminal());
    let (mut failed, mut has_text) = (None, false);
    answer_each(&reader, &[(&question, &wanted)], &mut |_, piece| {
        has_text |= matches!(&piece, Piece::Text { text, .. } if !text.is_empty());
        let told = match piece {
            Piece::Text { text, .. } if is_terminal => write!(out, "{}", safe(&text)).and_then(|()| out.flush()),
            Piece::Text { text, .. } => write!(out, "{text}").and_then(|()| out.flush()),
            Piece::Likely(_) => Ok(()),
            Piece::End { .. } => writeln!(out),
        };
        failed = told.err();
        failed.is_none()
    })?;
    if let Some(error) = failed {
        return Err(OutputError(error).into());
    }
    if !has_text {
        eprintln!("the answer is empty: the model ended it before any text");
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns what is said of each placeholder in a prompt that is read as text, as no file is given for it, though the model takes such
/// files.
fn without_files(prompt: &str, files: &Files<'_>, sees: bool, hears: bool) -> Vec<String> {
    let kinds = [
        ("<image>", "--image", sees && files.images.is_empty()),
        ("<video>", "--video", sees && files.videos.is_empty()),
        ("<audio>", "--audio", hears && files.recordings.is_empty()),
    ];
    let unplaced = kinds.into_iter().filter(|(placeholder, _, has_none)| *has_none && prompt.contains(*placeholder));
    unplaced
        .map(|(placeholder, option, _)| {
            format!("{placeholder} in the prompt is read as text: {option} FILE is missing")
        })
        .collect()
}

/// Reads a prompt from standard input.
fn prompt_of(input: impl Read) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    input.take(MAX_PROMPT + 1).read_to_end(&mut bytes).context("standard input")?;
    if bytes.len() as u64 > MAX_PROMPT {
        return Err(UsageError::new(format!("the prompt on standard input has more than {MAX_PROMPT} bytes")).into());
    }
    String::from_utf8(bytes).context("standard input")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Command;

    #[test]
    fn a_prompt_on_standard_input_is_not_cut() {
        assert_eq!(prompt_of("é\n".as_bytes()).unwrap(), "é\n");
        assert!(prompt_of(&b"\xff"[..]).unwrap_err().to_string().contains("standard input"));
        let error = prompt_of(std::io::repeat(b'x')).unwrap_err();
        assert!(error.is::<UsageError>() && error.to_string().contains("more than 16777216 bytes"), "{error}");
    }

    #[test]
    fn placeholders_without_files_are_told_where_the_model_takes_such_files() {
        let picture = [PathBuf::from("a.png")];
        let told = |prompt: &str, images: &[PathBuf], sees: bool, hears: bool| {
            without_files(prompt, &Files { images, videos: &[], recordings: &[] }, sees, hears)
        };
        let both = told("<image> and <audio>", &[], true, true);
        assert_eq!(both[0], "<image> in the prompt is read as text: --image FILE is missing");
        assert_eq!((both.len(), told("<image>", &picture, true, true).len()), (2, 0));
        assert_eq!(told("<audio src=a> <video>", &[], false, true), Vec::<String>::new());
    }

    #[test]
    fn a_recording_may_be_the_whole_prompt() {
        let parse = |words: &[&str]| {
            let command = GenerateArgs::augment_args(Command::new("generate"));
            command.try_get_matches_from([&["generate", "run"], words].concat()).is_ok()
        };
        assert!(parse(&["--audio", "a.wav"]) && parse(&["--image", "a.png"]) && parse(&["--prompt", "a"]));
        assert!(parse(&["--video", "a.mp4"]) && !parse(&["--video", "a.mp4", "--raw"]));
        assert!(!parse(&[]) && !parse(&["--audio", "a.wav", "--prompts", "a.jsonl", "--out", "b.jsonl"]));
    }
}
