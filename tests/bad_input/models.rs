//! Model folders: weights, config and tokenizer that are torn or do not fit.

use crate::fixture::{CHECKPOINT, Fixture};

const ENCODER: &str = "model-00001-of-00002.safetensors";
const FOUNDATION: &str = "model-00002-of-00002.safetensors";

/// A run that loads the weights of the folder `broken`.
const LOAD: [&str; 5] = ["run", "run.yaml", "model.load=broken", "model.weights=load", "run.dir=other"];

/// Returns a trained model's copy in `broken`.
fn broken() -> Fixture {
    let fixture = Fixture::trained();
    fixture.copy(CHECKPOINT, "broken");
    fixture
}

fn never_began(fixture: &Fixture) {
    let metrics = fixture.path("other/metrics.jsonl");
    assert!(!metrics.exists() || fixture.read("other/metrics.jsonl").is_empty());
    assert!(!fixture.path("other/checkpoints/step-00000002").exists());
}

#[test]
fn torn_weights_are_named() {
    let fixture = broken();
    let (encoder, foundation) = (format!("broken/{ENCODER}"), format!("broken/{FOUNDATION}"));
    let whole = std::fs::read(fixture.path(&foundation)).unwrap();
    fixture.cut(&foundation, 20_000);
    let words = [foundation.as_str(), "is not a whole safetensors file", "20000 bytes"];
    fixture.fails(&LOAD, 2, &words);
    never_began(&fixture);
    fixture.fails(&["generate", "broken", "--prompt", "hi"], 2, &words);

    fixture.write(&foundation, whole);
    for junk in [&b""[..], b"junk", &[0xff; 64]] {
        fixture.write(&encoder, junk);
        fixture.fails(&["generate", "broken", "--prompt", "hi"], 2, &[&encoder]);
    }
    fixture.write(&encoder, b"\x02\0\0\0\0\0\0\0{}");
    fixture.fails(&LOAD, 2, &["model.safetensors.index.json", "which has no such tensor"]);
    std::fs::remove_file(fixture.path(&encoder)).unwrap();
    fixture.fails(&LOAD, 2, &[ENCODER, "which is not in broken"]);
    std::fs::remove_file(fixture.path("broken/model.safetensors.index.json")).unwrap();
    fixture.fails(&LOAD, 2, &["broken has no model.safetensors", "model.weights=random"]);
}

#[test]
fn weights_of_other_shapes_or_vocabulary_are_named() {
    let fixture = broken();
    let narrower = [&LOAD[..], &["model.overrides.text_config.intermediate_size=32"]].concat();
    let words = ["layers.{0..1}.mlp.gate_proj.weight", "checkpoint [64, 48], model [32, 48]"];
    fixture.fails(&narrower, 2, &words);
    let deeper = [&LOAD[..], &["model.overrides.text_config.num_hidden_layers=3"]].concat();
    fixture.fails(&deeper, 2, &["missing (11)", "model.language_model.layers.2."]);
    let shallower = [&LOAD[..], &["model.overrides.text_config.num_hidden_layers=1"]].concat();
    fixture.fails(&shallower, 2, &["unexpected (11)", "model.language_model.layers.1."]);
    let ignored = ["run.dir=ignored", "model.load_ignore=[model.language_model.layers.1.*]"];
    fixture.succeeds(&[&shallower[..], &ignored].concat());
    let wider = [&LOAD[..], &["model.overrides.text_config.vocab_size=300"]].concat();
    let words =
        ["language_model.embed_tokens.weight", "checkpoint [264, 48], model [300, 48]", "model.resize_embeddings=true"];
    fixture.fails(&wider, 2, &words);
    never_began(&fixture);
}

#[test]
fn a_tokenizer_beyond_the_vocabulary_is_refused_before_the_first_step() {
    let fixture = Fixture::new();
    fixture.copy("model", "broken");
    fixture.edit("broken/tokenizer.json", "\"ÿ\": 255", "\"ÿ\": 999");
    let words = ["broken/tokenizer.json", "token id 999", "vocab_size 264"];
    let args = ["run.yaml", "model.load=broken", "run.dir=other"];
    fixture.fails(&[&["run"], &args[..]].concat(), 2, &words);
    never_began(&fixture);
    fixture.fails(&[&["check"], &args[..]].concat(), 2, &words);

    let image_token = ["image_token_id is 262, but must be below"];
    fixture.fails(&["run", "run.yaml", "model.overrides.text_config.vocab_size=262"], 2, &image_token);
    fixture.fails(
        &["check", "run.yaml", "model.overrides.text_config.vocab_siz=262"],
        2,
        &["vocab_siz", "no such key"],
    );
}

#[test]
fn torn_files_of_a_model_folder_are_named() {
    let fixture = Fixture::new();
    let run = ["run", "run.yaml", "model.load=broken", "run.dir=other"];
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"] {
        fixture.copy("model", "broken");
        fixture.cut(&format!("broken/{file}"), 40);
        let path = format!("broken/{file}");
        fixture.fails(&run, 2, &[&path]);
        fixture.fails(&["check", "run.yaml", "model.load=broken"], 2, &[&path]);
    }
    fixture.copy("model", "broken");
    std::fs::remove_file(fixture.path("broken/chat_template.jinja")).unwrap();
    fixture.fails(&run, 2, &["no chat template", "data.template"]);
    never_began(&fixture);
}

#[test]
fn folders_that_are_no_model_are_named() {
    let fixture = Fixture::new();
    std::fs::create_dir(fixture.path("empty")).unwrap();
    fixture.fails(&["run", "run.yaml", "model.load=empty"], 2, &["`model.load`: no `config.json` in `empty`"]);
    fixture.fails(&["run", "run.yaml", "model.load=modle"], 2, &["`model.load`: no such directory", "did you mean"]);
    fixture.fails(&["generate", "empty", "--prompt", "hi"], 2, &["empty has no model: neither config.json"]);
    fixture.fails(
        &["run", "run.yaml", "model.weights=load"],
        2,
        &["no `.safetensors` weights", "model.weights: random"],
    );
    fixture.edit("model/config.json", "\"model_type\": \"qwen3_vl\",", "\"model_type\": \"bert\",");
    let words = ["model/config.json", "model_type is \"bert\"; supported: ", "\"qwen3_vl\""];
    fixture.fails(&["run", "run.yaml"], 2, &words);
}
