//! Recordings in use: those of a conversation and of a request for a transcript.

use crate::fixture::Fixture;
use crate::serving::{Serving, out, start};
use crate::sound::omni;
use serde_json::{Value, json};
use std::fs;

/// A recording that is sent as a form is heard as in `generate`; an answer of a model that does not end it is refused.
fn a_form_is_heard(fixture: &Fixture, heard: &str) {
    let serving = Serving::begin(fixture, &["--max-new-tokens", "12"]);
    let field =
        |name: &str| format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"0.wav\"\r\n\r\n");
    let sound = fs::read(fixture.path().join("data/0.wav")).unwrap();
    let prompt = field("prompt") + "How high?\r\n";
    let body = [prompt.as_bytes(), field("file").as_bytes(), &sound[..], &b"\r\n--b--\r\n"[..]].concat();
    let form = "Content-Type: multipart/form-data; boundary=b\r\n";
    let (status, _, answer) = serving.ask("POST", "/v1/audio/transcriptions", form, &body);
    match status {
        200 => assert_eq!(answer["text"], heard.trim(), "{answer}"),
        _ => assert!(answer["error"]["message"].as_str().unwrap().contains("more than 12 tokens"), "{answer}"),
    }
    let (status, _, answer) = serving.ask("POST", "/v1/audio/transcriptions", form, &body[..body.len() - 8]);
    assert_eq!((status, answer["error"]["type"].as_str()), (400, Some("invalid_request_error")), "{answer}");
}

/// A recording and a picture of earlier messages stay in the conversation; what is no recording is told, and the chat goes on.
#[test]
fn a_conversation_may_be_about_sounds_and_pictures() {
    let fixture = omni();
    fixture.run(&["train.steps=2", "train.warmup_steps=1", "data.pack.max_tokens=160"], None);
    let picture = fs::read_to_string(fixture.path().join("data/train.jsonl")).unwrap();
    let first: Value = serde_json::from_str(picture.lines().next().unwrap()).unwrap();
    let picture = format!("data/{}", first["images"][0].as_str().unwrap());
    fs::write(fixture.path().join("not a sound.wav"), "text").unwrap();

    let most = ["--max-new-tokens", "12"];
    let words = ["generate", "run", "--audio", "data/0.wav", "--prompt", "How high?"];
    let heard = start(&fixture, &[&words[..], &most].concat(), "");
    let heard = out(&heard).strip_suffix('\n').unwrap().to_owned();
    a_form_is_heard(&fixture, &heard);
    let turns = [("user", "<audio>How high?"), ("assistant", heard.as_str()), ("user", "<image>And this?")];
    let messages: Vec<Value> = turns.map(|(role, content)| json!({"role": role, "content": content})).into();
    let line = json!({"messages": messages, "audios": ["data/0.wav"], "images": [picture]});
    fs::write(fixture.path().join("two.jsonl"), line.to_string()).unwrap();
    let words = ["generate", "run", "--prompts", "two.jsonl", "-o", "two-answers.jsonl"];
    let made = start(&fixture, &[&words[..], &most].concat(), "");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let second: Value = serde_json::from_slice(&fs::read(fixture.path().join("two-answers.jsonl")).unwrap()).unwrap();

    let said = format!(
        "/audio gone.wav\nHow high?\n/audio not a sound.wav\nHow high?\n/audio data/0.wav\nHow high?\n/image {picture}\nAnd this?\n"
    );
    let chatted = start(&fixture, &[&["chat", "run"][..], &most].concat(), &said);
    let told = String::from_utf8_lossy(&chatted.stderr).into_owned();
    assert_eq!(chatted.status.code(), Some(1), "{told}");
    assert_eq!(out(&chatted), format!("{heard}\n{}\n", second["answer"].as_str().unwrap()), "{told}");
    assert!(
        told.contains("gone.wav is missing, so the message was not sent") && told.contains("not a sound.wav: "),
        "{told}"
    );
}

/// A device's costs of each of two towers are those of its own parameters, divided by the ranks of its own pool.
#[test]
fn towers_of_a_simulated_device_have_costs_of_their_own() {
    let fixture = omni();
    let costs = |name: &str, own: &[&str]| -> Value {
        let words = ["plan", "run.yaml", "--simulate", "--device", "H200", "--steps", "4", "--save-costs", name];
        let output = start(&fixture, &[&words[..], &["data.pack.max_tokens=160"], own].concat(), "");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&fs::read(fixture.path().join(name)).unwrap()).unwrap()
    };
    let one = costs("one.json", &[]);
    let split = costs("split.json", &["pools.audio.replicas=1", "pools.audio.tensor_parallel=2"]);
    for key in ["per_token", "per_step", "gradient_bytes"] {
        let number = |costs: &Value, part: &str| costs.pointer(&format!("/{part}/{key}")).unwrap().as_f64().unwrap();
        let [both, vision, audio] = ["encoder", "towers/vision", "towers/audio"].map(|part| number(&one, part));
        assert!(audio > 0.0 && (vision + audio - both).abs() < 1e-9 * both, "{key}: {one}");
        let [seeing, hearing] = ["towers/vision", "towers/audio"].map(|part| number(&split, part));
        let is_split = (seeing - vision).abs() < 1e-9 * vision && (2.0 * hearing - audio).abs() < 1e-9 * audio;
        assert!(is_split, "{key}: {split}");
    }
}
