//! The parsers of untrusted bytes.

use crate::config::{load_text, load_text_with};
use crate::data::fuzz as data;
use crate::message::{ActorId, Command, Event, SampleId, SampleMeta, StepPlan, decode};
use crate::openai::fuzz as openai;
use crate::robot::wire::fuzz as wire;
use crate::schedule::SchedulerState;
use crate::transport::Header;
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
    Target { name: "arrow", run: |bytes| data::source("a.arrow", bytes), seeds: data::arrow_files },
    Target { name: "completions", run: openai::completions, seeds: openai::bodies },
    Target { name: "config", run: config, seeds: config_files },
    Target { name: "frames", run: frames, seeds: messages },
    Target { name: "hub_card", run: data::hub_card, seeds: data::hub_cards },
    Target { name: "image", run: data::image, seeds: || data::picture_files("") },
    Target { name: "index", run: data::index, seeds: data::indexes },
    Target { name: "json", run: |bytes| data::source("a.jsonl", bytes), seeds: data::json_files },
    Target { name: "messages", run: data::messages, seeds: data::lines },
    Target { name: "npy", run: data::npy, seeds: data::npy_files },
    Target { name: "overrides", run: overrides, seeds: override_lines },
    Target { name: "packed", run: data::packed, seeds: data::packed_files },
    Target { name: "parquet", run: |bytes| data::source("a.parquet", bytes), seeds: data::tables },
    Target { name: "request", run: wire::request, seeds: wire::requests },
    Target { name: "sheet", run: |bytes| data::source("a.csv", bytes), seeds: data::sheets },
    Target { name: "sound", run: data::sound, seeds: data::sound_files },
    Target { name: "state", run: state, seeds: states },
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

/// Reads each line as an override of the command line.
fn overrides(bytes: &[u8]) {
    const CONFIG: &str = "version: 1\nmodel: {load: a}\ndata: {train: [{path: b.jsonl}]}\n";
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // No names of files: `group=option` looks for them in a folder that is not there.
    let lines: Vec<String> = text.lines().take(64).map(str::to_owned).collect();
    if let Err(report) = load_text_with(CONFIG, &lines) {
        assert!(!report.to_string().is_empty());
    }
}

fn override_lines() -> Vec<Vec<u8>> {
    let lines = [
        "train.steps=3\ntrain.lr=1e-4\n~data.train\n+model.x={a: [1, 2]}",
        "data.train.0.weight=${train.steps}\na.b.c",
    ];
    lines.map(|text| text.as_bytes().to_vec()).into()
}

/// Reads the scheduler's state in a checkpoint's manifest.
fn state(bytes: &[u8]) {
    if let Ok(state) = serde_json::from_slice::<SchedulerState>(bytes) {
        assert!(state.held.is_sorted());
        let again = serde_json::to_string(&state).expect("JSON of a state");
        assert_eq!(serde_json::from_str::<SchedulerState>(&again).ok().map(|again| again.held), Some(state.held));
    }
}

fn states() -> Vec<Vec<u8>> {
    let text = r#"{"cursor":99,"held":"5 9-11 20","ledger":"0123456789abcdef"}"#;
    vec![text.as_bytes().to_vec(), br#"{"cursor":18446744073709551615}"#.to_vec()]
}

fn config_files() -> Vec<Vec<u8>> {
    let small = b"version: 1\nmodel: {path: a}\ndata:\n  train: [{path: b.jsonl, weight: 2}]\ntrain: &t {steps: 3, lr: 1e-4}\nx: *t\n";
    vec![small.to_vec(), b"a: [1, {b: !!str 2}, \"c\\u0041\"]\n---\n? d\n: |\n  e\n".to_vec()]
}

/// Reads a stream of control messages as each kind; then the same bytes without a frame.
fn frames(bytes: &[u8]) {
    let mut unframer = Unframer { buffer: bytes.to_vec() };
    while let Ok(Some(_)) = unframer.next::<Command>() {}
    let mut unframer = Unframer { buffer: bytes.to_vec() };
    while let Ok(Some(_)) = unframer.next::<Event>() {}
    let _ = unframer.end();
    let _ = decode::<Command>(bytes);
    let _ = decode::<Event>(bytes);
    let _ = decode::<StepPlan>(bytes);
    // What ends of an edge say to each other first, what is before a parcel's tensors, and what data actors measure.
    let mut unframer = Unframer { buffer: bytes.to_vec() };
    while let Ok(Some(_)) = unframer.next::<(ActorId, ActorId, u64)>() {}
    let _ = decode::<Header>(bytes);
    let _ = decode::<Vec<SampleMeta>>(bytes);
}

fn messages() -> Vec<Vec<u8>> {
    use crate::message::{Commit, Grid, ItemMeta, StepId, Tower, encode};
    let commit = Command::Commit(Commit { step: StepId(7), clip_scale: 0.5, learning_rate: 1e-4 });
    let framed = frame(&commit).expect("a short message");
    let abort = Command::Abort { step: StepId(300) };
    let hello = frame(&(ActorId::data(1), ActorId::encoder(2), 1_u64 << 20)).expect("a short message");
    let items = vec![ItemMeta { tower: Tower::Vision, grid: Grid { t: 1, h: 4, w: 6 }, num_features: 6 }];
    let sample =
        SampleMeta { owner: 1, items, documents: vec![100, 200], ..SampleMeta::of_tokens(SampleId(7), 300, 20) };
    let encoded = |message: &Command| encode(message).expect("a message");
    vec![framed, encoded(&commit), encoded(&abort), hello, encode(&vec![sample]).expect("a message")]
}
