//! The steps of lerobot's processors that are GR00T's own (`processor_groot.py` of lerobot 0.6.1), for one embodiment.

use serde_json::{Map, Value as Json, json};

use super::groot_framing::{CROP, SIDE};
use super::groot_groups;
use super::spec::SampleSpec;
use crate::data::card::GrootVersion;
use crate::data::lerobot::Stats;

pub const PACK: &str = "groot_n1_7_pack_inputs_v1";
pub const ENCODE: &str = "groot_n1_7_vlm_encode_v1";
pub const DECODE: &str = "groot_n1_7_action_decode_v1";
pub const UNPACK: &str = "groot_action_unpack_unnormalize_v2";
/// The steps with statistics in a file beside them.
pub const HAVE_STATS: [&str; 2] = [PACK, UNPACK];

/// Returns a step of lerobot's processors.
pub fn step(name: &str, config: Json) -> Json {
    json!({ "registry_name": name, "config": config })
}

/// Normalizes and pads, and adds mask and embodiment.
pub fn pack(spec: &SampleSpec, stats: &Stats, mask: &[bool]) -> Json {
    let [raw_stats, modality] = groot_groups::write(spec, stats, mask);
    let (tag, number) = spec.embodiment.clone().unwrap_or_default();
    let mapping = Map::from_iter([(tag.clone(), json!(number))]);
    let config = json!({
        "state_horizon": 1, "action_horizon": spec.horizon, "valid_action_horizon": spec.horizon, "video_horizon": null,
        "max_state_dim": spec.max_state_dim, "max_action_dim": spec.max_action_dim, "language_key": "task",
        "formalize_language": true, "embodiment_tag": tag, "embodiment_mapping": mapping, "normalize_min_max": true,
        "state_dropout_prob": 0.0, "clip_outliers": true, "use_percentiles": false, "video_modality_keys": null,
        "raw_stats": raw_stats, "modality_config": modality,
    });
    step(PACK, config)
}

/// Makes tokens of pictures and task; `None` for N1.6, which lerobot has no step for.
pub fn encode(spec: &SampleSpec) -> Option<Json> {
    let version = spec.groot?.version;
    if version == GrootVersion::N1_6 {
        return None;
    }
    let config = json!({
        "model_name": version.backbone(), "image_crop_size": [CROP, CROP], "image_target_size": [SIDE, SIDE], "shortest_image_edge": null,
        "crop_fraction": null, "use_albumentations": false, "letter_box_transform": false, "device": "cpu",
    });
    Some(step(ENCODE, config))
}

/// Cuts padding off, and restores the range of actions.
pub fn unpack(spec: &SampleSpec) -> Json {
    let config = json!({
        "env_action_dim": spec.action_dim, "normalize_min_max": true, "clip_normalized_action": true,
        "libero_gripper_action": false, "libero_gripper_binarize": true,
    });
    step(UNPACK, config)
}

/// Restores the range of actions by groups, and adds the state to the relative ones.
pub fn decode(spec: &SampleSpec, stats: &Stats, mask: &[bool]) -> Json {
    let [raw_stats, modality] = groot_groups::write(spec, stats, mask);
    let config = json!({
        "env_action_dim": spec.action_dim, "raw_stats": raw_stats, "modality_config": modality, "use_percentiles": false,
        "use_relative_action": true, "action_decode_transform": null,
    });
    step(DECODE, config)
}

/// # Errors
/// The reason: the step does what is not implemented.
pub fn check_pack(config: &Json) -> Result<(), String> {
    let same = |key: &str, value: Json| expect(PACK, config, key, &value);
    same("state_horizon", json!(1))?;
    same("formalize_language", json!(true))?;
    same("normalize_min_max", json!(true))?;
    same("clip_outliers", json!(true))?;
    // Groups of numbers have quantiles beside the bounds of all.
    if config["raw_stats"].is_null() {
        same("use_percentiles", json!(false))?;
    }
    // Settings of an NVIDIA's folder: videos, an order of cameras, states that are hidden here.
    for key in ["video_horizon", "video_modality_keys"] {
        same(key, Json::Null)?;
    }
    match config["state_dropout_prob"].as_f64().unwrap_or(0.0) == 0.0 {
        true => Ok(()),
        false => {
            Err(format!("{PACK}: state_dropout_prob is {}, which is not implemented", config["state_dropout_prob"]))
        }
    }
}

/// # Errors
/// The reason: the step does what is not implemented.
pub fn check_encode(config: &Json) -> Result<(), String> {
    let same = |key: &str, value: Json| expect(ENCODE, config, key, &value);
    same("image_crop_size", json!([CROP, CROP]))?;
    same("image_target_size", json!([SIDE, SIDE]))?;
    same("shortest_image_edge", Json::Null)?;
    same("crop_fraction", Json::Null)?;
    same("use_albumentations", json!(false))?;
    same("letter_box_transform", json!(false))
}

/// Names the settings of a step that restores actions, [`UNPACK`] or [`DECODE`].
///
/// # Errors
/// The reason: the step does what is not implemented.
pub fn check_restored(step: &str, config: &Json) -> Result<(), String> {
    let same = |key: &str, value: Json| expect(step, config, key, &value);
    same("normalize_min_max", json!(true))?;
    same("clip_normalized_action", json!(true))?;
    same("libero_gripper_action", json!(false))?;
    same("action_decode_transform", Json::Null)
}

/// Checks that a key has this value; an absent key counts as `value`.
fn expect(step: &str, config: &Json, key: &str, value: &Json) -> Result<(), String> {
    match config.get(key).is_none_or(|own| own == value) {
        true => Ok(()),
        false => Err(format!("{step}: {key} is {}, but only {value} is implemented", config[key])),
    }
}
