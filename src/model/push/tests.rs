//! Tests with a small server that checks each request, and answers as the hub does.

use super::*;
use loongforge_core::text::hex;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// The server's state: its objects, and the requests that it got.
#[derive(Default)]
struct Server {
    endpoint: String,
    /// Large files are sent in parts of so many bytes.
    chunk: Option<usize>,
    /// Answers of the status 503 that come first.
    stumbles: Mutex<usize>,
    is_there: bool,
    /// A file of an earlier push.
    old: Option<&'static str>,
    asked: Mutex<Vec<String>>,
    /// The stored objects by their hashes.
    stored: Mutex<BTreeMap<String, Vec<u8>>>,
    parts: Mutex<BTreeMap<String, Vec<u8>>>,
    commits: Mutex<Vec<Vec<Value>>>,
}

fn serve(server: Server) -> Arc<Server> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let server = Arc::new(Server { endpoint, ..server });
    let served = server.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let server = served.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while answer(&mut reader, &stream, &server).is_some() {}
            });
        }
    });
    server
}

/// Answers one request; `None` where the connection ends.
fn answer(reader: &mut BufReader<TcpStream>, mut stream: &TcpStream, server: &Server) -> Option<()> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
    let (method, path) = line.trim_end().rsplit_once(' ')?.0.split_once(' ')?;
    let (method, path) = (method.to_owned(), path.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    assert!(!headers.contains_key("transfer-encoding"), "{path}: presigned addresses take no chunks");
    let len = headers.get("content-length").map_or(0, |len| len.parse().unwrap());
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    let token = headers.get("authorization").cloned().unwrap_or_default();
    server.asked.lock().unwrap().push(format!("{method} {path} {token}"));
    let stumbles = {
        let mut left = server.stumbles.lock().unwrap();
        let stumbles = *left > 0;
        *left = left.saturating_sub(1);
        stumbles
    };
    let (status, extra, text) = match stumbles {
        true => ("503 Service Unavailable", String::new(), String::new()),
        false => respond(server, &method, &path, &headers, &body),
    };
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{extra}\r\n{text}", text.len());
    stream.write_all(head.as_bytes()).ok()
}

fn respond(
    server: &Server,
    method: &str,
    path: &str,
    headers: &BTreeMap<String, String>,
    body: &[u8],
) -> (&'static str, String, String) {
    let json = || -> Value { serde_json::from_slice(body).unwrap() };
    let ok = |value: Value| ("200 OK", String::new(), value.to_string());
    match (method, path) {
        ("POST", "/api/repos/create") => {
            assert_eq!(json(), json!({"organization": "me", "name": "it", "type": "model", "private": true}));
            match server.is_there {
                true => {
                    ("409 Conflict", String::new(), "{\"error\": \"You already created this model repo\"}".to_owned())
                }
                false => ok(json!({"url": "https://hub/me/it"})),
            }
        }
        ("POST", "/api/models/me/it/branch/v1") => ok(Value::Null),
        ("POST", "/api/models/me/it/preupload/main" | "/api/models/me/it/preupload/v1") => {
            let of = |file: &Value| {
                let sample = STANDARD.decode(file["sample"].as_str().unwrap()).unwrap();
                assert!(sample.len() as u64 <= 512 && sample.len() as u64 <= file["size"].as_u64().unwrap());
                let is_large = file["path"].as_str().unwrap().ends_with(".safetensors");
                json!({"path": file["path"], "uploadMode": if is_large { "lfs" } else { "regular" }, "shouldIgnore": false})
            };
            ok(json!({"files": json()["files"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()}))
        }
        ("POST", "/api/models/me/it/paths-info/main") if server.old.is_some() => {
            let asked = json();
            let found = asked["paths"].as_array().unwrap().iter().filter(|path| path.as_str() == server.old);
            ok(found.map(|path| json!({"type": "file", "path": path})).collect())
        }
        ("POST", "/me/it.git/info/lfs/objects/batch") => {
            assert_eq!(headers["content-type"], "application/vnd.git-lfs+json");
            let asked = json();
            assert_eq!((&asked["operation"], &asked["hash_algo"]), (&json!("upload"), &json!("sha256")));
            let of = |object: &Value| place(server, object);
            ok(
                json!({"transfer": "basic", "objects": asked["objects"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()}),
            )
        }
        ("PUT", _) if path.starts_with("/store/") => {
            assert_eq!(headers["x-signed"], "yes");
            server.stored.lock().unwrap().insert(path[7..].to_owned(), body.to_vec());
            ("200 OK", String::new(), String::new())
        }
        ("PUT", _) if path.starts_with("/part/") => {
            server.parts.lock().unwrap().insert(path[6..].to_owned(), body.to_vec());
            ("200 OK", format!("ETag: \"tag{}\"\r\n", &path[6..]), String::new())
        }
        ("POST", "/complete") => {
            let parts = server.parts.lock().unwrap();
            for (part, name) in json()["parts"].as_array().unwrap().iter().zip(parts.keys()) {
                assert_eq!(part["etag"], json!(format!("\"tag{name}\"")));
                assert_eq!(part["partNumber"].to_string(), *name);
            }
            let oid = json()["oid"].as_str().unwrap().to_owned();
            server.stored.lock().unwrap().insert(oid, parts.values().flatten().copied().collect());
            ok(json!({}))
        }
        ("POST", "/verify") => {
            let stored = server.stored.lock().unwrap();
            let bytes = &stored[json()["oid"].as_str().unwrap()];
            assert_eq!(json!(hex(Sha256::digest(bytes))), json()["oid"]);
            ok(json!({}))
        }
        ("POST", "/api/models/me/it/commit/main" | "/api/models/me/it/commit/v1") => {
            assert_eq!(headers["content-type"], "application/x-ndjson");
            let lines = std::str::from_utf8(body).unwrap().lines().map(|line| serde_json::from_str(line).unwrap());
            server.commits.lock().unwrap().push(lines.collect());
            ok(json!({"commitUrl": "https://hub/me/it/commit/c0ffee", "commitOid": "c0ffee"}))
        }
        _ => ("404 Not Found", String::new(), "{\"error\": \"Repository not found\"}".to_owned()),
    }
}

/// Returns the actions by which an object is uploaded; none where it is stored.
fn place(server: &Server, object: &Value) -> Value {
    let oid = object["oid"].as_str().unwrap();
    if server.stored.lock().unwrap().contains_key(oid) {
        return json!({"oid": oid, "size": object["size"]});
    }
    let at = |path: &str| format!("{}{path}", server.endpoint);
    let upload = match server.chunk {
        None => json!({"href": at(&format!("/store/{oid}")), "header": {"x-signed": "yes"}}),
        Some(chunk) => {
            let count = object["size"].as_u64().unwrap().div_ceil(chunk as u64);
            let mut header = json!({"chunk_size": chunk.to_string()});
            (1..=count).for_each(|part| header[format!("{part:05}")] = json!(at(&format!("/part/{part}"))));
            json!({"href": at("/complete"), "header": header})
        }
    };
    json!({"oid": oid, "size": object["size"], "actions": {"upload": upload, "verify": {"href": at("/verify")}}})
}

fn model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, contents) in
        [("config.json", "{}"), ("model.safetensors", "weights of a model"), ("MANIFEST.json", "{}")]
    {
        fs::write(folder.path().join(name), contents).unwrap();
    }
    folder
}

fn pushed(server: &Server, folder: &Path, revision: &str) -> Result<Pushed, PushError> {
    push(Hub::at(&server.endpoint, Some("secret")), folder, "me/it", true, revision, &mut |_| {})
}

#[test]
fn a_model_is_one_commit_and_what_the_hub_has_is_not_sent_again() {
    let folder = model();
    for chunk in [None, Some(7)] {
        let server = serve(Server { chunk, stumbles: Mutex::new(1), ..Server::default() });
        let first = pushed(&server, folder.path(), "v1").unwrap();
        assert_eq!(
            (first.url.as_str(), first.num_files, first.bytes),
            ("https://hub/me/it/commit/c0ffee", 2, [20, 20])
        );
        assert_eq!(first.left_out, ["MANIFEST.json"]);
        let oid = hex(Sha256::digest("weights of a model"));
        assert_eq!(server.stored.lock().unwrap()[&oid], b"weights of a model");
        assert_eq!(server.parts.lock().unwrap().len(), if chunk.is_some() { 3 } else { 0 });
        let commits = server.commits.lock().unwrap().clone();
        let [header, config, weights] = commits[0].as_slice() else { panic!("{commits:?}") };
        assert_eq!(header["key"], "header");
        assert_eq!(
            *config,
            json!({"key": "file", "value": {"content": "e30=", "path": "config.json", "encoding": "base64"}})
        );
        let value = json!({"path": "model.safetensors", "algo": "sha256", "oid": oid, "size": 18});
        assert_eq!(*weights, json!({"key": "lfsFile", "value": value}));
        assert!(server.asked.lock().unwrap().iter().all(|asked| asked.ends_with("Bearer secret")));
        let again = pushed(&server, folder.path(), "main").unwrap();
        assert_eq!(again.bytes, [20, 2]);
        let puts = server.asked.lock().unwrap().iter().filter(|asked| asked.starts_with("PUT")).count();
        assert_eq!(puts, if chunk.is_some() { 3 } else { 1 });
    }
}

#[test]
fn a_repository_that_is_there_is_taken_and_refusals_are_named() {
    let folder = model();
    let server = serve(Server { is_there: true, ..Server::default() });
    pushed(&server, folder.path(), "main").unwrap();
    let refused = |id: &str, token: Option<&str>, revision: &str| {
        let hub = Hub::at(&server.endpoint, token);
        push(hub, folder.path(), id, true, revision, &mut |_| {}).unwrap_err().to_string()
    };
    assert!(refused("me/it", None, "main").contains("needs a token that may write: set HF_TOKEN"));
    assert!(refused("it", Some("secret"), "main").contains("not an id of the hub"));
    assert!(refused("me/it", Some("secret"), "a/b").contains("not an id of the hub"));
    let gone = refused("me/it", Some("secret"), "gone");
    assert!(gone.contains("creating the branch gone of me/it: the hub answered 404: Repository not found"), "{gone}");
    let before = server.asked.lock().unwrap().len();
    fs::remove_file(folder.path().join("config.json")).unwrap();
    assert!(refused("me/it", Some("secret"), "main").contains("holds no model"));
    assert_eq!(server.asked.lock().unwrap().len(), before, "nothing was asked");
}

#[test]
fn adapters_beside_whole_weights_are_said_to_be_pushed_with_them() {
    let folder = model();
    let server = serve(Server::default());
    let said = || {
        let mut said = Vec::new();
        let hub = Hub::at(&server.endpoint, Some("secret"));
        push(hub, folder.path(), "me/it", true, "main", &mut |line| said.push(line)).unwrap();
        said.concat()
    };
    assert!(!said().contains("adapters"));
    fs::write(folder.path().join(ADAPTER_CONFIG), "{}").unwrap();
    let said = said();
    assert!(said.contains("whole weights (model.safetensors) and adapters (adapter_config.json)"), "{said}");
}

#[test]
fn earlier_weights_that_could_be_read_in_place_of_those_pushed_are_removed() {
    for (new, old) in [(INDEX_FILE, SINGLE_FILE), (SINGLE_FILE, INDEX_FILE), (SINGLE_FILE, ADAPTER_CONFIG)] {
        let folder = tempfile::tempdir().unwrap();
        for name in ["config.json", new] {
            fs::write(folder.path().join(name), "{}").unwrap();
        }
        let server = serve(Server { old: Some(old), ..Server::default() });
        pushed(&server, folder.path(), "main").unwrap();
        let commits = server.commits.lock().unwrap().clone();
        assert!(commits[0].contains(&json!({"key": "deletedFile", "value": {"path": old}})), "{commits:?}");
    }
}
