//! The parsers of untrusted bytes.

use crate::config::load_text;
use crate::data::fuzz as data;
use crate::message::{Command, Event, StepPlan, decode};
use crate::transport::frame::{Unframer, frame};

/// A parser and what to begin from.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Good inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Every one of them, by name.
pub const TARGETS: &[Target] = &[
    Target { name: "animation", run: data::animation, seeds: || data::picture_files("gif") },
    Target { name: "archive", run: |bytes| data::source("a.tar", bytes), seeds: data::archives },
    Target { name: "config", run: config, seeds: config_files },
    Target { name: "frames", run: frames, seeds: messages },
    Target { name: "image", run: data::image, seeds: || data::picture_files("") },
    Target { name: "json", run: |bytes| data::source("a.jsonl", bytes), seeds: data::json_files },
    Target { name: "messages", run: data::messages, seeds: data::lines },
    Target { name: "npy", run: data::npy, seeds: data::npy_files },
    Target { name: "packed", run: data::packed, seeds: data::packed_files },
    Target { name: "parquet", run: |bytes| data::source("a.parquet", bytes), seeds: data::tables },
    Target { name: "template", run: data::template, seeds: data::templates },
    Target { name: "tiktoken", run: data::tiktoken, seeds: data::tiktoken_files },
    Target { name: "tokenizer", run: data::tokenizer, seeds: data::tokenizer_files },
    Target { name: "video", run: data::video, seeds: data::video_files },
];

/// Calls the parser of that name.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("no fuzz target {name}")).run)(bytes);
}

fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match load_text(text) {
        Ok(loaded) => assert!(!loaded.to_yaml().is_empty()),
        // Said to the user: made of the text's own pieces.
        Err(report) => assert!(!report.to_string().is_empty()),
    }
}

fn config_files() -> Vec<Vec<u8>> {
    let small = b"version: 1\nmodel: {path: a}\ndata:\n  train: [{path: b.jsonl, weight: 2}]\ntrain: &t {steps: 3, lr: 1e-4}\nx: *t\n";
    vec![small.to_vec(), b"a: [1, {b: !!str 2}, \"c\\u0041\"]\n---\n? d\n: |\n  e\n".to_vec()]
}

/// A stream of control messages, read as each kind; then the same bytes without a frame.
fn frames(bytes: &[u8]) {
    let mut unframer = Unframer { buffer: bytes.to_vec() };
    while let Ok(Some(_)) = unframer.next::<Command>() {}
    let mut unframer = Unframer { buffer: bytes.to_vec() };
    while let Ok(Some(_)) = unframer.next::<Event>() {}
    let _ = unframer.end();
    let _ = decode::<Command>(bytes);
    let _ = decode::<Event>(bytes);
    let _ = decode::<StepPlan>(bytes);
}

fn messages() -> Vec<Vec<u8>> {
    use crate::message::{Commit, StepId, encode};
    let commit = Command::Commit(Commit { step: StepId(7), clip_scale: 0.5, learning_rate: 1e-4 });
    let framed = frame(&commit).expect("a short message");
    vec![framed, encode(&commit).expect("a message"), encode(&Command::Abort { step: StepId(300) }).expect("a message")]
}
