//! Checkpoints and data in an object store: moto's S3 server, which other people wrote, and what boto3 sees in it.

use crate::fixture::{Fixture, Pictures};
use crate::must::skip;
use crate::processes::Killed;
use loongforge::core::checkpoint::{Manifest, sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const SECRET: &str = "a-secret-that-nobody-prints";
const BUCKET: &str = "shelf";

/// An S3 server that ends with the test.
struct Store {
    python: PathBuf,
    _child: Killed,
    url: String,
}

fn with_credentials(command: &mut Command) -> &mut Command {
    command
        .env("AWS_ACCESS_KEY_ID", "the-key-of-a-test")
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env("AWS_REGION", "us-east-1")
}

/// Runs the program with a store at `url`, whose requests may take so long.
fn program(url: &str, timeout: &str, fixture: &Fixture, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loongforge"));
    command.current_dir(fixture.path()).env("OMP_NUM_THREADS", "1").env("CUDA_VISIBLE_DEVICES", "");
    command.env("AWS_ENDPOINT_URL", url).env("XDG_CACHE_HOME", fixture.path().join("cache")).args(args);
    let output = with_credentials(&mut command).env("AWS_TIMEOUT", timeout).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains(SECRET), "{said}");
    output
}

impl Store {
    fn begin() -> Option<Self> {
        let python = std::env::var_os("LOONGFORGE_CLIENT_PYTHON").map(PathBuf::from);
        let Some(python) = python else {
            skip("clients", "LOONGFORGE_CLIENT_PYTHON names no Python with moto[server] 5.2.5 (docs/checkpoints.md)");
            return None;
        };
        let mut command = Command::new(&python);
        command.arg(Self::script()).arg(BUCKET).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = with_credentials(&mut command).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port: u16 = line.trim().parse().unwrap();
        Some(Self { python, _child: Killed(child), url: format!("http://127.0.0.1:{port}") })
    }

    fn script() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/object_store.py")
    }

    fn boto3(&self, args: &[&str]) -> String {
        let mut command = Command::new(&self.python);
        command.arg(Self::script()).arg(args[0]).arg(&self.url).args(&args[1..]);
        let output = with_credentials(&mut command).stderr(Stdio::inherit()).output().unwrap();
        assert!(output.status.success(), "{args:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Names and SHA-256 of all objects.
    fn objects(&self) -> BTreeMap<String, String> {
        let listed: serde_json::Value = serde_json::from_str(&self.boto3(&["--list", BUCKET])).unwrap();
        let pair = |object: &serde_json::Value| {
            (object["name"].as_str().unwrap().to_owned(), object["sha256"].as_str().unwrap().to_owned())
        };
        listed.as_array().unwrap().iter().map(pair).collect()
    }

    fn program(&self, fixture: &Fixture, args: &[&str]) -> Output {
        program(&self.url, "30s", fixture, args)
    }

    fn expect(&self, fixture: &Fixture, code: i32, args: &[&str]) -> String {
        let output = self.program(fixture, args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        said
    }
}

fn weights(checkpoint: &Path) -> Vec<String> {
    let manifest = Manifest::read(checkpoint).unwrap();
    let names = manifest.files.keys().filter(|name| name.ends_with(".safetensors"));
    names.map(|name| sha256(&checkpoint.join(name)).unwrap()).collect()
}

/// A store that takes connections and never answers.
#[test]
fn a_silent_store_ends_a_resume_and_says_so() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    std::thread::spawn(move || {
        let held: Vec<_> = silent.incoming().take(64).collect();
        drop(held);
    });
    let fixture = Fixture::new(Pictures::None);
    let output = program(&url, "100ms", &fixture, &["run", "run.yaml", "--resume", "checkpoint.upload=s3://shelf/run"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(75), "{said}");
    assert!(said.contains("checkpoint.upload cannot be read") && said.contains("s3://shelf/run"), "{said}");
}

#[test]
fn unmodified_clients_of_s3_hold_checkpoints_and_data() {
    let Some(store) = Store::begin() else { return };
    let fixture = Fixture::new(Pictures::None);
    let run = fixture.path().join("run");
    let upload = format!("checkpoint.upload=s3://{BUCKET}/runs/digits");
    let path = format!("data.train.0.path=s3://{BUCKET}/data/train.jsonl");
    let base = [
        "run.yaml",
        "train.warmup_steps=1",
        "train.schedule=constant",
        "checkpoint.every_steps=2",
        "checkpoint.keep_last=1",
        "run.deterministic=true",
    ];
    let with = |command: &str, more: &[&str]| {
        [command].iter().chain(&base).chain(more).map(|word| (*word).to_owned()).collect::<Vec<String>>()
    };
    let expect = |code: i32, words: Vec<String>| {
        store.expect(&fixture, code, &words.iter().map(String::as_str).collect::<Vec<_>>())
    };

    // What is missing is named before anything is made.
    for (word, part) in [
        ("checkpoint.upload=s3://no-such-bucket/runs", "no-such-bucket"),
        ("checkpoint.upload=s3://key:secret@shelf/runs", "credentials"),
        ("checkpoint.upload=/mnt/runs", "is not the URL of an object store"),
        (path.as_str(), "train.jsonl"),
        ("model.load=s3://shelf/nothing", "no model is there"),
    ] {
        for command in ["check", "run"] {
            let said = expect(2, with(command, &[word]));
            assert!(said.contains(part) && !run.exists(), "{word}: {said}");
        }
    }

    store.boto3(&["--put", BUCKET, "data/train.jsonl", &fixture.path().join("data/train.jsonl").display().to_string()]);
    let said = expect(0, with("run", &[&upload, &path, "train.steps=4", "checkpoint.upload_keep_last=2"]));
    assert!(said.contains("2 checkpoints were copied to s3://shelf/runs/digits"), "{said}");
    let objects = store.objects();
    for num_steps in [2, 4] {
        assert!(objects.contains_key(&format!("runs/digits/step-{num_steps:08}/MANIFEST.json")), "{objects:?}");
    }
    let checkpoint = run.join("checkpoints/step-00000004");
    for (name, entry) in &Manifest::read(&checkpoint).unwrap().files {
        assert_eq!(objects.get(&format!("runs/digits/step-00000004/{name}")), Some(&entry.sha256), "{name}");
    }

    // On a machine that has nothing.
    fs::remove_dir_all(&run).unwrap();
    let said = expect(2, with("run", &[&upload, &path, "train.steps=6"]));
    assert!(said.contains("already holds a run") && !run.join("config.yaml").exists(), "{said}");
    let more: [&str; 4] = [&upload, &path, "train.steps=6", "checkpoint.upload_keep_last=2"];
    let said = expect(0, with("run", &[&more[..], &["--resume"]].concat()));
    assert!(said.contains("fetching the checkpoint of 4 steps"), "{said}");
    let resumed = weights(&run.join("checkpoints/step-00000006"));
    let names: Vec<String> = store.objects().into_keys().filter(|name| name.ends_with("MANIFEST.json")).collect();
    assert_eq!(names, [4, 6].map(|num_steps| format!("runs/digits/step-{num_steps:08}/MANIFEST.json")));
    let straight = ["train.steps=6", "run.dir=straight", "checkpoint.dir=straight/checkpoints"];
    expect(0, with("run", &straight));
    assert_eq!(resumed, weights(&fixture.path().join("straight/checkpoints/step-00000006")));

    // A model, and a checkpoint that is damaged.
    let said = store.expect(&fixture, 0, &["checkpoint", "verify", "s3://shelf/runs/digits"]);
    assert!(!said.contains("error"), "{said}");
    let fresh = ["train.steps=1", "run.dir=fresh", "checkpoint.dir=fresh/checkpoints", "model.weights=load"];
    expect(0, with("run", &[&fresh[..], &["model.load=s3://shelf/runs/digits/step-00000004"]].concat()));
    let other = fixture.path().join("data/train.jsonl").display().to_string();
    store.boto3(&["--put", BUCKET, "runs/digits/step-00000006/config.json", &other]);
    fs::remove_dir_all(&run).unwrap();
    let said = expect(1, with("run", &[&more[..], &["--resume"]].concat()));
    assert!(said.contains("step-00000006") && said.contains("config.json"), "{said}");

    // Another run in its place.
    expect(0, with("run", &[&upload, "train.steps=1", "--overwrite"]));
    let names: Vec<String> = store.objects().into_keys().filter(|name| name.ends_with("MANIFEST.json")).collect();
    assert_eq!(names, ["runs/digits/step-00000001/MANIFEST.json"]);

    // Nothing of it is fetched into the folder of a run whose store is another one's.
    let apart = ["train.steps=2", "run.dir=apart", "checkpoint.dir=apart/checkpoints"];
    expect(0, with("run", &[&apart[..], &["checkpoint.upload=s3://shelf/runs/apart"]].concat()));
    let third = ["train.steps=4", "run.dir=third", "checkpoint.dir=third/checkpoints"];
    let resume = "--resume=s3://shelf/runs/apart/step-00000002";
    let said = expect(2, with("run", &[&third[..], &[upload.as_str(), resume]].concat()));
    assert!(said.contains("of another run") && said.contains("s3://shelf/runs/apart/step-00000002"), "{said}");
    assert!(!fixture.path().join("third/checkpoints/step-00000002").exists());
}

/// A machine does not encode what another one has encoded.
#[test]
fn unmodified_clients_of_s3_hold_features() {
    let Some(store) = Store::begin() else { return };
    let fixture = Fixture::new(Pictures::All);
    let frozen = [
        "run.yaml",
        "model.image_encoder.freeze=true",
        "model.image_projector.freeze=true",
        "train.steps=4",
        "train.warmup_steps=1",
        "train.schedule=constant",
    ];
    let lost = ["pools.encoder.cache_dir=here", "pools.encoder.cache_store=s3://no-such-bucket/features"];
    let said = store.expect(&fixture, 2, &[&["check"][..], &frozen, &lost].concat());
    assert!(said.contains("pools.encoder.cache_store") && said.contains("no-such-bucket"), "{said}");

    let url = format!("pools.encoder.cache_store=s3://{BUCKET}/features");
    let run = |machine: &str| {
        let own = [
            format!("pools.encoder.cache_dir={machine}"),
            format!("run.dir={machine}-run"),
            format!("checkpoint.dir={machine}-run/checkpoints"),
        ];
        let own: Vec<&str> = own.iter().map(String::as_str).chain([url.as_str()]).collect();
        store.expect(&fixture, 0, &[&["run"][..], &frozen, &own].concat());
        let tower = fs::read_dir(fixture.path().join(machine)).unwrap().next().unwrap().unwrap();
        let folder = format!("features/{}", tower.file_name().to_string_lossy());
        let files = fs::read_dir(tower.path()).unwrap().map(|file| file.unwrap().file_name());
        let mut names: Vec<String> = files.map(|name| format!("{folder}/{}", name.to_string_lossy())).collect();
        names.sort();
        names
    };
    let stored = || store.objects().into_keys().collect::<Vec<String>>();
    let first = run("here");
    assert!(!first.is_empty());
    assert_eq!(stored(), first);
    assert_eq!(run("there"), first);
    assert_eq!(stored(), first);
}
