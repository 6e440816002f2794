//! `loongforge checkpoint`: what it says of whole folders, and of every kind of damaged one.

use crate::fixture::{CHECKPOINT, Fixture};
use serde_json::Value;

const FOUNDATION: &str = "model-00002-of-00002.safetensors";

#[test]
fn whole_checkpoints_are_shown_verified_and_exported() {
    let fixture = Fixture::trained();
    let said = fixture.succeeds(&["checkpoint", "inspect", CHECKPOINT]).out;
    for words in
        ["qwen3_vl", "after 2 steps, float32", "language_model.layers.{0..1}.mlp", "x 2", "optimizer-foundation"]
    {
        assert!(said.contains(words), "{words}:\n{said}");
    }
    let all = fixture.succeeds(&["checkpoint", "inspect", CHECKPOINT, "--all"]).out;
    assert!(all.contains("language_model.layers.1.mlp.up_proj.weight"), "{all}");
    let said = fixture.succeeds(&["checkpoint", "verify", CHECKPOINT]).out;
    assert_eq!(said.lines().filter(|line| line.starts_with("ok ")).count(), 6, "{said}");

    fixture.succeeds(&["checkpoint", "export-hf", CHECKPOINT, "out", "--dtype", "bf16", "--max-shard-size", "40kB"]);
    let names: Vec<String> = fixture.contents("out").into_keys().map(|path| path.display().to_string()).collect();
    let has = |ending: &str| names.iter().any(|name| name.ends_with(ending));
    assert!(has("tokenizer.json") && has("chat_template.jinja") && has("model.safetensors.index.json"), "{names:?}");
    assert!(!has("MANIFEST.json") && !names.iter().any(|name| name.contains("optimizer")), "{names:?}");
    let config: Value = serde_json::from_str(&fixture.read("out/config.json")).unwrap();
    assert_eq!(config["dtype"], "bfloat16");
    fixture.succeeds(&["checkpoint", "verify", "out"]);
    let rounded = fixture.start(&["checkpoint", "diff", CHECKPOINT, "out"]);
    assert!(rounded.code == 1 && rounded.out.contains("different"), "{}", rounded.out);
    fixture.succeeds(&["checkpoint", "diff", CHECKPOINT, "out", "--tolerance", "0.01"]);
    for name in ["export-hf", "merge"] {
        fixture.fails(&["checkpoint", name, CHECKPOINT, "out"], 2, &["out already exists"]);
    }
    let file = ["a folder is written, and no .gguf file", "loongforge checkpoint export-gguf"];
    fixture.fails(&["checkpoint", "export-hf", CHECKPOINT, "out.gguf"], 2, &file);
    let gguf = ["checkpoint", "export-gguf", CHECKPOINT, "out.gguf", "--dtype", "q8_0"];
    fixture.fails(&gguf, 2, &["model_type is \"qwen3_vl\"; GGUF files can be written for llama"]);
    let push =
        fixture.start_in(&["checkpoint", "push", CHECKPOINT, "me/it"], &[("HF_TOKEN", ""), ("HF_HOME", "nowhere")]);
    assert!(push.code == 2 && push.err.contains("needs a token that may write: set HF_TOKEN"), "{}", push.err);

    fixture.succeeds(&["checkpoint", "convert", CHECKPOINT, "same", "--dtype", "f32"]);
    let json = fixture.succeeds(&["checkpoint", "diff", CHECKPOINT, "same", "--json"]).out;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["equal"], true);
    assert!(json["tensors"].as_array().unwrap().iter().all(|tensor| tensor["verdict"] == "exact"));
    fixture.succeeds(&["run", "run.yaml", "model.load=out", "model.weights=load", "run.dir=other"]);
}

#[test]
fn damage_is_found() {
    let fixture = Fixture::trained();
    let verify = ["checkpoint", "verify", CHECKPOINT];
    let path = |name: &str| format!("{CHECKPOINT}/{name}");
    let contents = |name: &str| std::fs::read(fixture.path(path(name))).unwrap();

    let whole = contents(FOUNDATION);
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    fixture.write(&path(FOUNDATION), flipped);
    fixture.fails(&verify, 2, &["manifest", FOUNDATION, "changed since it was written"]);
    fixture.write(&path(FOUNDATION), &whole[..whole.len() - 1]);
    fixture.fails(&verify, 2, &["headers", FOUNDATION, "not a whole safetensors file"]);
    fixture.write(&path(FOUNDATION), whole);

    let index = String::from_utf8(contents("model.safetensors.index.json")).unwrap();
    fixture
        .write(&path("model.safetensors.index.json"), index.replace(FOUNDATION, "../model-00002-of-00002.safetensors"));
    fixture.fails(&verify, 2, &["points outside the folder"]);
    let mut json: Value = serde_json::from_str(&index).unwrap();
    json["metadata"]["total_size"] = 1.into();
    fixture.write(&path("model.safetensors.index.json"), json.to_string());
    fixture.fails(&verify, 2, &["says 1 bytes"]);
    fixture.write(&path("model.safetensors.index.json"), index);

    let config = String::from_utf8(contents("config.json")).unwrap();
    fixture.write(&path("config.json"), config.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1"));
    fixture.fails(&verify, 2, &["config and tensors", "unexpected", "language_model.layers.1."]);
    fixture.write(&path("config.json"), config);
    fixture.succeeds(&verify);
    fixture.fails(&["checkpoint", "inspect", "model"], 2, &["model has no model.safetensors"]);
    fixture.fails(&["checkpoint", "diff", CHECKPOINT, "gone"], 2, &["gone"]);
}

#[test]
fn pickles_are_never_read() {
    let fixture = Fixture::new();
    fixture.write("model/pytorch_model.bin", b"\x80\x02cos\nsystem\n");
    for args in [
        &["checkpoint", "inspect", "model"][..],
        &["generate", "model", "--prompt", "hi"],
        &["run", "run.yaml", "model.weights=load"],
    ] {
        fixture.fails(args, 2, &["pickle", "pytorch_model.bin"]);
    }
}

#[test]
fn packed_weights_are_unpacked_only_when_asked() {
    let fixture = Fixture::new();
    let packed = concat!(env!("CARGO_MANIFEST_DIR"), "/src/torch/tests/packed/fp8");
    fixture.fails(&["checkpoint", "convert", packed, "out", "--dtype", "bf16"], 2, &["F8_E4M3 16x16", "--dequantize"]);
    fixture.succeeds(&["checkpoint", "convert", packed, "out", "--dtype", "f32", "--dequantize"]);
    let config: Value = serde_json::from_str(&fixture.read("out/config.json")).unwrap();
    assert!(config["quantization_config"].is_null() && config["dtype"] == "float32");
    fixture.succeeds(&["checkpoint", "diff", packed, "out"]);
}

#[test]
fn adapters_are_merged_into_their_base() {
    let fixture = Fixture::trained();
    fixture.copy(CHECKPOINT, "base");
    let lora = [
        "model.load=base",
        "model.weights=load",
        // The projector is trained itself.
        "model.foundation.lora={r: 4, use_rslora: true, alpha_pattern: {down_proj: 3.5}}",
        "model.image_encoder.lora={r: 2, alpha: 5, use_rslora: true}",
    ];
    for (dir, merge) in [("run.dir=apart", "false"), ("run.dir=whole", "true")] {
        fixture.succeeds(&[&["run", "run.yaml", dir, &format!("checkpoint.merge_lora={merge}")], &lora[..]].concat());
    }
    let (apart, whole) = ("apart/checkpoints/step-00000002", "whole/checkpoints/step-00000002");
    fixture.succeeds(&["checkpoint", "export-hf", apart, "merged"]);
    fixture.succeeds(&["checkpoint", "verify", "merged"]);
    fixture.succeeds(&["checkpoint", "diff", whole, "merged", "--tolerance", "1e-6"]);
    assert_eq!(fixture.start(&["checkpoint", "diff", "base", "merged", "--tolerance", "1e-6"]).code, 1);

    let loss = |folder: &str| {
        let said = fixture.succeeds(&["evaluate", folder, "data/train.jsonl", "--limit", "8", "--json"]);
        let said: Value = serde_json::from_str(&said.out).unwrap();
        said["loss"].as_f64().unwrap()
    };
    let of_base = loss("base");
    let relative = |folder: &str| (loss(folder) / of_base - 1.0).abs();
    let [apart_moved, merged_moved] = [apart, "merged"].map(relative);
    assert!(apart_moved > 1e-5 && (apart_moved - merged_moved).abs() < 1e-6, "{apart_moved} and {merged_moved}");

    // What the folder says need not be said again.
    let from = |part: &str, more: &str| format!("model.{part}.lora={{adapter: {apart}{more}}}");
    let parts = ["foundation", "image_encoder", "image_projector"].map(|part| from(part, ""));
    let again = ["run", "run.yaml", lora[0], lora[1], "run.dir=more", "train.steps=1", "train.lr=1e-30"];
    let with = |parts: &[&str]| [&again[..], parts].concat().iter().map(|text| text.to_string()).collect::<Vec<_>>();
    let run = |parts: &[&str]| fixture.start(&with(parts).iter().map(String::as_str).collect::<Vec<_>>());
    let said = run(&[&parts[0], &parts[1], &parts[2]]);
    assert_eq!(said.code, 0, "{}", said.err);
    fixture.succeeds(&["checkpoint", "export-hf", "more/checkpoints/step-00000001", "more/merged"]);
    fixture.succeeds(&["checkpoint", "diff", "merged", "more/merged", "--tolerance", "1e-6"]);
    let said = run(&[&from("foundation", ", r: 8"), &parts[1], &parts[2], "--overwrite"]);
    assert!(said.code != 0 && said.err.contains("model.foundation.lora.r is 8"), "{}", said.err);
    let said = run(&[&parts[0], &parts[1], "--overwrite"]);
    assert!(said.code != 0 && said.err.contains("`lora.adapter` for every part"), "{}", said.err);

    std::fs::rename(fixture.path("base"), fixture.path("moved")).unwrap();
    fixture.fails(&["generate", apart, "--prompt", "hi"], 2, &["adapters of base, which is not a local folder"]);
    fixture.fails(&["checkpoint", "export-hf", apart, "again"], 2, &["adapters of base", "--base"]);
    fixture.succeeds(&["checkpoint", "export-hf", apart, "again", "--base", "moved"]);
    fixture.succeeds(&["checkpoint", "diff", "merged", "again", "--tolerance", "0"]);
    let whole = "merged holds whole weights; --base is for adapters";
    fixture.fails(&["sample", "merged", "--prompt", "a", "--base", "moved"], 2, &[whole]);
}
