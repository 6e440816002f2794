//! The parts of a model that LLaMA-Factory trains: `finetuning_type: freeze`, and the towers of vision-language models, which it freezes
//! unless told otherwise.

use std::path::Path;

use serde_json::{Value, json};

use super::sheet::Sheet;
use crate::files;

const FREEZE: &str = "model.foundation.freeze";
const PATTERNS: &str = "model.foundation.train_patterns";
/// Words in the name of a template or a model that takes pictures.
const SEES: [&str; 16] = [
    "vl",
    "llava",
    "paligemma",
    "pixtral",
    "mllama",
    "internvl",
    "intern_vl",
    "minicpm_v",
    "minicpm_o",
    "omni",
    "gemma3",
    "glm4v",
    "glm4.5v",
    "vision",
    "idefics",
    "keye",
];
/// Keys of pictures.
const OF_PICTURES: [&str; 6] = [
    "image_max_pixels",
    "image_min_pixels",
    "video_max_pixels",
    "video_maxlen",
    "freeze_vision_tower",
    "freeze_multi_modal_projector",
];

/// Translates `finetuning_type: freeze`: some layers are trained, and what `freeze_extra_modules` names; all else is frozen.
pub(super) fn freeze(sheet: &mut Sheet) {
    // Their default. Below 0 it counts from the first layer on.
    let wanted = sheet.number("freeze_trainable_layers").unwrap_or(2.0) as i64;
    let modules = listed(sheet.get("freeze_trainable_modules")).unwrap_or_else(|| vec!["all".to_owned()]);
    let extra = listed(sheet.get("freeze_extra_modules")).unwrap_or_default();
    let layers: Vec<String> = match (num_layers(sheet), wanted) {
        (all, ..0) => (0..all.map_or(-wanted, |all| all.min(-wanted))).map(|layer| layer.to_string()).collect(),
        (Some(all), _) => ((all - wanted).max(0)..all).map(|layer| layer.to_string()).collect(),
        (None, _) => {
            sheet.note(
                "the model's number of layers is not known here: in model.foundation.train_patterns, replace LAST by \
                 the numbers of its last layers; until then `loongforge check` refuses the config",
            );
            (1..=wanted).map(|back| format!("LAST-{back}")).collect()
        }
    };
    let of_layer = |layer: &String| -> Vec<String> {
        let of_module = |module: &String| match module.as_str() {
            "all" => format!("*layers.{layer}.*"),
            name => format!("*layers.{layer}.{name}*"),
        };
        modules.iter().map(of_module).collect()
    };
    let patterns = layers.iter().flat_map(of_layer).chain(extra.iter().map(|name| format!("*{name}*")));
    let patterns: Vec<String> = patterns.collect();
    sheet.set(FREEZE, true);
    sheet.set(PATTERNS, json!(patterns));
    sheet.arrived("finetuning_type", FREEZE);
    for key in ["freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules"] {
        sheet.arrived(key, PATTERNS);
    }
}

/// Freezes towers and projector, as theirs are unless a key says otherwise.
pub(super) fn towers(sheet: &mut Sheet) {
    let sees = sees(sheet);
    for (theirs, ours) in [
        ("freeze_vision_tower", "model.image_encoder.freeze"),
        ("freeze_multi_modal_projector", "model.image_projector.freeze"),
    ] {
        if sees && sheet.get(theirs).is_none() {
            sheet.set(ours, true);
        }
        sheet.copy(theirs, ours);
    }
    sheet.copy("freeze_language_model", FREEZE);
    if !sees {
        sheet.note(
            "LLaMA-Factory trains only the language model of a vision-language model: if this is one, set \
             model.image_encoder.freeze and model.image_projector.freeze to true",
        );
    }
}

/// Sets the limits that theirs are by default: a picture is reduced to them before the model's own processor reads it.
pub(super) fn limits(sheet: &mut Sheet) {
    // A LLaVA may have a Qwen for its language model: its pictures have one size.
    let is = |part: &str| {
        let name = |key: &&str| sheet.get(key).and_then(Value::as_str).map(str::to_lowercase);
        let is_named = |name: String| name.contains(part) && !name.contains("llava");
        ["model_name_or_path", "template"].iter().filter_map(name).any(is_named)
    };
    let (is_earlier, is_later) = (is("qwen2"), is("qwen3"));
    if is_earlier || is_later {
        sheet.set("data.image.max_pixels", 768 * 768);
        sheet.set("data.video.max_frames", 128);
        sheet.set("data.video.fps", 2.0);
    } else if sheet.get("image_max_pixels").is_none() {
        sheet.note(
            "LLaMA-Factory reduces pictures to image_max_pixels (589,824 by default) before the model's processor \
             reads them: set data.image.max_pixels if the model takes pictures of any size",
        );
    }
    if is_later && sheet.get("video_max_pixels").is_none() {
        sheet.note(
            "LLaMA-Factory reduces each frame of a video to video_max_pixels (65,536 by default); \
             data.video.max_pixels of this model applies to all frames together",
        );
    } else if is_earlier && !is_later {
        sheet.set("data.video.max_pixels", 256 * 256);
    }
}

/// Returns whether something tells that the model takes pictures.
pub(super) fn sees(sheet: &Sheet) -> bool {
    let names =
        ["template", "model_name_or_path"].map(|key| sheet.get(key).and_then(Value::as_str).unwrap_or_default());
    let is_named = |name: &&str| {
        let name = name.rsplit('/').next().unwrap_or_default().to_lowercase();
        SEES.iter().any(|part| name.contains(part))
    };
    let has_tower = |config: Value| config.get("vision_config").is_some();
    OF_PICTURES.iter().any(|key| sheet.get(key).is_some())
        || names.iter().any(is_named)
        || config(sheet).is_some_and(has_tower)
}

/// Returns whether something tells that the model is a mixture of experts.
pub(super) fn is_mixture(sheet: &Sheet) -> bool {
    let name = sheet.get("model_name_or_path").and_then(Value::as_str).unwrap_or_default().to_lowercase();
    // `A3B` is how many parameters are active.
    let is_active = |part: &str| {
        let number = part.strip_prefix('a').and_then(|part| part.strip_suffix('b'));
        number.is_some_and(|number| number.parse::<f64>().is_ok())
    };
    let has_experts = |config: Value| {
        let keys = ["num_experts", "num_local_experts", "n_routed_experts"];
        [&config, &config["text_config"]].iter().any(|section| keys.iter().any(|key| section[key].is_number()))
    };
    ["moe", "mixtral", "gpt-oss"].iter().any(|part| name.contains(part))
        || name.split(['-', '_', '/']).any(is_active)
        || config(sheet).is_some_and(has_experts)
}

/// Counts the layers of a model whose folder is here.
fn num_layers(sheet: &Sheet) -> Option<i64> {
    let config = config(sheet)?;
    let keys = ["num_hidden_layers", "num_layers", "n_layer"];
    [&config["text_config"], &config].into_iter().find_map(|section| keys.iter().find_map(|key| section[key].as_i64()))
}

/// Reads the `config.json` of a model whose folder is here.
fn config(sheet: &Sheet) -> Option<Value> {
    let folder = Path::new(sheet.get("model_name_or_path")?.as_str()?);
    serde_json::from_str(&files::read_text(&folder.join("config.json")).ok()?).ok()
}

/// Returns names in a list or between commas.
fn listed(value: Option<&Value>) -> Option<Vec<String>> {
    let names: Vec<&str> = match value? {
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
        other => other.as_str()?.split(',').collect(),
    };
    Some(names.into_iter().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect())
}
