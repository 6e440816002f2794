//! Every command of the README's fine-tuning block on its own config, with a tiny model in the place of the hub's.

use crate::fixture::Fixture;
use std::fs;
use std::path::Path;

const README: &str = include_str!("../../README.md");
/// The model that the README's config loads, and the commit that stands in the cache.
const MODEL: (&str, &str) = ("models--Qwen--Qwen3-0.6B", "0123456789abcdef0123456789abcdef01234567");

/// Returns the fenced block of `language` after `heading`.
fn block(heading: &str, language: &str) -> &'static str {
    let after = README.split_once(heading).unwrap_or_else(|| panic!("the README has no {heading}")).1;
    let begin = after.split_once(&format!("```{language}\n")).unwrap_or_else(|| panic!("no {language} block")).1;
    begin.split_once("```").unwrap().0
}

/// Returns the words of a line as a shell reads them, without its comment.
pub fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted, mut is_word) = (Vec::new(), String::new(), false, false);
    for c in line.chars() {
        match c {
            '"' => (quoted, is_word) = (!quoted, true),
            '#' if !quoted && !is_word => break,
            ' ' if !quoted => {
                words.extend(is_word.then(|| std::mem::take(&mut word)));
                is_word = false;
            }
            c => {
                word.push(c);
                is_word = true;
            }
        }
    }
    words.extend(is_word.then_some(word));
    words
}

#[test]
fn the_readmes_commands_do_what_it_says() {
    let fixture = Fixture::new();
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    for file in ["sft_text.yaml", "samples/chat.jsonl"] {
        fixture.write(&format!("configs/{file}"), fs::read(configs.join(file)).unwrap());
    }
    for entry in fs::read_dir(configs.join("samples/tokenizer")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        fixture.write(&format!("configs/samples/tokenizer/{name}"), fs::read(&path).unwrap());
    }
    // What needs neither a model nor data nor a network makes the model that stands in the cache for the hub's.
    fixture.succeeds(&["run", "configs/sft_text.yaml", "train.steps=6"]);
    let cache = fixture.path("hf/hub").join(MODEL.0);
    fs::create_dir_all(cache.join("refs")).unwrap();
    fs::write(cache.join("refs/main"), MODEL.1).unwrap();
    let made = "runs/sft_text/checkpoints/step-00000006";
    fixture.copy(made, &format!("hf/hub/{}/snapshots/{}", MODEL.0, MODEL.1));
    for ours in ["my.jsonl", "held_out.jsonl"] {
        fixture.write(ours, fixture.read("configs/samples/chat.jsonl"));
    }
    fixture.write("my.yaml", block("## Fine-tune your own model", "yaml"));
    // Twenty samples make eight steps of eight.
    fixture.edit("my.yaml", "global_batch_size: 32", "global_batch_size: 8");
    fixture.edit("my.yaml", "warmup_steps: 20", "warmup_steps: 2");

    let home = fixture.path("hf").display().to_string();
    let environment = [("HF_HOME", home.as_str()), ("HF_HUB_OFFLINE", "1")];
    let mut ran = 0;
    for line in block("## Fine-tune your own model", "console").lines() {
        let Some(line) = line.strip_prefix("$ loongforge ") else { continue };
        let line = line.split(" > ").next().unwrap();
        // The README's run is longer than this one.
        let newest = |run: &str| {
            let folder = fixture.path(format!("runs/{run}/checkpoints"));
            let names = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().file_name());
            names.map(|name| name.into_string().unwrap()).filter(|name| name.starts_with("step-")).max()
        };
        let mut args = words(line);
        for word in &mut args {
            let run = if word.contains("runs/lora") { "lora" } else { "my" };
            *word = word.replace("step-00000500", &newest(run).unwrap_or_default());
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        // It answers until it is stopped: the tests of serving ask it.
        if args[0] == "serve" {
            continue;
        }
        let said = fixture.start_in(&args, &environment);
        // A run that is over has no encoders to add.
        let expected = if args[0] == "scale" { 2 } else { 0 };
        assert_eq!(said.code, expected, "loongforge {line}\n{}\n{}", said.out, said.err);
        ran += 1;
    }
    assert!(ran >= 15, "{ran} commands");
}
