//! `init` writes configs that pass `check` with the model and the data that it was told of.

use crate::fixture::{CHECKPOINT, Fixture};

#[test]
fn what_init_writes_passes_check_however_few_samples_there_are() {
    let fixture = Fixture::trained();
    let lines: Vec<String> = fixture.read("data/train.jsonl").lines().map(|line| format!("{line}\n")).collect();
    for (count, val_size) in
        [(1, None), (2, Some("val_size: 1 ")), (9, Some("val_size: 1 ")), (40, Some("val_size: 0.02 "))]
    {
        fixture.write("data/mine.jsonl", lines[..count].concat());
        for method in ["lora", "qlora", "full"] {
            let words = ["init", "my.yaml", "--model", CHECKPOINT, "--data", "data/mine.jsonl", "--kind", "multimodal"];
            let said = fixture.succeeds(&[&words[..], &["--method", method, "--overwrite"]].concat());
            assert_eq!(said.err, "", "{count}");
            let text = fixture.read("my.yaml");
            assert_eq!(text.contains("val_size"), val_size.is_some(), "{text}");
            assert!(val_size.is_none_or(|line| text.contains(line)), "{text}");
            fixture.succeeds(&["check", "my.yaml", "security.sandbox=off"]);
        }
    }
}

#[test]
fn init_says_what_is_learned_from_samples_of_each_format() {
    let fixture = Fixture::new();
    let pair = r#"{"prompt": "a", "chosen": "b", "rejected": "c"}"#;
    for (name, sample, line) in [
        ("pairs.jsonl", pair, "preference: { loss: sigmoid }"),
        ("labels.jsonl", r#"{"prompt": "a", "completion": "b", "label": true}"#, "preference: { loss: kto }"),
        ("texts.jsonl", r#"{"text": "a"}"#, "phase: pretrain"),
        ("lines.txt", "a", "phase: pretrain"),
    ] {
        fixture.write(name, format!("{sample}\n{sample}\n"));
        let words = ["init", "my.yaml", "--model", "org/model", "--method", "full", "--overwrite", "--data", name];
        let said = fixture.succeeds(&words);
        assert_eq!(said.err, "", "{name}");
        assert!(fixture.read("my.yaml").contains(line), "{name}");
    }
}

#[test]
fn data_that_are_not_there_yet_are_told() {
    let fixture = Fixture::new();
    let words = ["init", "my.yaml", "--model", "org/model", "--method", "full", "--data"];
    let said = fixture.succeeds(&[&words[..], &["later.jsonl"]].concat());
    assert!(said.err.contains("later.jsonl") && fixture.read("my.yaml").contains("val_size: 0.02"), "{}", said.err);
    fixture.write("empty.jsonl", "");
    let said = fixture.succeeds(&[&words[..], &["empty.jsonl", "--overwrite"]].concat());
    assert!(said.err.contains("empty.jsonl has no samples"), "{}", said.err);
}

#[test]
fn the_kind_of_a_model_is_that_of_its_folder_or_its_samples() {
    let fixture = Fixture::new();
    for number in 0..3 {
        fixture.write(&format!("pictures/{number}.png"), "a picture");
        fixture.write(&format!("pictures/{number}.txt"), "a caption");
    }
    fixture.write("lines.jsonl", "{\"prompt\": \"a\", \"image\": \"pictures/0.png\"}\n");
    fixture.write("pipeline/model_index.json", r#"{"_class_name": "QwenImagePipeline"}"#);
    for (model, data, makes_clips) in [
        ("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "pictures", true),
        ("Qwen/Qwen-Image", "pictures", false),
        ("pipeline", "lines.jsonl", false),
    ] {
        let words = ["init", "my.yaml", "--model", model, "--data", data, "--method", "lora", "--overwrite"];
        fixture.succeeds(&words);
        let text = fixture.read("my.yaml");
        assert!(text.contains("caption_dropout") && text.contains("  video: {") == makes_clips, "{model}: {text}");
    }
}

#[test]
fn parts_that_can_be_frozen_are_named_for_a_model_that_sees() {
    let fixture = Fixture::trained();
    for (model, sees) in [(CHECKPOINT, true), ("Qwen/Qwen2.5-VL-3B-Instruct", true), ("Qwen/Qwen3-0.6B", false)] {
        let words =
            ["init", "my.yaml", "--model", model, "--data", "data/train.jsonl", "--method", "full", "--overwrite"];
        fixture.succeeds(&words);
        assert_eq!(fixture.read("my.yaml").contains("# image_encoder: { freeze: true }"), sees, "{model}");
    }
}
