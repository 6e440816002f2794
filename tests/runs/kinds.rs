//! Runs of texts, and of texts, pictures and videos in one batch.

use crate::fixture::{Fixture, Pictures, loss_bits};
use serde_json::{Value, json};
use std::fs;

fn picture(index: usize) -> String {
    format!("images/train/000/{index:06}.png")
}

/// Writes `data/train.jsonl` anew.
fn write(fixture: &Fixture, lines: impl Iterator<Item = Value>) {
    let lines: Vec<String> = lines.map(|line| line.to_string()).collect();
    fs::write(fixture.path().join("data/train.jsonl"), lines.join("\n")).unwrap();
}

#[test]
fn texts_pictures_and_videos_share_a_batch() {
    let fixture = Fixture::new(Pictures::All);
    let line = |index: usize| {
        let content = match index % 4 {
            0 => json!("Say a number."),
            1 => json!([{"type": "image", "image": picture(index)}, {"type": "text", "text": "Read."}]),
            2 => json!([{"type": "image", "image": picture(index)}, {"type": "text", "text": "and"},
                        {"type": "image", "image": picture(index + 1)}]),
            _ => json!([{"type": "video", "video": [picture(index), picture(index), picture(index)], "fps": 2.0},
                        {"type": "text", "text": "Read."}]),
        };
        json!({"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "12"}]})
    };
    write(&fixture, (0..32).map(line));
    let overrides = ["data.pack.max_tokens=384", "data.shuffle=false", "train.steps=12", "train.lr=5e-3"];
    let single = fixture.run(&[&overrides[..], &["pools.placement=colocated"]].concat(), None);
    // In eight samples: two pictures, two pairs of pictures, two videos.
    assert!(single.iter().all(|step| step.num_items == 8), "{single:?}");
    assert!(single[11].loss < 0.5 * single[0].loss, "{single:?}");
    let pools = fixture.run(&overrides, None);
    assert_eq!(loss_bits(&single), loss_bits(&pools));
}

/// Replaces the fixture's model by its language model alone.
fn blind(fixture: &Fixture) {
    let path = fixture.path().join("model/config.json");
    let json: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut text = json["text_config"].clone();
    text["model_type"] = json!("qwen3");
    text["architectures"] = json!(["Qwen3ForCausalLM"]);
    text["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 10000.0});
    fixture.replace_model(text);
}

#[test]
fn a_language_model_needs_no_processor() {
    let fixture = Fixture::new(Pictures::None);
    blind(&fixture);
    let sft = fixture.losses(&[]);
    assert!(sft[19] < 0.8 * sft[0], "{sft:?}");
    // Whichever placement: there is no encoder.
    assert_eq!(sft, fixture.losses(&["pools.placement=colocated"]));

    let document = |index: usize| json!({"text": format!("{index} is a number. ").repeat(index % 20 + 1)});
    write(&fixture, (0..40).map(document));
    let overrides = ["data.train.0.format=text", "train.phase=pretrain"];
    let steps = fixture.run(&overrides, None);
    assert!(steps[19].loss < 0.8 * steps[0].loss, "{steps:?}");
}
