//! Models of the hub, from a small server that speaks as much of its protocol as a download needs.

use crate::fixture::{CHECKPOINT, Fixture, Said};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The files that the server has, and the requests that it got.
#[derive(Default)]
struct LayerCache {
    files: BTreeMap<String, Vec<u8>>,
    /// Hashes that are sent instead of the true ones.
    tags: BTreeMap<String, String>,
    asked: Mutex<Vec<String>>,
}

/// Serves until the process ends.
fn serve(shelf: LayerCache) -> (String, Arc<LayerCache>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, shelf) = (listener.local_addr().unwrap(), Arc::new(shelf));
    let served = shelf.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shelf = served.clone();
            std::thread::spawn(move || while answer(&stream, &shelf).is_some() {});
        }
    });
    (format!("http://{address}"), shelf)
}

/// Answers one request; `None` where the connection ends.
fn answer(stream: &TcpStream, shelf: &LayerCache) -> Option<()> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next()?.ok()?;
    let (mut range, mut token) = (None, String::new());
    for line in lines.map_while(Result::ok).take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ").unwrap_or((&line, ""));
        match name.to_ascii_lowercase().as_str() {
            "range" => range = value.strip_prefix("bytes=").map(str::to_owned),
            "authorization" => token = value.to_owned(),
            _ => {}
        }
    }
    let path = request.split(' ').nth(1)?.to_owned();
    shelf.asked.lock().unwrap().push(format!("{path} {token}"));
    let respond = |status: &str, headers: &str, body: &[u8]| {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
        let mut stream = stream;
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).ok()
    };
    let asks = |kind: &str, revision: &str| path == format!("/api/{kind}/org/tiny/revision/{revision}");
    if ["models", "datasets"].iter().any(|kind| asks(kind, "main") || asks(kind, "v1")) {
        let siblings: Vec<String> = shelf.files.keys().map(|name| format!("{{\"rfilename\": \"{name}\"}}")).collect();
        let body = format!("{{\"sha\": \"{COMMIT}\", \"siblings\": [{}]}}", siblings.join(", "));
        return respond("200 OK", "Content-Type: application/json\r\n", body.as_bytes());
    }
    if path.starts_with("/api/models/org/gated/") {
        return respond("401 Unauthorized", "", b"");
    }
    let file = path.strip_prefix("/datasets").unwrap_or(&path);
    let file =
        file.strip_prefix(&format!("/org/tiny/resolve/{COMMIT}/")).and_then(|name| shelf.files.get_key_value(name));
    let Some((name, contents)) = file else { return respond("404 Not Found", "", b"") };
    let hash = loongforge_core::text::hex(Sha256::digest(contents));
    let tag = shelf.tags.get(name).unwrap_or(&hash);
    let range = range.unwrap_or_else(|| "0-".to_owned());
    let (start, end) = range.split_once('-')?;
    let start: usize = start.parse().ok()?;
    let end = end.parse().map_or(contents.len(), |end: usize| (end + 1).min(contents.len()));
    let (last, len) = (end.saturating_sub(1), contents.len());
    let headers =
        format!("ETag: \"{tag}\"\r\nX-Repo-Commit: {COMMIT}\r\nContent-Range: bytes {start}-{last}/{len}\r\n");
    respond("206 Partial Content", &headers, &contents[start.min(end)..end])
}

/// Returns a trained model's files, and some that must not be fetched.
fn shelf(fixture: &Fixture) -> LayerCache {
    let mut files = BTreeMap::new();
    for (path, contents) in fixture.contents(CHECKPOINT) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.starts_with("optimizer") && name != "MANIFEST.json" {
            files.insert(name, contents);
        }
    }
    for name in ["pytorch_model.bin", "modeling_tiny.py", "onnx/model.json", "../../escape.json"] {
        files.insert(name.to_owned(), b"never fetched".to_vec());
    }
    LayerCache { files, ..LayerCache::default() }
}

fn inspect(fixture: &Fixture, id: &str, environment: &[(&str, &str)]) -> Said {
    let home = fixture.path("home").display().to_string();
    let environment: Vec<(&str, &str)> = [("HF_HOME", home.as_str()), ("NO_PROXY", "127.0.0.1")]
        .into_iter()
        .chain(environment.iter().copied())
        .collect();
    fixture.start_in(&["checkpoint", "inspect", id], &environment)
}

#[test]
fn a_model_is_fetched_once_and_serves_without_network() {
    let fixture = Fixture::trained();
    let (endpoint, shelf) = serve(shelf(&fixture));
    let online = [("HF_ENDPOINT", endpoint.as_str()), ("HF_TOKEN", "secret")];
    let said = inspect(&fixture, "org/tiny", &online);
    assert!(said.code == 0 && said.out.contains("qwen3_vl"), "{}", said.err);
    let asked = shelf.asked.lock().unwrap().clone();
    assert!(asked.iter().all(|request| request.ends_with("Bearer secret")), "{asked:?}");
    for name in ["pytorch_model.bin", "modeling_tiny.py", "onnx", "escape"] {
        assert!(!asked.iter().any(|request| request.contains(name)), "{name} was asked for");
    }
    let snapshot = fixture.path("home/hub/models--org--tiny/snapshots").join(COMMIT);
    assert!(snapshot.join("tokenizer.json").exists() && snapshot.join("chat_template.jinja").exists());

    let before = shelf.asked.lock().unwrap().len();
    for id in ["org/tiny@v1", "org/tiny"] {
        assert_eq!(inspect(&fixture, id, &online).code, 0);
    }
    let again = shelf.asked.lock().unwrap()[before..].to_vec();
    assert!(again.iter().all(|request| request.starts_with("/api/")), "{again:?}");
    let offline = [("HF_HUB_OFFLINE", "1"), ("HF_ENDPOINT", "http://127.0.0.1:1")];
    for id in ["org/tiny", "org/tiny@v1", &format!("org/tiny@{COMMIT}")] {
        assert_eq!(inspect(&fixture, id, &offline).code, 0, "{id}");
    }
    // A hub that is away is no reason to stop where everything is here.
    assert_eq!(inspect(&fixture, "org/tiny", &offline[1..]).code, 0);
    fails(&fixture, "org/other", &offline, &["org/other is not in", "HF_HUB_OFFLINE"]);
    std::fs::remove_file(snapshot.join("model-00002-of-00002.safetensors")).unwrap();
    fails(&fixture, "org/tiny", &offline, &["model-00002-of-00002.safetensors is missing"]);
}

/// Names them as Qwen3.5's are named.
#[test]
fn shards_with_other_names_are_fetched_and_variants_are_not() {
    let fixture = Fixture::trained();
    let mut other = shelf(&fixture);
    let named = |text: &str| text.replace("model-0", "model.safetensors-0");
    other.files = other.files.into_iter().map(|(name, contents)| (named(&name), contents)).collect();
    let index = "model.safetensors.index.json";
    let text = named(std::str::from_utf8(&other.files[index]).unwrap());
    other.files.insert(index.to_owned(), text.into_bytes());
    other.files.insert("model.fp16.safetensors".to_owned(), b"never fetched".to_vec());
    let (endpoint, shelf) = serve(other);
    let said = inspect(&fixture, "org/tiny", &[("HF_ENDPOINT", endpoint.as_str())]);
    assert!(said.code == 0 && said.out.contains("qwen3_vl"), "{}", said.err);
    let asked = shelf.asked.lock().unwrap().clone();
    let is_asked_for = |part: &str| asked.iter().any(|request| request.contains(part));
    assert!(is_asked_for("model.safetensors-00002-of-00002.safetensors") && !is_asked_for("fp16"), "{asked:?}");
}

#[track_caller]
fn fails(fixture: &Fixture, id: &str, environment: &[(&str, &str)], words: &[&str]) {
    let said = inspect(fixture, id, environment);
    assert_eq!(said.code, 2, "{}", said.err);
    for word in words {
        assert!(said.err.contains(word), "{word}:\n{}", said.err);
    }
}

#[test]
fn what_the_hub_refuses_or_gets_wrong_is_named() {
    let fixture = Fixture::trained();
    let mut wrong = shelf(&fixture);
    wrong.tags.insert("tokenizer.json".into(), "ab".repeat(32));
    let (endpoint, _) = serve(wrong);
    let online = [("HF_ENDPOINT", endpoint.as_str())];
    fails(&fixture, "org/gone", &online, &["org/gone: the hub answered not found", "revision"]);
    fails(&fixture, "org/tiny@nope", &online, &["org/tiny@nope: the hub answered not found"]);
    fails(&fixture, "org/gated", &online, &["no access", "HF_TOKEN"]);
    fails(&fixture, "org/tiny", &online, &["the SHA-256 of tokenizer.json differs from the one"]);
    fails(&fixture, "org/tiny", &[("HF_ENDPOINT", "http://127.0.0.1:1")], &["download from http://127.0.0.1:1"]);

    let mut pickled = shelf(&fixture);
    pickled.files.retain(|name, _| !name.contains("safetensors"));
    fails(&fixture, "org/tiny", &[("HF_ENDPOINT", &serve(pickled).0)], &["pickle files only (pytorch_model.bin)"]);
    let mut hostile = shelf(&fixture);
    hostile.tags.insert("config.json".into(), "../../../escaped".into());
    std::fs::remove_dir_all(fixture.path("home")).unwrap();
    fails(&fixture, "org/tiny", &[("HF_ENDPOINT", &serve(hostile).0)], &["is invalid", "config.json"]);
    assert!(!Path::new(&fixture.path("escaped")).exists());
}

/// Returns a data set of two configurations, one of them in two files.
fn talks() -> LayerCache {
    let line = |answer: &str| {
        let turns = [("user", "What?"), ("assistant", answer)];
        let turns = turns.map(|(role, text)| format!("{{\"role\": \"{role}\", \"content\": \"{text}\"}}")).join(", ");
        format!("{{\"messages\": [{turns}]}}\n").into_bytes()
    };
    let card = "---\nconfigs:\n- config_name: short\n  data_files:\n  - {split: train, path: short/train-*}\n  - {split: test, path: \
                short/test.jsonl}\n- config_name: long\n  data_files: long.jsonl\n---\n";
    let files = [
        ("README.md", card.as_bytes().to_vec()),
        ("short/train-00000-of-00002.jsonl", line("one")),
        ("short/train-00001-of-00002.jsonl", line("two")),
        ("short/test.jsonl", line("three")),
        ("long.jsonl", line("four")),
        ("load.py", b"never fetched".to_vec()),
    ];
    let files = files.into_iter().map(|(name, contents)| (name.to_owned(), contents)).collect();
    LayerCache { files, ..LayerCache::default() }
}

#[test]
fn a_set_of_episodes_is_fetched_with_all_of_its_folders() {
    let fixture = Fixture::new();
    let card = "---\nconfigs:\n- config_name: default\n  data_files: data/*/*.parquet\n---\n";
    let names = ["meta/info.json", "meta/stats.json", "meta/tasks.parquet"];
    let rows = ["meta/episodes/chunk-000/file-000.parquet", "data/chunk-000/file-000.parquet"];
    let set = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/core/data/goldens/lerobot/image");
    let files = names.into_iter().chain(rows).map(|name| (name.to_owned(), std::fs::read(set.join(name)).unwrap()));
    let groups = r#"{"state": {"arm": {"start": 0, "end": 2}}, "action": {"arm": {"start": 0, "end": 2}}}"#;
    let more = [("README.md", card), ("meta/modality.json", groups), ("notes/a.json", "never fetched")];
    let more = more.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
    let (endpoint, shelf) = serve(LayerCache { files: files.chain(more).collect(), ..LayerCache::default() });
    let home = fixture.path("home").display().to_string();
    let inspect = |words: &[&str], environment: [(&str, &str); 1]| {
        let words = [&["data", "inspect", "hf://datasets/org/tiny@v1", "--no-sandbox"][..], words].concat();
        fixture.start_in(&words, &[("HF_HOME", home.as_str()), ("NO_PROXY", "127.0.0.1"), environment[0]])
    };
    let said = inspect(&[], [("HF_ENDPOINT", &endpoint)]);
    assert!(said.code == 0 && said.out.contains("lerobot, 24 samples"), "{}{}", said.out, said.err);
    assert!(said.out.contains("state.arm") && said.out.contains("action.arm"), "{}", said.out);
    assert!(!shelf.asked.lock().unwrap().iter().any(|request| request.contains("notes")));
    let some = inspect(&["--episodes", "1"], [("HF_HUB_OFFLINE", "1")]);
    assert!(some.code == 0 && some.out.contains("lerobot, 12 samples"), "{}{}", some.out, some.err);
}

#[test]
fn data_sets_are_fetched_once_and_serve_without_network() {
    let fixture = Fixture::new();
    let (endpoint, shelf) = serve(talks());
    let home = fixture.path("home").display().to_string();
    let data = |path: &str, environment: &[(&str, &str)]| {
        let set = [("HF_HOME", home.as_str()), ("NO_PROXY", "127.0.0.1")];
        let environment: Vec<(&str, &str)> = set.into_iter().chain(environment.iter().copied()).collect();
        fixture.start_in(&["data", "inspect", path], &environment)
    };
    let online = [("HF_ENDPOINT", endpoint.as_str()), ("HF_TOKEN", "secret")];
    let offline = [("HF_HUB_OFFLINE", "1"), ("HF_ENDPOINT", "http://127.0.0.1:1")];
    let said = data("hf://datasets/org/tiny", &online);
    assert!(said.code == 2 && said.err.contains("has several configurations (short, long)"), "{}", said.err);
    let said = data("hf://datasets/org/tiny/short", &online);
    assert!(said.code == 0 && said.out.contains("2 samples") && said.out.contains("two"), "{}{}", said.out, said.err);
    let asked = shelf.asked.lock().unwrap().clone();
    assert!(asked.iter().all(|request| request.ends_with("Bearer secret")), "{asked:?}");
    assert!(!asked.iter().any(|request| request.contains("load.py") || request.contains("long")), "{asked:?}");
    assert_eq!(data("hf://datasets/org/tiny/short", &offline).out, said.out);
    assert_eq!(data("hf://datasets/org/tiny/short", &offline[1..]).code, 0, "the hub is away");
    let missing = data("hf://datasets/org/tiny/short/test", &offline);
    assert!(missing.code == 2 && missing.err.contains("short/test.jsonl is missing"), "{}", missing.err);
    for (path, words) in
        [("hf://datasets/org/tiny/long", ", 1 sample"), ("hf://datasets/org/tiny@v1/short/*.jsonl", "3 samples")]
    {
        let said = data(path, &online);
        assert!(said.code == 0 && said.out.contains(words), "{path}: {}{}", said.out, said.err);
    }
    for (path, words) in [
        ("hf://datasets/org/gone", "org/gone: the hub answered not found"),
        ("hf://datasets/org/tiny/short/dev", "no split dev: configuration short has train, test"),
        ("hf://datasets/org", "hf://datasets/ORG/NAME"),
    ] {
        let said = data(path, &online);
        assert!(said.code != 0 && said.err.contains(words), "{path}: {}", said.err);
    }
}
