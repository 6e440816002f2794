//! A trained model in use: `generate`, `chat` and `serve` of the program, and OpenAI's client, which is not changed.

use crate::fixture::{Fixture, Pictures};
use crate::must::skip;
use crate::processes::Killed;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROMPT: &str = "Say 1.";

/// Returns a checkpoint whose model has learned next to nothing, so that its answers are long.
fn trained() -> Fixture {
    let fixture = Fixture::new(Pictures::All);
    let path = fixture.path().join("model/config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["text_config"]["max_position_embeddings"] = 40_000.into();
    fs::write(path, config.to_string()).unwrap();
    fixture.run(&["train.steps=2", "train.warmup_steps=1", "checkpoint.every_steps=2"], None);
    fixture
}

fn program(fixture: &Fixture) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loongforge"));
    command.current_dir(fixture.path()).env("OMP_NUM_THREADS", "1").env("CUDA_VISIBLE_DEVICES", "");
    command
}

pub fn start(fixture: &Fixture, args: &[&str], input: &str) -> Output {
    let mut command = program(fixture);
    let mut child =
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

pub fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A server that ends with the test.
pub struct Serving {
    child: Killed,
    port: u16,
}

impl Serving {
    pub fn begin(fixture: &Fixture, args: &[&str]) -> Self {
        let mut command = program(fixture);
        command.args(["serve", "run", "--name", "tiny", "--port", "0"]).args(args).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().trim_end_matches("/v1").rsplit(':').next().and_then(|port| port.parse().ok());
        Self { child: Killed(child), port: port.unwrap_or_else(|| panic!("{line}")) }
    }

    /// Sends a request, whose answer is still to be read.
    fn send(&self, method: &str, path: &str, headers: &str, body: impl AsRef<[u8]>) -> TcpStream {
        let body = body.as_ref();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        stream.write_all(format!("{head}{headers}\r\n").as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        stream
    }

    /// Status, headers and JSON of the answer.
    pub fn ask(&self, method: &str, path: &str, headers: &str, body: impl AsRef<[u8]>) -> (u16, String, Value) {
        let mut answer = String::new();
        self.send(method, path, headers, body).read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_lowercase(), serde_json::from_str(body).unwrap_or_default())
    }

    fn chat(&self, more: Value) -> (u16, String, Value) {
        self.ask("POST", "/v1/chat/completions", "", body(more))
    }
}

/// Returns a greedy question with other fields.
fn body(more: Value) -> String {
    let mut body = json!({"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 24});
    more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
    body.to_string()
}

#[test]
fn a_checkpoint_of_ranks_and_stages_is_asked_without_options() {
    let fixture = Fixture::new(Pictures::All);
    let layout = ["pools.foundation.tensor_parallel=2", "pools.foundation.pipeline_parallel=2"];
    fixture.run(&[&["train.steps=2", "train.warmup_steps=1"], &layout[..]].concat(), None);
    let asked = |more: &[&str]| {
        let words = ["generate", "run", "--prompt", PROMPT, "--max-new-tokens", "24"];
        let output = start(&fixture, &[&words, more].concat(), "");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && !said.contains("tensor"), "{said}");
        out(&output)
    };
    let plain = asked(&[]);
    assert!(plain.len() >= 8, "{plain:?}");
    assert_eq!(asked(&["--tensor-parallel", "2"]), plain);
    assert_eq!(asked(&["--pipeline-parallel", "2"]), plain);
    let output = start(&fixture, &["generate", "run", "--prompt", PROMPT, "--pipeline-parallel", "9"], "");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--pipeline-parallel: ") && said.contains("layers for 9 pipeline stages"), "{said}");
}

#[test]
fn greedy_answers_are_equal_wherever_they_are_asked() {
    let fixture = trained();
    let generated = start(&fixture, &["generate", "run", "--prompt", PROMPT, "--max-new-tokens", "24"], "");
    let generated = out(&generated).strip_suffix('\n').unwrap().to_owned();
    assert!(generated.len() >= 8, "{generated:?}");

    let chatted = start(
        &fixture,
        &["chat", "run", "--max-new-tokens", "24"],
        &format!("{PROMPT}\n/reset\n\n{PROMPT}\n/exit\nx\n"),
    );
    assert_eq!(out(&chatted), format!("{generated}\n{generated}\n"), "{}", String::from_utf8_lossy(&chatted.stderr));
    // From a pipe a line that is no command was meant to be a message.
    let unknown = start(&fixture, &["chat", "run", "--max-new-tokens", "24"], &format!("/etc is what?\n{PROMPT}\n"));
    assert_eq!((unknown.status.code(), out(&unknown)), (Some(1), format!("{generated}\n")));

    let on_ranks = |num: &str| {
        let asked = ["generate", "run", "--prompt", PROMPT, "--max-new-tokens", "24", "--tensor-parallel", num];
        start(&fixture, &asked, "")
    };
    let shared = on_ranks("2");
    assert_eq!(out(&shared), format!("{generated}\n"), "{}", String::from_utf8_lossy(&shared.stderr));
    let refused = on_ranks("5");
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("--tensor-parallel: num_attention_heads is"), "{said}");
    let serving = Serving::begin(&fixture, &["--tensor-parallel", "2"]);
    for _ in 0..2 {
        let (status, _, answer) = serving.chat(json!({}));
        assert_eq!((status, answer["choices"][0]["message"]["content"].as_str()), (200, Some(&*generated)), "{answer}");
    }
    drop(serving);
    // Supervisors end a server with SIGTERM, people with Ctrl-C.
    for signal in ["-TERM", "-INT"] {
        let mut serving = Serving::begin(&fixture, &[]);
        assert_eq!(serving.ask("GET", "/health", "", "").0, 200);
        // Also while it answers.
        let long = body(json!({"max_tokens": 1000, "stream": true}));
        let mut answering = serving.send("POST", "/v1/chat/completions", "", &long);
        answering.read_exact(&mut [0; 15]).unwrap();
        assert!(Command::new("kill").args([signal, &serving.child.0.id().to_string()]).status().unwrap().success());
        assert_eq!(serving.child.0.wait().unwrap().code(), Some(0), "{signal}");
    }

    let lines = [
        json!({"prompt": PROMPT, "id": "a"}).to_string(),
        "no json".to_owned(),
        String::new(),
        json!({"messages": [{"role": "user", "content": "Say 7."}, {"role": "assistant", "content": "b"}]}).to_string(),
        json!({"prompt": "<image>?", "images": ["gone.png"]}).to_string(),
        json!({"conversations": [{"from": "human", "value": PROMPT}]}).to_string(),
    ];
    fs::write(fixture.path().join("prompts.jsonl"), lines.join("\n")).unwrap();
    let args = [
        "generate",
        "run",
        "--prompts",
        "prompts.jsonl",
        "-o",
        "answers.jsonl",
        "--max-new-tokens",
        "24",
        "--batch",
        "2",
    ];
    let made = start(&fixture, &args, "");
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    assert_eq!(made.status.code(), Some(1), "{said}");
    assert!(
        said.contains("prompts.jsonl:2: ") && said.contains("prompts.jsonl:5: ") && said.contains("gone.png"),
        "{said}"
    );
    assert!(out(&made).starts_with("3 answers, ") && out(&made).ends_with("2 bad lines\n"), "{}", out(&made));
    let written = fs::read_to_string(fixture.path().join("answers.jsonl")).unwrap();
    let rows: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.iter().map(|row| row["line"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 4, 6]);
    assert_eq!(
        (&rows[0]["id"], &rows[0]["answer"], &rows[2]["answer"]),
        (&json!("a"), &json!(generated), &json!(generated))
    );
    assert_eq!((&rows[1]["expected"], &rows[1]["messages"][0]["content"]), (&json!("b"), &json!("Say 7.")));
    let drawn = ["--overwrite", "--num-answers", "2", "--temperature", "1", "--seed", "3"];
    let made = start(&fixture, &[&args[..], &drawn].concat(), "");
    assert!(out(&made).starts_with("6 answers, "), "{}", out(&made));
    let written = fs::read_to_string(fixture.path().join("answers.jsonl")).unwrap();
    let drawn: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers: Vec<_> = drawn.iter().map(|row| (row["line"].as_u64().unwrap(), row["sample"].as_u64())).collect();
    assert_eq!(numbers, [1, 4, 6].map(|line| [0, 1].map(|draw| (line, Some(draw)))).concat());
    assert_ne!(drawn[0]["answer"], drawn[1]["answer"]);
    let again = start(&fixture, &args, "");
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("--overwrite"));

    let serving = Serving::begin(&fixture, &["--files", "data"]);
    let (status, _, answer) = serving.chat(json!({}));
    assert_eq!((status, &answer["choices"][0]["message"]["content"]), (200, &json!(generated)), "{answer}");
    two_answers_see_one_picture(&serving, &fixture);
    assert_eq!(rows[0]["tokens"], answer["usage"]["completion_tokens"]);
    let (status, _, two) = serving.chat(json!({"n": 2, "temperature": 1, "seed": 3}));
    let choices: Vec<_> = two["choices"].as_array().unwrap().iter().map(|it| (&it["index"], &it["message"])).collect();
    assert_eq!((status, choices.len()), (200, 2), "{two}");
    assert!(choices[0].0 == 0 && choices[1].0 == 1 && choices[0].1 != choices[1].1, "{two}");
    let continued = |prompt: Value, n: u64| {
        let asked = json!({"prompt": prompt, "n": n, "temperature": 0, "max_tokens": 8}).to_string();
        let (status, _, found) = serving.ask("POST", "/v1/completions", "", &asked);
        assert_eq!(status, 200, "{found}");
        let choices = found["choices"].as_array().unwrap().iter().zip(0..);
        let texts = choices.map(|(choice, index)| {
            assert_eq!(choice["index"], index, "{found}");
            choice["text"].clone()
        });
        (texts.collect::<Vec<_>>(), found["usage"]["prompt_tokens"].as_u64().unwrap())
    };
    let (one, other) = (continued(json!(PROMPT), 1), continued(json!("Once"), 1));
    let both = continued(json!([PROMPT, "Once"]), 2);
    assert_eq!(both, ([one.0.clone(), one.0, other.0.clone(), other.0].concat(), one.1 + other.1));
    is_as_likely_as_it_was(&serving);
    // The first letters of the answer but one, as a stop string.
    let stop: String = generated.chars().skip(1).take(2).collect();
    let (_, _, stopped) = serving.chat(json!({"stop": [stop]}));
    let expected = generated.split(&stop).next().unwrap();
    assert_eq!(
        (&stopped["choices"][0]["message"]["content"], &stopped["choices"][0]["finish_reason"]),
        (&json!(expected), &json!("stop"))
    );
}

/// Several answers to one question are about the picture as one answer is.
fn two_answers_see_one_picture(serving: &Serving, fixture: &Fixture) {
    let first = |folder: PathBuf| fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let picture = first(first(fixture.path().join("data/images/train")));
    let parts =
        json!([{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": "Read the number."}]);
    let asked = |n: u64| {
        let (status, _, answer) = serving.chat(json!({"messages": [{"role": "user", "content": parts}], "n": n}));
        assert_eq!(status, 200, "{answer}");
        let choices = answer["choices"].as_array().unwrap().iter();
        choices.map(|choice| choice["message"]["content"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(asked(2), [asked(1), asked(1)].concat());
}

/// Greedy tokens are the most likely ones, and how likely they are does not depend on how they are chosen.
fn is_as_likely_as_it_was(serving: &Serving) {
    let (_, _, scored) = serving.chat(json!({"logprobs": true, "top_logprobs": 3, "max_tokens": 8}));
    let tokens = scored["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(scored["usage"]["completion_tokens"], tokens.len(), "{scored}");
    for token in tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["token"], &top[0]["logprob"]), (3, &token["token"], &token["logprob"]));
        let logprobs: Vec<f64> = top.iter().map(|it| it["logprob"].as_f64().unwrap()).collect();
        assert!(logprobs[0] < 0.0 && logprobs.is_sorted_by(|one, other| one >= other), "{token}");
    }
    let more = json!({"logprobs": true, "top_logprobs": 3, "max_tokens": 8, "temperature": 2, "presence_penalty": 2, "seed": 1});
    let (_, _, drawn) = serving.chat(more);
    let top = |answer: &Value| answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"].clone();
    assert_eq!(top(&drawn), top(&scored));
    // The byte "A", alone in all places, and as unlikely as before.
    let more = json!({"logit_bias": {"65": 100}, "logprobs": true, "top_logprobs": 3, "max_tokens": 3});
    let (_, _, biased) = serving.chat(more);
    assert_eq!((&biased["choices"][0]["message"]["content"], top(&biased)), (&json!("AAA"), top(&scored)), "{biased}");
    let asked = json!({"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "logprobs": 0}).to_string();
    let (_, _, found) = serving.ask("POST", "/v1/completions", "", &asked);
    let logprobs = &found["choices"][0]["logprobs"];
    let num_tokens = found["usage"]["completion_tokens"].as_u64().unwrap() as usize;
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[name].as_array().unwrap().len(), num_tokens, "{name}: {found}");
    }
}

#[test]
fn bad_requests_and_clients_that_go_harm_nobody_else() {
    let fixture = trained();
    fs::write(fixture.path().join("key"), "secret\n").unwrap();
    let limits = ["--queue", "1", "--batch", "1", "--max-new-tokens", "30000", "--api-key-file", "key"];
    let serving = Serving::begin(&fixture, &limits);
    let key = "Authorization: Bearer secret\r\n";
    let post = |path: &str, body: &str| {
        let (status, _, json) = serving.ask("POST", path, key, body);
        (status, json["error"]["param"].as_str().unwrap_or_default().to_owned())
    };
    let chat = "/v1/chat/completions";
    for (method, path, headers, expected) in [
        ("GET", "/health", "", 200),
        ("GET", "/v1/models", "", 401),
        ("GET", "/v1/models", "Authorization: Bearer other\r\n", 401),
        ("GET", "/v1/models", key, 200),
        ("GET", "/v1/models/tiny", "Authorization: bearer secret\r\n", 200),
        ("GET", "/v1/models/%74iny", key, 200),
        ("GET", "/v1/models/other", key, 404),
        ("GET", "/v1/secrets", key, 404),
        ("GET", chat, key, 405),
        ("POST", "/v1/models", key, 405),
        ("GET", "/v1/models", "Origin: https://example.com\r\nAuthorization: Bearer secret\r\n", 403),
    ] {
        let (status, head, json) = serving.ask(method, path, headers, "");
        assert_eq!(status, expected, "{method} {path} {headers}: {json}");
        assert!(status != 405 || head.contains(if path == chat { "allow: post" } else { "allow: get, head" }));
        assert_eq!(json["error"].is_object(), expected != 200, "{json}");
    }
    for (more, param) in [
        (json!({"messages": []}), "messages"),
        (json!({"n": 2}), "n"),
        (json!({"max_tokens": 30001}), "max_tokens"),
        (json!({"unheard_of": 1}), "unheard_of"),
        (json!({"logit_bias": {"9999999": 1}}), "logit_bias"),
        (json!({"chat_template_kwargs": {"messages": []}}), "chat_template_kwargs.messages"),
        (json!({"messages": [{"role": "user", "content": "x".repeat(400_000)}]}), "messages"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "/etc/passwd"}}]}]}),
            "messages",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]}]}),
            "messages",
        ),
        (json!({"model": "other"}), "model"),
    ] {
        let expected = if param == "model" { 404 } else { 400 };
        assert_eq!(post(chat, &body(more)), (expected, param.to_owned()));
    }
    assert_eq!(post(chat, "{").0, 400);
    let long = json!({"prompt": "x".repeat(400_000)}).to_string();
    assert_eq!(post("/v1/completions", &long), (400, "prompt".to_owned()));
    let huge = format!("{key}Content-Length: {}\r\n", 1u64 << 40);
    let mut stream = TcpStream::connect(("127.0.0.1", serving.port)).unwrap();
    write!(stream, "POST {chat} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{huge}\r\n").unwrap();
    let mut refused = String::new();
    stream.read_to_string(&mut refused).unwrap();
    assert!(refused.starts_with("HTTP/1.1 413"), "{refused}");

    // Minutes of an answer, of which two clients hear the beginning and go. A third waits in the queue, and a fourth has no place.
    for streams in [true, false] {
        let long = body(json!({"max_tokens": 30000, "stream": streams, "temperature": 0}));
        let mut first = serving.send("POST", chat, key, &long);
        if streams {
            let mut head = [0; 15];
            first.read_exact(&mut head).unwrap();
            assert_eq!(&head, b"HTTP/1.1 200 OK");
        } else {
            // The model has taken it from the queue by then.
            std::thread::sleep(Duration::from_secs(2));
        }
        let waiting = serving.send("POST", chat, key, body(json!({"max_tokens": 1})));
        std::thread::sleep(Duration::from_millis(500));
        let (status, head, json) = serving.ask("POST", chat, key, body(json!({"max_tokens": 1})));
        assert_eq!((status, &json["error"]["type"]), (429, &json!("rate_limit_error")), "{json}");
        assert!(head.contains("retry-after: 1"), "{head}");
        let gone = Instant::now();
        drop(first);
        let mut answer = String::new();
        { waiting }.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(gone.elapsed() < Duration::from_secs(10), "{:?}", gone.elapsed());
    }
    let open = start(&fixture, &["serve", "run", "--host", "0.0.0.0", "--port", "0"], "");
    assert_eq!(open.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&open.stderr).contains("--insecure-allow-plaintext"));
}

#[test]
fn unmodified_clients_of_openai_read_answers_streams_and_errors() {
    let Some(python) = std::env::var_os("LOONGFORGE_CLIENT_PYTHON").map(PathBuf::from) else {
        return skip("clients", "LOONGFORGE_CLIENT_PYTHON names no Python with openai 3.54.0 (docs/serving.md)");
    };
    let fixture = trained();
    fs::write(fixture.path().join("key"), "secret\n").unwrap();
    let serving = Serving::begin(&fixture, &["--api-key-file", "key"]);
    let first = |folder: PathBuf| fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let picture = first(first(fixture.path().join("data/images/train")));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/openai_chat.py");
    let mut command = Command::new(python);
    command.arg(script).args(["--port", &serving.port.to_string(), "--model", "tiny", "--key", "secret", "--picture"]);
    let output = command.arg(picture).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let generated = start(&fixture, &["generate", "run", "--prompt", PROMPT, "--max-new-tokens", "24"], "");
    assert_eq!(found["text"], json!(out(&generated).strip_suffix('\n').unwrap()), "{found}");
    for (one, other) in [("streamed", "text"), ("streamed_finish", "finish"), ("streamed_usage", "usage")] {
        assert_eq!(found[one], found[other], "{found}");
    }
    assert_eq!(
        (&found["seeds"][0], &found["continued"]),
        (&found["seeds"][1], &found["continued_streamed"]),
        "{found}"
    );
    assert_ne!(found["seeds"][0], found["seeds"][2], "{found}");
    assert!(found["num_pieces"].as_u64() > Some(4) && found["turns"].as_u64() > found["usage"][0].as_u64(), "{found}");
    assert_eq!((&found["scored"], &found["scored"]), (&found["most_likely"], &found["scored_streamed"]), "{found}");
    assert_eq!(found["lists"][0], json!([0, found["continued"], found["lists"][0][2]]), "{found}");
    assert_eq!((&found["lists"][1][0], &found["lists"][2]), (&json!(1), &json!(null)), "{found}");
    let refused = json!([
        "n",
        "top_logprobs",
        "tool_choice",
        "response_format",
        "max_tokens",
        "file",
        "model_not_found",
        "invalid_api_key"
    ]);
    assert_eq!((&found["refused"], found["seen"].is_string()), (&refused, true), "{found}");
}
