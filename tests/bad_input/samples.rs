//! Samples and pictures that cannot be used.

use crate::fixture::{Fixture, SIZE};
use image::{GrayImage, ImageFormat};
use loongforge::core::data::digits::write_model;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;
use std::fs;
use std::io::Cursor;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

/// Returns a PNG whose header claims another size.
fn png(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    GrayImage::new(16, 16).write_to(&mut bytes, ImageFormat::Png).unwrap();
    let mut bytes = bytes.into_inner();
    bytes[16..20].copy_from_slice(&width.to_be_bytes());
    bytes[20..24].copy_from_slice(&height.to_be_bytes());
    bytes
}

fn picture(index: usize) -> String {
    format!("data/images/train/000/{index:06}.png")
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Damages the first samples, which are decoded as a user's are; the reason that each is to be skipped for.
fn damage(fixture: &Fixture) -> Vec<&'static str> {
    fixture.edit("run.yaml", "sandbox: 'off'", "sandbox: auto");
    fs::remove_file(fixture.path(picture(0))).unwrap();
    fixture.write(&picture(1), "no picture at all");
    fixture.write(&picture(2), "");
    fixture.cut(&picture(3), 60);
    fixture.write(&picture(4), png(0, 0));
    fixture.write(&picture(5), png(u32::MAX / 2, u32::MAX / 2));
    fixture.write(&picture(6), png(16000, 20));
    let lines = fixture.read("data/train.jsonl");
    let mut lines: Vec<String> = lines.lines().map(str::to_owned).collect();
    lines[7] = "{\"messages\": [".to_owned();
    lines[8] = r#"{"messages": [{"role": "user", "content": "<image>Two?"}], "images": []}"#.to_owned();
    lines[9] = lines[9].replace("Read the number.", &"Read. ".repeat(100));
    fixture.write("data/train.jsonl", lines.join("\n"));
    vec![
        "000000.png: No such file",
        "000001.png: not a picture in PNG, JPEG, WebP, GIF, BMP or TIFF format",
        "000002.png: empty file",
        "000003.png: truncated or corrupt",
        "000004.png: is 0×0 pixels",
        "000005.png: is 2147483647×2147483647 pixels, more than data.image.max_side = 16384",
        "000006.png: is 16000×20 pixels, an aspect ratio above 200",
        "not a sample",
        "not a sample",
        "more than data.pack.max_tokens = 128",
    ]
}

#[test]
fn bad_samples_are_skipped_counted_and_listed() {
    let fixture = Fixture::new();
    let reasons = damage(&fixture);
    let said = fixture.succeeds(&["run", "run.yaml", "data.on_bad_sample.max_fraction=0.5", "train.steps=3"]);
    assert!(said.err.contains("skipped data/train.jsonl:1: image data/images/train/000/000000.png"), "{}", said.err);
    assert!(said.err.contains("run/bad.jsonl"), "{}", said.err);

    let mut listed = json_lines(&fixture.read("run/bad.jsonl"));
    // The last one is too long, which is no bad sample.
    listed.extend(json_lines(&fixture.read("run/too_long.jsonl")));
    assert_eq!(listed.len(), reasons.len());
    for (index, (bad, reason)) in listed.iter().zip(reasons).enumerate() {
        assert_eq!(bad["source"], format!("data/train.jsonl:{}", index + 1));
        assert!(bad["reason"].as_str().unwrap().contains(reason), "{bad} is not {reason:?}");
    }
    // Every step is whole, and the last says how many were skipped.
    let steps = json_lines(&fixture.read("run/metrics.jsonl"));
    let pictures: Vec<u64> = steps.iter().map(|step| step["images"].as_u64().unwrap()).collect();
    assert_eq!(pictures, [8, 8, 8]);
    assert_eq!((&steps[2]["bad_samples"], &steps[2]["too_long"]), (&9.into(), &1.into()));
    assert!(fixture.path("run/checkpoints/step-00000003/MANIFEST.json").exists());

    // A resumed run goes on counting.
    let more = ["run", "run.yaml", "--resume", "data.on_bad_sample.max_fraction=0.5", "train.steps=4"];
    fixture.succeeds(&more);
    let steps = json_lines(&fixture.read("run/metrics.jsonl"));
    assert_eq!(steps[3]["bad_samples"].as_u64().unwrap() as usize, json_lines(&fixture.read("run/bad.jsonl")).len());
}

/// Only regular files are opened: no command waits for a pipe or reads from a device.
#[test]
fn special_files_are_refused_by_name() {
    let fixture = Fixture::new();
    let pipe = |name: &str| mknodat(CWD, fixture.path(name), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let [zero, fifo, socket, folder] = [0, 1, 2, 3].map(picture);
    for name in [&zero, &fifo, &socket, &folder] {
        fs::remove_file(fixture.path(name)).unwrap();
    }
    symlink("/dev/zero", fixture.path(&zero)).unwrap();
    pipe(&fifo);
    let _socket = UnixListener::bind(fixture.path(&socket)).unwrap();
    fs::create_dir(fixture.path(&folder)).unwrap();
    fixture.succeeds(&["run", "run.yaml", "data.on_bad_sample.max_fraction=0.5"]);
    let reasons: Vec<String> =
        json_lines(&fixture.read("run/bad.jsonl")).iter().map(|bad| bad["reason"].to_string()).collect();
    let kinds = ["a device", "a pipe", "a socket", "a directory"];
    assert_eq!(reasons.len(), kinds.len(), "{reasons:?}");
    for (reason, kind) in reasons.iter().zip(kinds) {
        assert!(reason.contains(&format!("is {kind}, not a regular file")), "{reason}");
    }

    pipe("pipe.jsonl");
    symlink("/dev/zero", fixture.path("zero.jsonl")).unwrap();
    for (name, kind) in [("pipe.jsonl", "a pipe"), ("zero.jsonl", "a device")] {
        let words = [name, &format!("is {kind}, not a regular file")];
        fixture.fails(&["data", "stats", name], 2, &words);
        fixture.fails(&["data", "inspect", name], 2, &words);
        fixture.fails(&["check", name], 2, &words);
        fixture.fails(&["run", "run.yaml", "--overwrite", &format!("data.train.0.path={name}")], 2, &words);
    }
    for (name, code) in [("tokenizer.json", 2), ("config.json", 2), ("chat_template.jinja", 2)] {
        let path = fixture.path(format!("model/{name}"));
        let _ = fs::remove_file(&path);
        pipe(&format!("model/{name}"));
        fixture.fails(&["run", "run.yaml", "--overwrite"], code, &[name, "is a pipe, not a regular file"]);
        fs::remove_file(&path).unwrap();
        write_model(&fixture.path("model"), &SIZE).unwrap();
    }
}

#[test]
fn long_samples_are_skipped_or_cut() {
    let fixture = Fixture::new();
    let lines = fixture.read("data/train.jsonl");
    let mut lines: Vec<Value> = json_lines(&lines);
    lines[1]["messages"][1]["content"] = "7".repeat(500).into();
    // Of this one the answer is cut off.
    lines[2]["messages"][0]["content"] = format!("<image>{}", "Read. ".repeat(100)).into();
    fixture.write("data/train.jsonl", lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    let run = |too_long: &str, list: &str| {
        let too_long = format!("data.pack.too_long={too_long}");
        let more = ["data.on_bad_sample.max_fraction=0.5", "train.steps=1", "--overwrite"];
        fixture.succeeds(&[&["run", "run.yaml", &too_long][..], &more].concat());
        let bad = json_lines(&fixture.read(list));
        bad.iter().map(|bad| format!("{} {}", bad["source"], bad["reason"])).collect::<Vec<_>>()
    };
    let bad = run("skip", "run/too_long.jsonl");
    assert!(bad.len() == 2 && bad.iter().all(|bad| bad.contains("more than data.pack.max_tokens = 128")), "{bad:?}");
    let bad = run("truncate", "run/bad.jsonl");
    assert!(
        bad.len() == 1 && bad[0].contains("train.jsonl:3") && bad[0].contains("nothing is left to learn from"),
        "{bad:?}"
    );

    let model = ["--model", "model", "--max-tokens", "128", "--truncate"];
    let said = fixture.succeeds(&[&["data", "stats", "data/train.jsonl", "--json"][..], &model].concat());
    let stats: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&stats["bad"], &stats["histograms"]["tokens"]["max"]), (&1.into(), &128.into()));
    let inspect = ["data", "inspect", "data/train.jsonl", "--from", "1", "--samples", "2"];
    let said = fixture.succeeds(&[&inspect[..], &model].concat());
    assert!(
        said.out.contains("train.jsonl:2, 128 tokens") && said.out.contains("nothing is left to learn from"),
        "{}",
        said.out
    );
}

#[test]
fn samples_are_read_as_the_newest_checkpoint_of_a_run_reads_them() {
    let fixture = Fixture::trained();
    let said = fixture.succeeds(&["data", "stats", "data/train.jsonl", "--model", "run", "--max-tokens", "128"]);
    assert!(said.out.contains("40 samples, 0 of them bad"), "{}", said.out);
}

#[test]
fn too_many_bad_samples_end_the_run() {
    let fixture = Fixture::new();
    damage(&fixture);
    // What a run would come to among its first samples is said before it.
    let last = "data/train.jsonl:4: image data/images/train/000/000003.png";
    let in_a_row = ["the first 4 samples", "4 bad samples in a row", "`data.on_bad_sample.max_consecutive` = 3", last];
    for command in ["check", "run"] {
        fixture.fails(&[command, "run.yaml", "data.on_bad_sample.max_consecutive=3"], 2, &in_a_row);
    }
    assert!(!fixture.path("run").exists());

    // All 40 are looked at before a run: one that reads them over and over would come to its limit.
    let limit = "data.on_bad_sample.max_fraction=0.1";
    let share = ["9 of 40 samples that were looked at are bad", "max_fraction = 0.1", "data/train.jsonl:1"];
    for command in ["check", "run"] {
        fixture.fails(&[command, "run.yaml", limit, "train.steps=99"], 2, &share);
    }
    // A short one may end before.
    let said = fixture.succeeds(&["check", "run.yaml", limit]);
    assert!(said.out.contains("(22.5 %; from 100 samples on, a run ends if more than"), "{}", said.out);
    // Nobody knows of bad samples behind those that are looked at.
    let lines = fixture.read("data/train.jsonl");
    let (bad, good) = lines.split_at(lines.match_indices('\n').nth(9).unwrap().0 + 1);
    fixture.write("data/train.jsonl", format!("{}{bad}", format!("{good}\n").repeat(5)));
    fixture.succeeds(&["check", "run.yaml", limit, "train.steps=99"]);
    let share = ["samples are bad, more than `data.on_bad_sample.max_fraction` = 0.01", "data/train.jsonl:"];
    fixture.fails(&["run", "run.yaml", "--overwrite", "train.steps=99"], 1, &share);
    let in_a_row = ["4 bad samples in a row", "`data.on_bad_sample.max_consecutive` = 3", "000003.png"];
    let more = ["data.on_bad_sample.max_consecutive=3", "data.on_bad_sample.max_fraction=0.5"];
    fixture.fails(&[&["run", "run.yaml", "--overwrite", "train.steps=99"][..], &more].concat(), 1, &in_a_row);
    assert_eq!(json_lines(&fixture.read("run/bad.jsonl")).len(), 4);
}

/// No bad sample of a set that is longer than the run is known to be read twice: the run's first samples are judged as it would.
#[test]
fn a_run_that_would_end_among_its_first_samples_is_refused() {
    let fixture = Fixture::new();
    damage(&fixture);
    let lines = fixture.read("data/train.jsonl");
    fixture.write("data/train.jsonl", format!("{}\n", lines.trim_end()).repeat(12));
    let share =
        ["the run would end after the first", "samples are bad, more than `data.on_bad_sample.max_fraction` = 0.1"];
    let limit = "data.on_bad_sample.max_fraction=0.1";
    for order in ["data.shuffle=false", "data.shuffle=true"] {
        for command in ["check", "run"] {
            fixture.fails(&[command, "run.yaml", limit, order, "train.steps=20"], 2, &share);
        }
    }
    // One that reads too few to be judged goes.
    let said = fixture.succeeds(&["check", "run.yaml", limit, "train.steps=9"]);
    assert!(said.out.contains("of 100 samples of data/train.jsonl that were looked at are bad"), "{}", said.out);
}

#[test]
fn a_file_without_samples_is_named_before_the_first_step() {
    let fixture = Fixture::new();
    fixture.write("data/train.jsonl", "\n\n");
    fixture.fails(&["run", "run.yaml"], 2, &["data/train.jsonl has no samples"]);
    assert!(!fixture.path("run").exists());
    fixture.fails(
        &["run", "run.yaml", "data.train.0.path=data/images"],
        2,
        &["`data.train.0.path`", "is a directory without files"],
    );
    fixture.fails(
        &["run", "run.yaml", "data.train.0.path=data/images/train"],
        2,
        &["is a directory without files", "subfolders are not searched; name them: path: [data/images/train/000]"],
    );
    fixture.fails(&["run", "run.yaml", "data.train.0.path=data/trian.jsonl"], 2, &["did you mean", "data/train.jsonl"]);
    assert!(!fixture.path("run/checkpoints/step-00000002").exists());
}

#[test]
fn held_out_questions_are_looked_at_before_a_run() {
    let fixture = Fixture::new();
    fixture.write("none.jsonl", "\n");
    fixture.fails(&["run", "run.yaml", "+eval.path=none.jsonl"], 2, &["eval.path: none.jsonl has no samples"]);
    fixture.fails(&["check", "run.yaml", "+eval.path=none.jsonl"], 2, &["eval.path: none.jsonl has no samples"]);
    // What the run cannot learn from it cannot evaluate, and would say so after its last step.
    fixture.write("pairs.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n");
    fixture.fails(&["run", "run.yaml", "+eval.path=pairs.jsonl"], 2, &["eval.path: pairs.jsonl", "pairs of answers"]);
    fixture.write("bad.jsonl", "{\"messages\": []}\n".repeat(3));
    let words = ["eval.sets.own: none of its samples can be used; the first: bad.jsonl:1"];
    fixture.fails(&["check", "run.yaml", "+eval.sets={own: bad.jsonl}"], 2, &words);
    let during = ["check", "run.yaml", "+eval.sets={own: bad.jsonl}", "eval.every_steps=1"];
    let said = fixture.succeeds(&during).out;
    assert!(said.contains("warning: eval.sets.own: none of its 3 samples can be used"), "{said}");
    let many = fixture.read("bad.jsonl").repeat(40);
    fixture.write("bad.jsonl", many);
    let said = fixture.succeeds(&["check", "run.yaml", "+eval.sets={own: bad.jsonl}"]).out;
    assert!(said.contains("warning: eval.sets.own: none of the first 100 of 120 samples can be used"), "{said}");
    assert!(!fixture.path("run").exists());
}

#[test]
fn a_question_that_cannot_be_used_does_not_spoil_the_others() {
    let fixture = Fixture::new();
    let held_out = fixture.read("data/held_out.jsonl");
    fixture
        .write("data/some.jsonl", format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}]}}\n{held_out}"));
    let said = fixture.succeeds(&["run", "run.yaml", "+eval.path=data/some.jsonl", "eval.max_new_tokens=2"]);
    assert!(said.err.contains("1 held-out questions cannot be used; the first: data/some.jsonl:1"), "{}", said.err);
    assert!(said.err.contains("of 4 answers correct"), "{}", said.err);

    // More than are looked at before the run.
    fixture.write("data/bad.jsonl", "{\"messages\": []}\n".repeat(120));
    let words = ["the model is trained and saved, but not evaluated: eval.path", "data/bad.jsonl", "step-00000002"];
    fixture.fails(&["run", "run.yaml", "--overwrite", "+eval.path=data/bad.jsonl"], 1, &words);
    assert!(fixture.path("run/checkpoints/step-00000002/MANIFEST.json").exists());
}

/// An answer that is longer than the model would take all memory before its first token.
#[test]
fn a_prompt_and_its_answer_fit_into_the_model() {
    let fixture = Fixture::trained();
    let ask = ["generate", super::fixture::CHECKPOINT, "--prompt", "Read the number."];
    let many = [&ask[..], &["--max-new-tokens", "999999999999"]].concat();
    fixture.fails(&many, 2, &["the prompt has", "999999999999 tokens of an answer", "--max-new-tokens"]);
    let none = [&ask[..], &["--max-new-tokens", "0"]].concat();
    fixture.fails(&none, 2, &["--max-new-tokens", "must be 1 or more"]);
    fixture.write("prompts.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": 5}\n");
    let file = ["generate", super::fixture::CHECKPOINT, "--prompts", "prompts.jsonl", "-o", "answers.jsonl"];
    let many = [&file[..], &["--max-new-tokens", "999999999999"]].concat();
    let said = fixture.start(&many);
    assert_eq!((said.code, fixture.read("answers.jsonl").as_str()), (1, ""), "{}", said.err);
    for part in
        ["prompts.jsonl:1: the prompt has", "prompts.jsonl:2: not a sample: the content of a message must be text"]
    {
        assert!(said.err.contains(part), "{}", said.err);
    }
    // No message would have room for such an answer, however often the conversation begins anew.
    let chat = ["chat", super::fixture::CHECKPOINT, "--max-new-tokens", "999999999999"];
    fixture.fails(&chat, 2, &["--max-new-tokens 999999999999 leaves no room"]);
    let chat = ["chat", super::fixture::CHECKPOINT, "--max-new-tokens", "0"];
    fixture.fails(&chat, 2, &["--max-new-tokens", "must be 1 or more"]);
    // Without a template there is nothing to go on from in a prompt without a token.
    let empty = ["generate", super::fixture::CHECKPOINT, "--raw", "--prompt", ""];
    fixture.fails(&empty, 2, &["is empty: there is no token to continue from"]);
    let lines = "{\"prompt\": \"\"}\n{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}\n{\"prompt\": [\"a\"]}\n\
                 {\"prompt\": \"a\"}\n{\"prompt\": \"a\", \"prompt\": \"b\"}\n";
    fixture.write("prompts.jsonl", lines);
    let said = fixture.start(&[&file[..], &["--overwrite", "--raw", "--max-new-tokens", "2"]].concat());
    assert_eq!((said.code, fixture.read("answers.jsonl").lines().count()), (1, 1), "{}", said.err);
    for part in [
        "prompts.jsonl:1: not a sample: the prompt is empty",
        "prompts.jsonl:2: not a sample: has an answer without a question before it",
        "prompts.jsonl:3: not a sample: invalid type: string \"a\", expected a message with a `role`",
        "prompts.jsonl:5: not a sample: duplicate key `prompt`",
    ] {
        assert!(said.err.contains(part), "{}", said.err);
    }
    for options in ["--stop ", "--temperature 1 --top-p 1.5", "--temperature nan"] {
        let words: Vec<&str> = options.split(' ').collect();
        fixture.fails(&[&ask[..], &words].concat(), 2, &[words[words.len() - 2]]);
    }
    let same = ["--overwrite", "--temperature", "0", "--num-answers", "2"];
    fixture.fails(&[&file[..], &same].concat(), 2, &["--num-answers above 1 needs a --temperature above 0"]);
}

#[test]
fn generate_names_a_picture_that_is_missing() {
    let fixture = Fixture::trained();
    let ask = |image| ["generate", super::fixture::CHECKPOINT, "--prompt", "Read the number.", "--image", image];
    fixture.fails(&ask("gone.png"), 2, &["image gone.png: No such file"]);
    fixture.write("torn.png", "");
    fixture.fails(&ask("torn.png"), 2, &["image torn.png: empty file"]);
    fixture.succeeds(&[&ask("data/images/train/000/000000.png")[..], &["--max-new-tokens", "2"]].concat());
}

#[test]
fn a_run_is_the_same_without_the_sandbox() {
    let run = |mode: &str| {
        let fixture = Fixture::new();
        damage(&fixture);
        let mode = format!("security.sandbox={mode}");
        fixture.succeeds(&["run", "run.yaml", &mode, "data.on_bad_sample.max_fraction=0.5", "train.steps=3"]);
        let losses = json_lines(&fixture.read("run/metrics.jsonl")).iter().map(|step| step["loss"].clone()).collect();
        (losses, fixture.read("run/bad.jsonl"))
    };
    let (losses, bad): (Vec<Value>, String) = run("auto");
    assert_eq!((losses.len(), bad.lines().count()), (3, 9));
    assert_eq!((losses, bad), run("off"));
}
