//! Samples that are longer than a pack, cut at every place.

use std::path::Path;

use tempfile::TempDir;

use super::{Processor, ProcessorOptions};
use crate::config::{Phase, TooLong};
use crate::data::digits::{MODEL, write_model};
use crate::data::error::DataError;
use crate::data::sample::{IGNORE_INDEX, Sample};
use crate::data::source::{Conversation, TextPiece};
use crate::data::tokenizer_file::read_json;
use crate::message::SampleId;

/// Returns a folder with a model, a small picture of 1 feature, a larger one of 6, and one of 100.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), &MODEL).unwrap();
    for (name, width, height) in [("small", 16, 16), ("wide", 48, 32), ("large", 160, 160)] {
        image::RgbImage::new(width, height).save(folder.path().join(format!("{name}.png"))).unwrap();
    }
    folder
}

fn open(dir: &Path, phase: Phase, max_tokens: usize, too_long: TooLong) -> Processor {
    let config = read_json(&dir.join("config.json")).unwrap();
    let options = ProcessorOptions { learned: phase.into(), max_tokens, too_long, ..Default::default() };
    Processor::open(dir, &config, &options).unwrap()
}

/// Makes a sample of a line, at most so long.
fn cut(dir: &Path, phase: Phase, line: &str, max_tokens: usize) -> Result<Sample, DataError> {
    let processor = open(dir, phase, max_tokens, TooLong::Truncate);
    processor.training_sample(SampleId(3), &Conversation::parse(line).unwrap(), dir)
}

fn whole(dir: &Path, phase: Phase, line: &str) -> Sample {
    let processor = open(dir, phase, usize::MAX, TooLong::Skip);
    processor.training_sample(SampleId(3), &Conversation::parse(line).unwrap(), dir).unwrap()
}

/// Returns the first `len` tokens of a sample, which have so many media of so many sources.
fn prefix(whole: &Sample, len: usize, num_media: usize, num_sources: usize) -> Sample {
    let rows = whole.position_ids.chunks_exact(whole.input_ids.len()).flat_map(|row| &row[..len]);
    let mut targets = whole.targets[..len].to_vec();
    // The token that it is to say is gone.
    targets.iter_mut().last().into_iter().for_each(|last| *last = IGNORE_INDEX);
    let media = whole.media[..num_media].to_vec();
    let sample = Sample::new(whole.meta.id, whole.input_ids[..len].to_vec(), rows.copied().collect(), targets, media);
    Sample { num_sources, ..sample }
}

/// Checks that a sample was cut to this prefix, or refused for a prefix from which nothing is learned.
fn expect(cut: Result<Sample, DataError>, prefix: Sample) {
    match cut {
        Ok(cut) => assert_eq!(cut, prefix),
        Err(error) => {
            let text = error.to_string();
            assert!(
                text.contains("nothing is left to learn from") && text.contains("data.pack.too_long: truncate"),
                "{text}"
            );
            assert_eq!(prefix.meta.num_targets, 0);
        }
    }
}

const TEXT: &str = r#"{"messages":[{"role":"user","content":"ab"},{"role":"assistant","content":"cd"},
    {"role":"user","content":"e"},{"role":"assistant","content":"fgh"}]}"#;

#[test]
fn the_first_tokens_of_a_text_are_kept() {
    let folder = folder();
    let dir = folder.path();
    for phase in [Phase::Sft, Phase::Pretrain] {
        let whole = whole(dir, phase, TEXT);
        let len = whole.input_ids.len();
        for max_tokens in 1..len {
            expect(cut(dir, phase, TEXT, max_tokens), prefix(&whole, max_tokens, 0, 0));
        }
        assert_eq!(cut(dir, phase, TEXT, len).unwrap(), whole);
        assert_eq!(cut(dir, phase, TEXT, len + 1).unwrap(), whole);
        assert!(cut(dir, phase, TEXT, len - 1).is_ok() && cut(dir, phase, TEXT, 1).is_err());
    }
    let long = open(dir, Phase::Pretrain, 4, TooLong::Truncate);
    let piece = TextPiece { text: "hello".to_owned(), begins: true, ends: true };
    assert_eq!(long.text_sample(SampleId(0), &piece).unwrap().input_ids, [104, 101, 108, 108]);
}

/// A conversation with media, in the order of the text: a picture of 1 feature, one of 6, a video of 2.
const MEDIA: &str = r#"{"messages":[{"role":"user","content":"a<image>b"},{"role":"assistant","content":"cd"},
    {"role":"user","content":"<image>"},{"role":"assistant","content":"e"},
    {"role":"user","content":"<video>f"},{"role":"assistant","content":"gh"}],
    "images":["small.png","wide.png"],"videos":[{"video":["small.png","small.png","small.png"],"fps":2}]}"#;

#[test]
fn pictures_and_videos_are_whole_or_not_there() {
    let folder = folder();
    let dir = folder.path();
    for phase in [Phase::Sft, Phase::Pretrain] {
        let whole = whole(dir, phase, MEDIA);
        let tokenizer = open(dir, phase, 1, TooLong::Skip).tokenizer;
        let image = tokenizer.id("<|image_pad|>").unwrap();
        let runs: Vec<usize> = (0..whole.input_ids.len()).filter(|&at| whole.input_ids[at] == image).collect();
        assert_eq!((runs.len(), whole.media.len()), (9, 3));
        // The video begins with the time of its frames, behind the template's own token.
        let start = tokenizer.id("<|vision_start|>").unwrap();
        let starts = (0..runs[7]).filter(|&at| whole.input_ids[at] == start);
        let begins = [runs[0], runs[1], starts.rev().nth(1).unwrap() + 1];
        let ends = [runs[0] + 1, runs[6] + 1, runs[8] + 1];
        for max_tokens in 1..whole.input_ids.len() {
            let num_media = ends.iter().filter(|&&end| end <= max_tokens).count();
            let len = begins.get(num_media).map_or(max_tokens, |&begin| max_tokens.min(begin));
            expect(cut(dir, phase, MEDIA, max_tokens), prefix(&whole, len, num_media, num_media));
        }
        // Before, at and behind the second picture; the third row of positions counts its columns.
        for (max_tokens, num_media) in [(runs[1], 1), (runs[6], 1), (runs[6] + 1, 2)] {
            let sample = cut(dir, phase, MEDIA, max_tokens).unwrap();
            assert_eq!((sample.media.len(), sample.meta.items.len()), (num_media, num_media), "{max_tokens}");
        }
        assert_eq!(cut(dir, phase, MEDIA, whole.input_ids.len()).unwrap(), whole);
    }
}

#[test]
fn pictures_that_no_pack_holds_are_not_read() {
    let folder = folder();
    let turns = r#"{"role":"user","content":"<image>"},{"role":"assistant","content":"b"}"#;
    let line = |images: &str| format!(r#"{{"messages":[{turns},{turns},{turns}],"images":[{images}]}}"#);
    for phase in [Phase::Sft, Phase::Pretrain] {
        let reason = |images: &str| cut(folder.path(), phase, &line(images), 90).map_err(|error| error.to_string());
        let sample = reason(r#""small.png","large.png","gone.png""#).unwrap();
        assert_eq!((sample.media.len(), sample.num_sources), (1, 1));
        let end = open(folder.path(), phase, 1, TooLong::Skip).tokenizer.id("<|vision_start|>");
        // It ends where the large picture would begin, and not as a document does.
        assert_eq!(sample.input_ids.last().copied(), end);
        assert!(reason(r#""small.png","gone.png","large.png""#).unwrap_err().contains("gone.png"));
    }
    let nothing = cut(folder.path(), Phase::Sft, &line(r#""large.png","small.png","small.png""#), 90);
    assert!(matches!(nothing, Err(DataError::NothingLeft { max_tokens: 90 })));
}

#[test]
fn what_cannot_be_cut_is_refused() {
    let folder = folder();
    let dir = folder.path();
    // A placeholder that a text forges is one, wherever the sample is cut.
    let forged = MEDIA.replace("\"a<image>", "\"<|image_pad|>a<image>");
    for max_tokens in 1..60 {
        let error = cut(dir, Phase::Sft, &forged, max_tokens).unwrap_err().to_string();
        assert!(error.contains("placeholders"), "{max_tokens}: {error}");
    }
    let piece = TextPiece { text: "ab<|image_pad|>cd".to_owned(), begins: true, ends: true };
    for max_tokens in 1..6 {
        let long = open(dir, Phase::Pretrain, max_tokens, TooLong::Truncate);
        assert!(long.text_sample(SampleId(0), &piece).unwrap_err().to_string().contains("1 placeholder tokens"));
    }
    let none = r#"{"messages":[{"role":"user","content":"a question"}]}"#;
    let error = cut(dir, Phase::Sft, none, 5).unwrap_err().to_string();
    assert!(error.contains("no assistant message to learn from"), "{error}");
    // A question is another one without its end.
    let short = open(dir, Phase::Sft, 8, TooLong::Truncate);
    let error = short.prompt(SampleId(0), &Conversation::parse(MEDIA).unwrap(), dir).unwrap_err();
    assert!(matches!(error, DataError::TooLong { .. }), "{error}");
}
