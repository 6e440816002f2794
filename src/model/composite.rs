//! The `config.json` of a model that is put together from parts, and the token that stands for pictures where a `config.json` does not
//! say. The model checks which parts fit each other.

use crate::model::diffusers::read_json;
use crate::model::error::FolderError;
use loongforge_core::config::{Model, Part, TextTower};
use loongforge_core::data::{DIFFUSION, ModelCard, Section};
use serde_json::{Value, json};
use std::path::Path;

/// The names in tokenizers of the token that features of pictures replace.
const IMAGE_TOKENS: [&str; 5] = ["<|image_pad|>", "<IMG_CONTEXT>", "<|media_pad|>", "<|IMAGE_PLACEHOLDER|>", "<image>"];
/// Configs that have no key for it, or need not have one.
const WITHOUT_IMAGE_TOKEN: [&str; 2] = ["loongforge_vlm", "internvl_chat"];

/// Towers whose configs may have keys of ours, and these: a published config has none of them.
const TOWERS_WITH_KEYS: [&str; 6] =
    ["clip", "clip_vision_model", "dinov2", "dinov2_with_registers", "siglip", "siglip_vision_model"];
const TOWER_KEYS: [&str; 2] = ["spatial_merge_size", "vision_feature_layer"];

/// Models whose head is the embedding where they or their language models say so; of others only the whole model's word counts.
const EITHER_TIES: [&str; 4] = ["internvl_chat", "llava", "qwen2_5_vl", "qwen2_vl"];

/// Returns whether a part has a config of its own, or the model none but its parts'.
pub(crate) fn has_parts(model: &Model) -> bool {
    let whole = model.load.is_some() || !model.config.is_empty();
    parts(model).iter().any(|(_, part)| !part.config.is_empty() || (!whole && part.load.is_some()))
}

fn parts(model: &Model) -> [(&'static str, &Part); 8] {
    model.parts().map(|(key, part)| (key.strip_prefix("model.").unwrap_or(key), part))
}

/// Returns the network of a diffusion model that a part is, with or without `model.` before it.
pub(crate) fn network_of(key: &str) -> &str {
    match key.strip_prefix("model.").unwrap_or(key) {
        "foundation" => "transformer",
        other => other,
    }
}

/// Puts the parts' configs into `json`: those given, else those of the folders that the parts are loaded from.
/// `read` gives a folder's `config.json`. A language model alone is put together with nothing: `json` is its config.
///
/// # Errors
/// `json` is of a model that is not put together, or a folder is unreadable.
pub(crate) fn put_parts(
    json: &mut Value,
    model: &Model,
    read: impl Fn(&'static str, &Part) -> Result<Value, FolderError>,
) -> Result<(), FolderError> {
    let mut model_type = json.get("model_type").and_then(Value::as_str).unwrap_or("loongforge_vlm").to_owned();
    let mut parts = parts(model);
    // The foundation first: a diffusion transformer makes it a model of another type.
    parts.rotate_right(1);
    for (key, part) in parts {
        let is_diffusion = model_type == DIFFUSION;
        let network = if is_diffusion { network_of(key) } else { key };
        let config = match (part.config.is_empty(), &part.load) {
            (false, _) if model_type != "loongforge_vlm" && !is_diffusion => {
                return Err(FolderError::NoParts { key, model_type });
            }
            (false, _) => Value::Object(part.config.clone()),
            (true, Some(_)) if json.get(network).is_none() => of_part(key, read(key, part)?),
            (true, _) => continue,
        };
        let makes_diffusion = key == "foundation" && config.get("_class_name").is_some();
        if makes_diffusion && json.get("model_type").is_none() {
            model_type = DIFFUSION.to_owned();
        }
        let network = if model_type == DIFFUSION { network_of(key) } else { key };
        json[network] = config;
        put_tower_keys(&mut json[network]);
    }
    if model.is_foundation_alone() && model_type != DIFFUSION {
        *json = json["foundation"].take();
        return Ok(());
    }
    json["model_type"] = json!(model_type);
    Ok(())
}

/// Puts what `model.text` says into the section `text`.
///
/// # Errors
/// It says something, and the model has no text tower.
pub(crate) fn put_text(json: &mut Value, model: &Model) -> Result<(), FolderError> {
    let TextTower { tokenizer: _, template, max_tokens, drop_tokens, layers } = &model.text;
    if ModelCard::of(json).text_tower().is_none() {
        return match model.text == TextTower::default() {
            true => Ok(()),
            false => Err(FolderError::NoTextTower),
        };
    }
    if json.get("text").is_none()
        && let Some(text) = ModelCard::of(json).text_defaults()
    {
        json["text"] = text;
    }
    let said = [
        ("template", json!(template)),
        ("max_tokens", json!(max_tokens)),
        ("drop_tokens", json!(drop_tokens)),
        ("layers", json!(layers)),
    ];
    for (key, value) in said.into_iter().filter(|(_, value)| !value.is_null()) {
        json["text"][key] = value;
    }
    Ok(())
}

/// Adds the keys that a tower may have beside its published ones, so that they can be overridden.
fn put_tower_keys(part: &mut Value) {
    let is_known = part["model_type"].as_str().is_some_and(|name| TOWERS_WITH_KEYS.contains(&name));
    let Some(keys) = part.as_object_mut().filter(|_| is_known) else { return };
    for key in TOWER_KEYS {
        keys.entry(key).or_insert(Value::Null);
    }
}

/// Turns DeepStack off where the tower of a folder has it for a language model of another width: what its mergers put out
/// would not fit. The sentence that says so.
pub(crate) fn fit_deepstack(json: &mut Value, model: &Model) -> Option<String> {
    let chosen = model.image_encoder.overrides.contains_key("deepstack_visual_indexes");
    model.image_encoder.load.as_ref().filter(|_| model.image_encoder.config.is_empty() && !chosen)?;
    let width = json.pointer("/foundation/hidden_size")?.as_i64()?;
    let tower = json.get_mut("image_encoder")?;
    let has = tower.get("deepstack_visual_indexes")?.as_array().is_some_and(|levels| !levels.is_empty());
    let outputs = tower.get("out_hidden_size")?.as_i64().filter(|outputs| has && *outputs != width)?;
    tower["deepstack_visual_indexes"] = json!([]);
    Some(format!(
        "DeepStack is off: the tower's mergers have {outputs} outputs, but the language model's width is {width}"
    ))
}

/// Returns the config of the part `key` in a model's.
pub(crate) fn section_of<'a>(json: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    match Section::of_part(key).place(json) {
        Some(place) => json.pointer_mut(&place),
        // A language model's config is its own.
        None => (key == "model.foundation").then_some(json),
    }
}

/// Returns the keys of a `config.json` that other programs train by and this one does not: a sentence each.
pub(crate) fn ignored(json: &Value) -> Vec<String> {
    let seq_aux = ModelCard::of(json).of_text().any(|keys| keys["seq_aux"] == true);
    let said = "config.json has seq_aux: true, which is not implemented: the load-balancing loss, where \
                model.moe.aux_loss_coef turns it on, is over all tokens of a micro-batch and not over each sequence";
    seq_aux.then(|| said.to_owned()).into_iter().collect()
}

/// Returns a part's config in a whole model's: the tower's or the language model's. A folder of the part alone has it itself. A
/// projector's is nowhere: it is the one that the tower comes with.
fn of_part(key: &str, mut config: Value) -> Value {
    let section = Section::of_part(key);
    let tied = if section == Section::Text { is_tied(&config) } else { None };
    let is_projector = matches!(section, Section::VisionProjector | Section::AudioProjector | Section::TextProjector);
    // A language model may be the text tower of another: alone, or within one that sees or hears.
    let section = match section {
        Section::TextTower if section.place(&config).is_none() => Section::Text,
        section => section,
    };
    let outer = config.get("model_type").cloned();
    // LLaVA says beside its tower which of its layers counts.
    let layer = config.get("vision_feature_layer").filter(|_| section == Section::Vision).cloned();
    let Some(mut part) = section.place(&config).and_then(|place| Some(config.pointer_mut(&place)?.take())) else {
        return if is_projector { json!({}) } else { config };
    };
    if let (Some(layer), Some(part)) = (layer, part.as_object_mut()) {
        part.entry("vision_feature_layer").or_insert(layer);
    }
    if let (Some(tied), Some(part)) = (tied, part.as_object_mut()) {
        part.insert("tie_word_embeddings".into(), json!(tied));
    }
    // Towers of older configs have no type of their own; networks of Diffusers have a class.
    if part.get("model_type").is_none()
        && part.get("_class_name").is_none()
        && !is_projector
        && let (Some(part), Some(outer)) = (part.as_object_mut(), outer)
    {
        part.insert("model_type".into(), outer);
    }
    part
}

/// Returns whether the head of the language model within `config` is its embedding; `None` where the whole model does not say.
fn is_tied(config: &Value) -> Option<bool> {
    let place = Section::Text.place(config)?;
    let (holder, _) = place.rsplit_once('/')?;
    let of = |place: &str| config.pointer(place)?["tie_word_embeddings"].as_bool();
    let either = config["model_type"].as_str().is_some_and(|name| EITHER_TIES.contains(&name));
    Some(of(holder)? || either && of(&place).unwrap_or(false))
}

/// Adds `image_token_id` to a config that has none and needs one, from the tokenizer in `folder`.
pub(crate) fn put_image_token(json: &mut Value, folder: &Path) {
    let model_type = json.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let given = json.get("image_token_id").is_some_and(|id| !id.is_null());
    if given || !WITHOUT_IMAGE_TOKEN.contains(&model_type) {
        return;
    }
    if let Some(id) = image_token(folder) {
        json["image_token_id"] = json!(id);
    }
}

/// Puts the tokens that answers of a model with an encoder and a decoder are made to begin and end with into its config. As in
/// transformers, a `generation_config.json` says all of them, null where it has none, and the config counts only without that file.
///
/// # Errors
/// The file is there, and cannot be read or is not JSON.
pub(crate) fn put_forced_tokens(json: &mut Value, folder: &Path) -> Result<(), FolderError> {
    let file = folder.join("generation_config.json");
    if ModelCard::of(json).encoder_decoder().is_none() || !json["text_config"].is_object() || !file.exists() {
        return Ok(());
    }
    let own = read_json(&file)?;
    for key in ["forced_bos_token_id", "forced_eos_token_id"] {
        json["text_config"][key] = own[key].clone();
    }
    Ok(())
}

/// Returns the id of the token that stands for pictures; `None` where the folder has no `tokenizer.json` or `added_tokens.json` that
/// knows one.
fn image_token(folder: &Path) -> Option<u64> {
    let file = |name: &str| -> Option<Value> {
        serde_json::from_str(&loongforge_core::files::read_text(&folder.join(name)).ok()?).ok()
    };
    let listed = file("added_tokens.json").unwrap_or_default();
    let tokenizer = file("tokenizer.json").unwrap_or_default();
    let added = tokenizer.get("added_tokens").and_then(Value::as_array).cloned().unwrap_or_default();
    IMAGE_TOKENS.iter().find_map(|name| {
        let entry = added.iter().find(|token| token.get("content").and_then(Value::as_str) == Some(name));
        listed.get(name).or(entry.and_then(|token| token.get("id"))).and_then(Value::as_u64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forced_tokens_are_those_of_generation() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("generation_config.json");
        let put = |mut config: Value| {
            let done = put_forced_tokens(&mut config, folder.path()).map_err(|error| error.to_string());
            done.map(|()| config["text_config"].clone())
        };
        let florence = |text: Value| json!({"model_type": "florence2", "text_config": text});
        let said = json!({"forced_bos_token_id": 5, "forced_eos_token_id": 6});
        // Without the file the config counts.
        assert_eq!(put(florence(said.clone())), Ok(said.clone()));
        std::fs::write(&file, json!({"forced_bos_token_id": 0, "num_beams": 3}).to_string()).unwrap();
        let expected = json!({"forced_bos_token_id": 0, "forced_eos_token_id": null});
        assert_eq!(put(florence(said)), Ok(expected.clone()));
        assert_eq!(put(florence(json!({}))), Ok(expected));
        std::fs::write(&file, "{").unwrap();
        let error = put(florence(json!({}))).unwrap_err();
        assert!(error.contains("generation_config.json is not JSON"), "{error}");
        assert_eq!(put(json!({"model_type": "qwen3_vl", "text_config": {}})), Ok(json!({})));
    }

    fn map(value: Value) -> serde_json::Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn parts_come_from_their_configs_or_their_folders() {
        let mut model = Model::default();
        model.image_encoder.config = map(json!({"model_type": "rice_vit", "depth": 2}));
        model.foundation.load = Some(loongforge_core::config::Source::new("./llm"));
        assert!(has_parts(&model));
        let mut config = json!({"image_token_id": 7});
        let folder = json!({"model_type": "qwen2_5_vl", "text_config": {"hidden_size": 64}});
        put_parts(&mut config, &model, |key, _| Ok(if key == "foundation" { folder.clone() } else { json!(null) }))
            .unwrap();
        let expected = json!({"model_type": "loongforge_vlm", "image_token_id": 7,
            "image_encoder": {"model_type": "rice_vit", "depth": 2},
            "foundation": {"model_type": "qwen2_5_vl", "hidden_size": 64}});
        assert_eq!(config, expected);
    }

    #[test]
    fn a_balance_over_sequences_that_is_not_computed_is_told() {
        let text = |seq_aux: bool| json!({"model_type": "deepseek_v3", "seq_aux": seq_aux});
        let told = ignored(&text(true));
        assert!(told.len() == 1 && told[0].contains("seq_aux: true, which is not implemented"), "{told:?}");
        // So it is in a model that has the language model as a part.
        assert_eq!(ignored(&json!({"model_type": "kimi_k25", "text_config": text(true)})), told);
        assert!(ignored(&text(false)).is_empty() && ignored(&json!({"model_type": "qwen3"})).is_empty());
    }

    #[test]
    fn a_language_model_ties_as_the_model_that_it_is_taken_from() {
        let tied = |folder: Value| of_part("foundation", folder)["tie_word_embeddings"].clone();
        let folder = |model_type: &str, whole: Value| {
            let text = json!({"tie_word_embeddings": true});
            json!({"model_type": model_type, "tie_word_embeddings": whole, "text_config": text})
        };
        assert_eq!(tied(folder("qwen3_vl_moe", json!(false))), json!(false));
        assert_eq!(tied(folder("llava", json!(false))), json!(true));
        assert_eq!(tied(folder("qwen3_vl_moe", Value::Null)), json!(true));
        let omni = json!({"model_type": "omni", "thinker_config": folder("thinker", json!(false))});
        assert_eq!(tied(omni), json!(false));
        assert_eq!(tied(json!({"model_type": "qwen3", "tie_word_embeddings": true})), json!(true));
    }

    #[test]
    fn keys_of_a_tower_that_its_folder_lacks_can_be_overridden() {
        let mut model = Model::default();
        model.image_encoder.load = Some(loongforge_core::config::Source::new("./clip"));
        model.foundation.config = map(json!({"model_type": "llama"}));
        let keys = |folder: Value| {
            let mut json = json!({});
            put_parts(&mut json, &model, |_, _| Ok(folder.clone())).unwrap();
            json["image_encoder"].clone()
        };
        let alone = json!({"model_type": "clip_vision_model", "hidden_size": 8});
        let expected = json!({"model_type": "clip_vision_model", "hidden_size": 8, "spatial_merge_size": null,
            "vision_feature_layer": null});
        assert_eq!(keys(alone.clone()), expected);
        let within = keys(json!({"model_type": "llava", "vision_feature_layer": -3, "vision_config": alone}));
        assert_eq!(within["vision_feature_layer"], -3);
        assert_eq!(keys(json!({"model_type": "rice_vit"})), json!({"model_type": "rice_vit"}));
    }

    #[test]
    fn a_language_model_alone_stays_one() {
        let config = json!({"model_type": "qwen3", "hidden_size": 64});
        let mut model = Model::default();
        model.foundation.config = map(config.clone());
        let mut json = json!({});
        put_parts(&mut json, &model, |_, _| Ok(json!(null))).unwrap();
        assert_eq!(json, config);
        let mut model = Model::default();
        model.foundation.load = Some(loongforge_core::config::Source::new("./llm"));
        let mut json = json!({});
        put_parts(&mut json, &model, |_, _| Ok(config.clone())).unwrap();
        assert_eq!(json, config);
    }

    #[test]
    fn a_model_that_is_not_put_together_has_no_parts_to_choose() {
        let mut model = Model::default();
        model.image_projector.config = map(json!({"model_type": "linear"}));
        let mut config = json!({"model_type": "qwen3_vl"});
        let error = put_parts(&mut config, &model, |_, _| Ok(json!({}))).unwrap_err().to_string();
        assert!(error.contains("model.image_projector.config") && error.contains("qwen3_vl"), "{error}");
    }

    #[test]
    fn a_text_tower_reads_what_is_said_of_it() {
        let mut model = Model::default();
        let mut plain = json!({"model_type": "qwen3"});
        put_text(&mut plain, &model).unwrap();
        assert_eq!(plain, json!({"model_type": "qwen3"}));
        (model.text.layers, model.text.drop_tokens) = (Some(vec![-2]), Some(34));
        let error = put_text(&mut plain, &model).unwrap_err().to_string();
        assert!(error.contains("model.text is set, but the model has no text tower"), "{error}");
        let mut json = json!({"text_encoder": {"model_type": "umt5"}, "text": {"max_tokens": 9, "drop_tokens": 1}});
        put_text(&mut json, &model).unwrap();
        assert_eq!(json["text"], json!({"max_tokens": 9, "drop_tokens": 34, "layers": [-2]}));
        let mut qwen = json!({"transformer": {"_class_name": "QwenImageTransformer2DModel"},
                              "text_encoder": {"model_type": "qwen2_5_vl"}});
        model.text.drop_tokens = Some(3);
        put_text(&mut qwen, &model).unwrap();
        assert_eq!((&qwen["text"]["drop_tokens"], &qwen["text"]["max_tokens"]), (&json!(3), &json!(546)));
    }

    #[test]
    fn deepstack_is_off_where_a_loaded_tower_has_another_width() {
        let mut model = Model::default();
        model.image_encoder.load = Some(loongforge_core::config::Source::new("./tower"));
        let config = |width: u64| {
            json!({"image_encoder": {"deepstack_visual_indexes": [0], "out_hidden_size": 96},
                   "foundation": {"hidden_size": width}})
        };
        let (mut same, mut other) = (config(96), config(128));
        assert_eq!(fit_deepstack(&mut same, &model), None);
        let said = fit_deepstack(&mut other, &model).unwrap();
        assert!(said.contains("have 96 outputs") && said.contains("width is 128"), "{said}");
        assert_eq!(other["image_encoder"]["deepstack_visual_indexes"], json!([]));
        model.image_encoder.overrides = map(json!({"deepstack_visual_indexes": [0]}));
        assert_eq!(fit_deepstack(&mut config(128), &model), None);
    }

    #[test]
    fn the_image_token_comes_from_the_tokenizer() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("added_tokens.json"), r#"{"<IMG_CONTEXT>": 92546}"#).unwrap();
        let mut config = json!({"model_type": "internvl_chat"});
        put_image_token(&mut config, folder.path());
        assert_eq!(config["image_token_id"], 92546);
        let mut other = json!({"model_type": "qwen3_vl"});
        put_image_token(&mut other, folder.path());
        assert_eq!(other, json!({"model_type": "qwen3_vl"}));
    }
}
