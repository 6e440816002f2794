//! The data room's parsers for `crate::fuzz`: each takes any bytes. No other code uses it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use super::audio::{Segment, decode_sound, read_header};
use super::decode::{decode_animation, decode_rgb};
use super::error::DataError;
use super::limits::Limits;
use super::media::{Sampling, Spread, mp4};
use super::npy::{read_npy, write_npy};
use super::packed::PackedSample;
use super::source::{Conversation, Source, Turn};
use super::template::ChatTemplate;
use super::{tiktoken as ranks, tokenizer_file};
use crate::config::{AudioLimits, Phase};

/// Small, so that what is large is refused and the rest is quick.
const LIMITS: Limits = Limits { max_side: 2048, max_pixels: 1 << 20 };

/// Decodes a picture; an accepted one is not empty and within the limit of pixels.
pub fn image(bytes: &[u8]) {
    if let Ok(picture) = decode_rgb(bytes, &LIMITS) {
        assert!(picture.width() > 0 && u64::from(picture.width()) * u64::from(picture.height()) <= 1 << 20);
    }
}

/// Decodes an animated GIF; an accepted one has frames and a rate above 0.
pub fn animation(bytes: &[u8]) {
    if let Ok((frames, fps)) = decode_animation(bytes, &LIMITS) {
        assert!(!frames.is_empty() && fps > 0.0);
    }
}

/// Decodes up to 8 frames of an MP4 file.
pub fn video(bytes: &[u8]) {
    let sampling = Sampling { fps: 2.0, num_frames: None, min_frames: 4, max_frames: 8, spread: Spread::Ends };
    let _ = mp4::frames(bytes, None, &LIMITS, &sampling, &mut |_| Ok(()));
}

/// Decodes at most two seconds of a recording and reads its header; accepted samples are finite.
pub fn sound(bytes: &[u8]) {
    const SECONDS: f64 = 2.0;
    // As in a run: a panic of a decoder spoils one sample.
    let decode = || {
        decode_sound(
            bytes,
            16_000,
            &AudioLimits { min_seconds: 0.0, max_seconds: SECONDS, max_tokens: None },
            Segment::WHOLE,
        )
        .map_err(DataError::Line)
    };
    if let Ok(samples) = super::processor::guarded(decode) {
        assert!(!samples.is_empty() && samples.len() <= (16_000.0 * SECONDS) as usize);
        assert!(samples.iter().all(|sample| sample.is_finite()));
    }
    let _ = super::processor::guarded(|| read_header(bytes).map_err(DataError::Line));
}

/// Returns one file of each kind that is decoded.
pub fn sound_files() -> Vec<Vec<u8>> {
    let golden = flate2::read::GzDecoder::new(&include_bytes!("audio/goldens/files.json.gz")[..]);
    let golden: Json = serde_json::from_reader(golden).expect("JSON");
    let file = |case: &Json| STANDARD.decode(case["file"].as_str().unwrap_or_default()).expect("base64");
    golden["files"].as_array().into_iter().flatten().map(file).collect()
}

/// Parses a line of chat messages; an accepted one has a placeholder for each of its files.
pub fn messages(bytes: &[u8]) {
    let Ok(line) = std::str::from_utf8(bytes) else { return };
    if let Ok(conversation) = Conversation::parse(line) {
        let num_media = conversation.turns.iter().map(Turn::num_media).sum::<usize>();
        assert_eq!(num_media, conversation.media.len());
    }
}

/// Opens and reads a file of samples of that name.
pub fn source(name: &str, bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).expect("a temporary file");
    let file = serde_json::from_value(serde_json::json!({ "path": path })).expect("a source");
    if let Ok(source) = Source::open(&file, Phase::Midtrain, 512, str::len) {
        (0..source.len().min(64)).for_each(|index| drop(source.read(index)));
    }
}

/// Reads an index of tokens beside a file of ids that is always the same.
pub fn index(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("a.idx");
    std::fs::write(&path, bytes).expect("a temporary file");
    std::fs::write(folder.path().join("a.bin"), [1; 64]).expect("a temporary file");
    let file = serde_json::from_value(serde_json::json!({ "path": path })).expect("a source");
    if let Ok(source) = Source::open(&file, Phase::Midtrain, 3, str::len) {
        (0..source.len().min(64)).for_each(|index| drop(source.read(index)));
    }
}

/// Reads the head of a data set's card.
pub fn hub_card(bytes: &[u8]) {
    let names = ["main/train-0.parquet", "test.jsonl"].map(str::to_owned);
    if let Ok(card) = std::str::from_utf8(bytes) {
        let _ = super::source::choose_hub_files(&names, Some(card), "main/train");
    }
}

/// Compiles a chat template and renders two turns with it.
pub fn template(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    if let Ok(template) = ChatTemplate::new(source, &Json::Null) {
        let turns = [Turn::text("user", "a <b> \"c\""), Turn::text("assistant", "d")];
        let _ = template.render_prompt(&turns);
    }
}

/// Parses a `tokenizer.json` and encodes a short text with it.
pub fn tokenizer(bytes: &[u8]) {
    // As in a run: its panics spoil one file or one sample.
    if let Ok(tokenizer) = tokenizer_file::parse(bytes.to_vec()) {
        let _ = super::processor::guarded(|| Ok(tokenizer.encode("a bc\n数 <|x|>", true).is_ok()));
    }
}

/// Parses a file of tiktoken ranks.
pub fn tiktoken(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = ranks::parse(text);
    }
}

/// Reads a NumPy array of integers; an accepted one has as many values as its shape says.
pub fn npy(bytes: &[u8]) {
    if let Ok((shape, values)) = read_npy(bytes) {
        assert_eq!(shape.iter().product::<usize>(), values.len());
    }
}

/// Reads the JSON of a pack, then the array of its ids, with a zero byte between them.
pub fn packed(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |&byte| byte == 0);
    let (json, array) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let member = |name: &str, bytes: &[u8]| (name.to_owned(), bytes.into());
    let members = PACK_ARRAYS.map(|name| member(name, array));
    let members: Vec<_> = members.into_iter().chain([member("json", json)]).collect();
    let _ = PackedSample::from_members(&members);
}

const PACK_ARRAYS: [&str; 3] = ["input_ids.npy", "targets.npy", "position_ids.npy"];

/// Returns a tar archive with samples of chats.
pub fn archives() -> Vec<Vec<u8>> {
    vec![include_bytes!("../fuzz/seeds/chat.tar").to_vec()]
}

/// Returns Arrow files: one with columns of many types, a stream and one of `save_to_disk`.
pub fn arrow_files() -> Vec<Vec<u8>> {
    let files: [&[u8]; 3] = [
        include_bytes!("goldens/peers/kinds.arrow"),
        include_bytes!("goldens/peers/stream.arrow"),
        include_bytes!("goldens/peers/saved/data-00000-of-00002.arrow"),
    ];
    files.map(<[u8]>::to_vec).into()
}

/// Returns indexes of Megatron's, with 16-bit and 32-bit ids.
pub fn indexes() -> Vec<Vec<u8>> {
    vec![include_bytes!("goldens/peers/tokens.idx").to_vec(), include_bytes!("goldens/peers/tokens32.idx").to_vec()]
}

/// Returns a `README.md` that lists two configurations.
pub fn hub_cards() -> Vec<Vec<u8>> {
    let card = "---\nlicense: mit\nconfigs:\n- config_name: main\n  default: true\n  data_dir: a\n  data_files:\n  - split: train\n    path: \
                [main/train-*]\n- config_name: other\n  data_files: {test: x.jsonl}\n---\n# A set\n";
    vec![card.as_bytes().to_vec()]
}

/// Returns files of JSON lines, of one array, of ShareGPT and of Alpaca records.
pub fn json_files() -> Vec<Vec<u8>> {
    let lines = lines().join(&b'\n');
    let array = [&b"["[..], &lines.split(|&byte| byte == b'\n').collect::<Vec<_>>().join(&b','), b"]"].concat();
    let other =
        br#"{"conversations":[{"from":"human","value":"<image>a"},{"from":"gpt","value":"b"}],"image":"a.png"}"#;
    vec![lines, array, other.to_vec(), br#"{"instruction":"a","input":"","output":"b","history":[["c","d"]]}"#.to_vec()]
}

/// Returns CSV files with quotation marks and line breaks in cells.
pub fn sheets() -> Vec<Vec<u8>> {
    let texts = ["instruction,input,output\r\n\"Say \"\"a, b\"\"\",,c\n\n\"two\nlines\",d,e\n", "text\na\n\"b\"\n"];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

/// Returns Parquet files of chats and of texts.
pub fn tables() -> Vec<Vec<u8>> {
    let files: [&[u8]; 2] =
        [include_bytes!("../fuzz/seeds/chat.parquet"), include_bytes!("../fuzz/seeds/text.parquet")];
    files.map(<[u8]>::to_vec).into()
}

/// Returns the pictures of the tests whose names begin so.
pub fn picture_files(kind: &str) -> Vec<Vec<u8>> {
    let cases: Json = serde_json::from_str(include_str!("goldens/formats.json")).expect("JSON");
    let cases = cases.as_array().into_iter().flatten();
    let cases = cases.filter(|case| case["name"].as_str().is_some_and(|name| name.starts_with(kind)));
    cases.map(|case| STANDARD.decode(case["file"].as_str().unwrap_or_default()).expect("base64")).collect()
}

/// Returns an H.264 and an AV1 file.
pub fn video_files() -> Vec<Vec<u8>> {
    vec![include_bytes!("goldens/clip.mp4").to_vec(), include_bytes!("goldens/clip_av1.mp4").to_vec()]
}

/// Returns records of chat messages with files, one with placeholders and one with parts.
pub fn lines() -> Vec<Vec<u8>> {
    [
        r#"{"messages":[{"role":"user","content":"<image>Read<video>é"},{"role":"assistant","content":"1"}],"images":["a.png"],"videos":[{"video":["1.png","2.png"],"fps":4}]}"#,
        r#"{"messages":[{"role":"user","content":[{"type":"image","image":"data:image/png;base64,aGVsbG8="},{"type":"text","text":"Read"}]}]}"#,
    ]
    .map(|line| line.as_bytes().to_vec())
    .into()
}

/// Returns chat templates of the program, and one with many constructs of Jinja.
pub fn templates() -> Vec<Vec<u8>> {
    let own = ["qwen", "llama3", "deepseek"].map(|name| match name {
        "qwen" => super::template::QWEN,
        "llama3" => include_str!("templates/llama3.jinja"),
        _ => include_str!("templates/deepseek.jinja"),
    });
    let wild = "{%- set ns = namespace(n=0) -%}{% for m in messages %}{% generation %}{{ m.content.strip().split('.')[0] | \
                tojson }}{% endgeneration %}{% endfor %}{{ messages[::-1][0].role | indent(2) }}{{ 2 * 'ab' }}";
    own.into_iter().chain([wild]).map(|source| source.as_bytes().to_vec()).collect()
}

/// Returns a small BPE and a small unigram `tokenizer.json`.
pub fn tokenizer_files() -> Vec<Vec<u8>> {
    let regex = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s+(?!\S)|\s+";
    let bpe = serde_json::json!({
        "version": "1.0", "added_tokens": [{"id": 5, "content": "<|x|>", "special": true, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false}], "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]},
        "post_processor": null, "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "bc": 3, "Ġ": 4}, "merges": [["b", "c"]]},
    });
    let unigram = serde_json::json!({
        "version": "1.0", "added_tokens": [], "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁a", -1.5], ["b", -2.0], ["c", -2.5]]},
    });
    [bpe, unigram].map(|json| json.to_string().into_bytes()).into()
}

/// Returns a file of ranks with all bytes and one merge.
pub fn tiktoken_files() -> Vec<Vec<u8>> {
    let lines = (0..=255u8).map(|byte| format!("{} {byte}\n", STANDARD.encode([byte])));
    vec![lines.chain([format!("{} 256\n", STANDARD.encode("ab"))]).collect::<String>().into_bytes()]
}

/// Returns an array of two rows, and an empty one.
pub fn npy_files() -> Vec<Vec<u8>> {
    vec![write_npy(&[2, 3], &[1, -2, 3, 4, 5, i32::MAX]), write_npy(&[0], &[])]
}

/// Returns a pack of two documents, in the format of [`packed`].
pub fn packed_files() -> Vec<Vec<u8>> {
    let json = br#"{"ids":[1,2],"lens":[2,1],"samples":["a","b"],"media":[]}"#;
    vec![[&json[..], b"\0", &write_npy(&[3], &[7, 8, 9])].concat()]
}
