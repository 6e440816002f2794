//! Runs of models whose tokens of pictures or prompts see tokens behind them, and of pictures in tiles: Gemma 3, PaliGemma, SmolVLM.

use crate::fixture::{Fixture, Pictures};
use serde_json::{Value, json};
use std::fs;

/// Texts alone among samples with pictures; packs of several samples.
const OVERRIDES: [&str; 4] = ["data.template=chatml", "data.pack.max_tokens=384", "train.steps=12", "train.lr=5e-3"];

fn read(fixture: &Fixture, name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(fixture.path().join("model").join(name)).unwrap()).unwrap()
}

/// Returns a text model of the fixture's vocabulary.
fn text(config: &Value, model_type: &str) -> Value {
    let vocab = config["text_config"]["vocab_size"].clone();
    json!({"model_type": model_type, "vocab_size": vocab, "hidden_size": 48, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 24,
        "query_pre_attn_scalar": 24, "sliding_window": 6})
}

/// Checks that the losses are the same, to the last bit, with the tower in an encoder pool and beside the decoder.
fn check(config: &Value, settings: &Value, overrides: &[&str]) {
    let fixture = Fixture::new(Pictures::Some);
    let write =
        |name: &str, json: &Value| fs::write(fixture.path().join("model").join(name), json.to_string()).unwrap();
    fs::remove_file(fixture.path().join("model/video_preprocessor_config.json")).unwrap();
    write("config.json", config);
    write("preprocessor_config.json", settings);
    let overrides = [&OVERRIDES[..], overrides].concat();
    let pools = fixture.run(&overrides, None);
    assert!(pools.iter().any(|step| step.num_items > 0), "{pools:?}");
    assert!(pools[11].loss < 0.95 * pools[0].loss, "{pools:?}");
    let together = fixture.run(&[&overrides[..], &["pools.placement=colocated"]].concat(), None);
    for (apart, together) in pools.iter().zip(&together) {
        assert_eq!(apart.loss.to_bits(), together.loss.to_bits());
    }
}

fn siglip() -> Value {
    json!({"model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 32, "patch_size": 8, "vision_use_head": false})
}

fn published(model_type: &str, of_text: &str) -> Value {
    let fixture = Fixture::new(Pictures::None);
    let config = read(&fixture, "config.json");
    json!({"model_type": model_type, "text_config": text(&config, of_text), "vision_config": siglip(),
        "image_token_id": config["image_token_id"], "boi_token_index": config["vision_start_token_id"],
        "eoi_token_index": config["vision_end_token_id"]})
}

#[test]
fn pictures_of_gemma_3_see_themselves() {
    let mut config = published("gemma3", "gemma3_text");
    config["mm_tokens_per_image"] = json!(4);
    check(&config, &json!({"size": {"height": 32, "width": 32}}), &[]);
}

#[test]
fn prompts_of_paligemma_see_themselves() {
    let mut config = published("paligemma", "gemma2");
    config["projection_dim"] = json!(48);
    check(&config, &json!({"size": {"height": 32, "width": 32}}), &["model.foundation.lora={r: 4}"]);
}

/// The first picture is larger than a slice.
#[test]
fn pictures_of_minicpm_are_a_copy_and_slices() {
    let mut config = published("minicpmv4_6", "qwen3_5_text");
    let of_nets = json!({"layer_types": ["linear_attention", "full_attention"], "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4});
    config["text_config"].as_object_mut().unwrap().extend(of_nets.as_object().unwrap().clone());
    config["insert_layer_id"] = json!(0);
    config["vision_config"]["model_type"] = json!("minicpmv4_6_vision");
    config["vision_config"]["patch_size"] = json!(4);
    let settings = json!({"patch_size": 4, "scale_resolution": 16, "max_slice_nums": 4});
    check(&config, &settings, &[]);
    check(&config, &settings, &["model.foundation.lora={r: 4}", "model.image_encoder.freeze=true"]);
}

#[test]
fn pictures_of_smolvlm_are_tiles() {
    let mut config = published("smolvlm", "llama");
    config["scale_factor"] = json!(2);
    config["vision_config"]["model_type"] = json!("smolvlm_vision");
    let settings =
        json!({"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}, "do_image_splitting": true});
    check(&config, &settings, &[]);
}
