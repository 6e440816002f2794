//! Every layout of the same model says the same.

use serde_json::json;

use super::*;

/// Returns the same parts under the names of each layout that there is.
fn layouts() -> Vec<Json> {
    let text = json!({"model_type": "qwen2_5_omni_text", "vocab_size": 7});
    let vision = json!({"model_type": "qwen2_5_omni_vision_encoder", "depth": 3});
    let audio = json!({"model_type": "qwen2_5_omni_audio_encoder", "d_model": 5});
    let thinker = json!({"model_type": "qwen2_5_omni_thinker", "text_config": text, "vision_config": vision,
        "audio_config": audio, "image_token_id": 11, "audio_token_index": 12});
    let parts = json!({"model_type": "loongforge_vlm", "foundation": text, "image_encoder": vision,
        "audio_encoder": audio, "image_token_id": 11, "audio_token_id": 12});
    let chat = json!({"model_type": "internvl_chat", "llm_config": text, "vision_config": vision, "audio_config": audio,
        "img_context_token_id": 11, "audio_token_id": 12});
    vec![json!({"model_type": "qwen2_5_omni", "thinker_config": thinker}), thinker, parts, chat]
}

#[test]
fn every_layout_says_the_same() {
    for config in layouts() {
        let card = ModelCard::of(&config);
        assert_eq!(card.text()["vocab_size"], 7, "{config}");
        assert_eq!((&card.vision().unwrap()["depth"], &card.audio().unwrap()["d_model"]), (&json!(3), &json!(5)));
        assert_eq!([Tower::Vision, Tower::Audio].map(|tower| card.placeholder(tower)), [Some(11), Some(12)]);
        assert_eq!(card.positions(), PositionKind::Multimodal);
        assert_eq!(card.vision_cut(), Some(VisionCut::OmniChunks));
        assert_eq!(card.audio_family(), Some(AudioFamily::Qwen2_5Omni));
        let place = Section::Text.place(&config).unwrap();
        assert_eq!(config.pointer(&place).unwrap(), card.text());
        assert!(Section::places_of_text(&config).contains(&place));
    }
    let text = json!({"model_type": "qwen3", "vocab_size": 7});
    let card = ModelCard::of(&text);
    assert_eq!((card.text(), card.vision(), card.audio(), Section::Text.place(&text)), (&text, None, None, None));
}

#[test]
fn which_models_count_on_three_axes() {
    let three = [
        json!({"model_type": "qwen2_5_vl"}),
        json!({"model_type": "qwen3_5_moe", "text_config": {"model_type": "qwen3_5_moe_text"}}),
        json!({"model_type": "x", "text_config": {"rope_scaling": {"mrope_section": [1, 2, 3]}}}),
        json!({"foundation": {"model_type": "qwen3_5_text"}, "image_encoder": {"model_type": "intern_vit_6b"}}),
    ];
    let one = [
        json!({"model_type": "internvl", "text_config": {"model_type": "qwen3"}}),
        json!({"model_type": "qwen3"}),
        json!({"foundation": {"model_type": "qwen3"}, "image_encoder": {"model_type": "qwen3_vl"}}),
    ];
    assert!(three.iter().all(|config| ModelCard::of(config).positions() == PositionKind::Multimodal));
    assert!(one.iter().all(|config| ModelCard::of(config).positions() == PositionKind::Sequential));
}

#[test]
fn stochastic_depth_that_is_not_computed_is_told() {
    let note = |rate: f64| {
        let vision = json!({"model_type": "intern_vit_6b", "drop_path_rate": rate, "dropout": 0.0});
        ModelCard::of(&json!({"model_type": "internvl_chat", "vision_config": vision})).note()
    };
    assert_eq!(note(0.1).unwrap(), "the model is trained without drop_path_rate 0.1 of its config.json");
    assert_eq!(note(0.0), None);
    assert!(ModelCard::of(&json!({"model_type": "florence2"})).note().is_none());
    let florence = json!({"model_type": "florence2", "vision_config": {"drop_path_rate": 0.2}, "text_config": {}});
    assert!(ModelCard::of(&florence).note().unwrap().contains("drop_path_rate 0.2, dropout 0.1"));
}

#[test]
fn a_part_of_a_family_has_its_row() {
    for name in
        ["qwen3_omni_moe_audio_encoder", "qwen3_omni_moe_thinker", "qwen3_omni_moe", "qwen3_omni_moe_thinker_text"]
    {
        assert_eq!(row_of(name).and_then(|row| row.audio), Some(AudioFamily::Qwen3Omni), "{name}");
    }
    assert_eq!(row_of("qwen2_audio_encoder").and_then(|row| row.audio), Some(AudioFamily::Qwen2Audio));
    assert!(row_of("qwen9_vision").is_none() && row_of("_vision").is_none());
}
