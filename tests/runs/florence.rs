//! Runs of Florence-2: pictures and prompts through an encoder, answers through a decoder, texts alone among them.

use crate::fixture::{Fixture, Pictures};
use crate::layouts::compare;
use crate::resume::run_in;
use loongforge::ModelFolder;
use loongforge::core::config;
use loongforge::core::data::ProcessorOptions;
use loongforge::core::data::digits::{self, Digits};
use loongforge::core::schedule::EvaluationSummary;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const FIRST_TOKEN: usize = 264;
const ADDED: [&str; 8] = ["<s>", "<pad>", "</s>", "<image>", "<loc_0>", "<loc_1>", "<loc_2>", "<loc_3>"];
const OVERRIDES: [&str; 3] = ["train.steps=8", "train.lr=5e-3", "run.deterministic=true"];

/// Returns a tiny Florence-2 whose answers to pictures end with a place.
fn florence() -> Fixture {
    let fixture = Fixture::new(Pictures::Some);
    let model = fixture.path().join("model");
    let write = |name: &str, json: &Value| fs::write(model.join(name), json.to_string()).unwrap();
    for name in ["chat_template.jinja", "video_preprocessor_config.json", "generation_config.json"] {
        fs::remove_file(model.join(name)).unwrap();
    }
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(model.join("tokenizer.json")).unwrap()).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    assert_eq!(added.last().unwrap()["id"], FIRST_TOKEN - 1);
    for (id, token) in (FIRST_TOKEN..).zip(ADDED) {
        let mut new = added[0].clone();
        (new["content"], new["id"]) = (token.into(), id.into());
        added.push(new);
    }
    write("tokenizer.json", &tokenizer);
    write("tokenizer_config.json", &json!({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}));
    let size = json!({"height": 32, "width": 32});
    write("preprocessor_config.json", &json!({"size": size, "do_center_crop": false, "image_seq_length": 17}));
    let [bos, pad, eos, image] = [0, 1, 2, 3].map(|at| FIRST_TOKEN + at);
    write(
        "config.json",
        &json!({
            "architectures": ["Florence2ForConditionalGeneration"], "model_type": "florence2", "dtype": "float32",
            "image_token_id": image, "is_encoder_decoder": true, "tie_word_embeddings": true,
            "text_config": {"model_type": "bart", "vocab_size": FIRST_TOKEN + ADDED.len(), "d_model": 32,
                "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_layers": 2,
                "decoder_attention_heads": 4, "decoder_ffn_dim": 40, "max_position_embeddings": 64, "init_std": 0.05,
                "bos_token_id": bos, "pad_token_id": pad, "eos_token_id": eos, "decoder_start_token_id": eos,
                "forced_bos_token_id": bos, "forced_eos_token_id": eos},
            "vision_config": {"model_type": "florence_vision", "depths": [1, 1], "embed_dim": [16, 24],
                "num_heads": [2, 2], "num_groups": [2, 2], "patch_size": [7, 3], "patch_stride": [4, 2],
                "patch_padding": [3, 1], "patch_prenorm": [false, true], "window_size": 3, "projection_dim": 32,
                "max_position_embeddings": 8, "initializer_range": 0.1},
        }),
    );
    for name in ["train", "held_out"] {
        let path = fixture.path().join(format!("data/{name}.jsonl"));
        let lines = fs::read_to_string(&path).unwrap();
        let with_place = |(index, line): (usize, &str)| {
            let mut sample: Value = serde_json::from_str(line).unwrap();
            if sample.get("images").is_some() {
                let answer = sample["messages"][1]["content"].as_str().unwrap();
                sample["messages"][1]["content"] = format!("{answer}<loc_{}>", index % 4).into();
            }
            sample.to_string()
        };
        fs::write(&path, lines.lines().enumerate().map(with_place).collect::<Vec<_>>().join("\n")).unwrap();
    }
    fixture
}

fn loongforge(fixture: &Fixture, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_loongforge")).current_dir(fixture.path()).args(args).output().unwrap()
}

#[test]
fn answers_are_learned_the_same_with_any_number_of_encoders_and_after_a_resume() {
    let fixture = florence();
    let losses = |to: &str, more: &[&str], from: Option<&str>| {
        let own = [&OVERRIDES[..], &["checkpoint.every_steps=4"], more].concat();
        run_in(fixture.path(), to, &own, from).into_iter().map(|step| step.loss).collect::<Vec<f64>>()
    };
    let one = losses("one", &["pools.encoder.replicas=1"], None);
    assert!(one.len() == 8 && one[7] < 0.8 * one[0], "{one:?}");
    assert_eq!(one, losses("three", &["pools.encoder.replicas=3"], None));
    assert_eq!(one, losses("beside", &["pools.placement=colocated"], None));
    assert_eq!(one[4..], losses("resumed", &["pools.encoder.replicas=2"], Some("one")));
}

/// The test runs the committed config on a little of its data.
#[test]
fn the_sample_config_learns() {
    let dir = tempfile::tempdir().unwrap();
    digits::compose(dir.path(), &Digits { seed: 1, num_train: 64, num_held_out: 8 }).unwrap();
    let own = |name: &str| dir.path().join(name).display().to_string();
    let overrides = [
        format!("run.dir={}", own("run")),
        format!("data.train=[{{path: {}}}]", own("train.jsonl")),
        format!("eval.path={}", own("held_out.jsonl")),
        "eval.every_steps=6".to_owned(),
        "train.steps=6".to_owned(),
        "train.warmup_steps=1".to_owned(),
        "log.tensorboard=false".to_owned(),
    ];
    let loaded = config::load(Path::new("configs/florence2_digits.yaml"), &overrides, std::iter::empty());
    let (steps, evaluated) = crate::fixture::run(loaded.unwrap_or_else(|report| panic!("{report}")), None);
    assert!(steps.len() == 6 && steps[5].loss < 0.9 * steps[0].loss, "{steps:?}");
    assert_eq!(evaluated[0].sets[0].found.outputs.len(), 8);
}

#[test]
fn replicas_and_shards_change_no_loss() {
    let layouts: &[&[&str]] = &[
        &["replicas=2"],
        &["replicas=2", "zero=1"],
        &["replicas=2", "zero=2"],
        &["replicas=2", "zero=3", "pools.encoder.replicas=2", "pools.encoder.zero=1"],
    ];
    compare(&florence(), &["train.micro_batch_size=2", "train.lr=5e-3"], layouts);
    let adapters = ["train.micro_batch_size=2", "train.lr=5e-3", "model.foundation.lora={r: 4}"];
    compare(&florence(), &adapters, &layouts[3..]);
}

/// Returns the tokens with which questions of the held-out set are answered after three steps.
fn outputs(fixture: &Fixture, own: &[&str]) -> Vec<(u64, Vec<i64>)> {
    let path = format!("+eval.path={}", fixture.path().join("data/held_out.jsonl").display());
    let common = [
        "train.steps=3",
        "train.micro_batch_size=2",
        "eval.every_steps=3",
        "eval.max_new_tokens=6",
        "eval.save_best=false",
    ];
    let (_, evaluated) = fixture.run_evaluated(&[&[path.as_str()], &common[..], own].concat(), None);
    let last: &EvaluationSummary = evaluated.last().unwrap();
    assert!(last.sets[0].loss().is_finite() && last.sets[0].found.num_correct.is_some(), "{last:?}");
    let mut outputs: Vec<(u64, Vec<i64>)> =
        last.sets[0].found.outputs.iter().map(|(id, tokens)| (id.0, tokens.clone())).collect();
    outputs.sort();
    outputs
}

#[test]
fn checkpoints_answer_as_the_run_that_made_them() {
    let fixture = florence();
    let found = outputs(&fixture, &[]);
    assert_eq!(found.len(), 8);
    // The first token is forced, and so is the one that ends an answer as long as it may be.
    let bos = FIRST_TOKEN as i64;
    assert!(found.iter().all(|(_, tokens)| tokens[0] == bos && tokens.len() <= 5), "{found:?}");
    let checkpoint = fixture.path().join("run/checkpoints/step-00000003");
    let folder = ModelFolder::open_plain(&checkpoint).unwrap();
    let processor = folder.processor(&ProcessorOptions::default()).unwrap();
    let answers = fixture.path().join("answers.jsonl");
    let [from, to] = [&checkpoint, &answers].map(|path| path.display().to_string());
    let ask = ["generate", &from, "--prompts", "data/held_out.jsonl", "-o", &to, "--max-new-tokens", "6"];
    let asked = loongforge(&fixture, &ask);
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    let answers = fs::read_to_string(answers).unwrap();
    assert_eq!(answers.lines().count(), 8);
    for (line, (_, tokens)) in answers.lines().zip(&found) {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["answer"], processor.tokenizer().decode(tokens).unwrap());
    }
    // Places are text, and what is around an answer is not.
    let places = [bos, 49, FIRST_TOKEN as i64 + 5, FIRST_TOKEN as i64 + 2];
    assert_eq!(processor.tokenizer().decode(&places).unwrap(), "1<loc_1>");
    // Ranks that gather parameters read a row for each token, and answer alike.
    fs::remove_dir_all(fixture.path().join("run")).unwrap();
    let gathered = outputs(&fixture, &["pools.foundation.replicas=2", "pools.foundation.zero=3"]);
    assert_eq!(gathered, found);

    let checkpoint = fixture.path().join("run/checkpoints/step-00000003").display().to_string();
    let evaluated = loongforge(&fixture, &["evaluate", &checkpoint, "data/held_out.jsonl"]);
    let told = String::from_utf8_lossy(&evaluated.stdout);
    assert!(evaluated.status.success(), "{told}{}", String::from_utf8_lossy(&evaluated.stderr));
    let chat = loongforge(&fixture, &["chat", &checkpoint]);
    let told = String::from_utf8_lossy(&chat.stderr);
    assert!(chat.status.code() == Some(2) && told.contains("cannot hold a conversation"), "{told}");
}

#[test]
fn what_it_cannot_do_is_refused_by_name() {
    let fixture = florence();
    for (overrides, expected) in [
        (&["pools.foundation.tensor_parallel=2"][..], "tensor_parallel"),
        (&["pools.foundation.pipeline_parallel=2"], "pipeline_parallel"),
        (&["pools.foundation.context_parallel=2"], "context_parallel"),
        (&["pools.foundation.chunk_tokens=16"], "chunk_tokens"),
        (&["pools.encoder.tensor_parallel=2"], "pools.encoder"),
        (&["train.phase=pretrain"], "train.phase"),
        (&["train.label_smoothing=0.1"], "train.label_smoothing"),
        (&["train.loss_weighting=square"], "train.loss_weighting"),
        (&["train.neftune_alpha=5"], "train.neftune_alpha"),
        (&["model.overrides={vision_config.max_position_embeddings: 3}"], "there are positions for 3"),
    ] {
        let checked = loongforge(&fixture, &[&["check", "run.yaml"], overrides].concat());
        let told = format!("{}{}", String::from_utf8_lossy(&checked.stdout), String::from_utf8_lossy(&checked.stderr));
        assert_eq!(checked.status.code(), Some(2), "{overrides:?}: {told}");
        assert!(told.contains(expected), "{overrides:?}: {told}");
    }
    let short =
        loongforge(&fixture, &["check", "run.yaml", "model.overrides={text_config.max_position_embeddings: 8}"]);
    let told = format!("{}{}", String::from_utf8_lossy(&short.stdout), String::from_utf8_lossy(&short.stderr));
    assert!(told.contains("tokens, but the model has positions for 8"), "{told}");
    let checked = loongforge(&fixture, &["check", "run.yaml"]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    // A model that is not there.
    fs::write(fixture.path().join("model/config.json"), json!({"model_type": "kimi_linear"}).to_string()).unwrap();
    let checked = loongforge(&fixture, &["check", "run.yaml"]);
    let told = format!("{}{}", String::from_utf8_lossy(&checked.stdout), String::from_utf8_lossy(&checked.stderr));
    assert!(checked.status.code() == Some(2) && told.contains("Kimi-Linear is not implemented"), "{told}");
}
