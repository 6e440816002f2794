//! The `config.json` of a model that is put together from parts, and the token that stands for pictures where a
//! `config.json` does not say. Which parts fit each other is the model's to check.

use crate::folder::FolderError;
use loongforge_core::config::{Model, Part};
use serde_json::{Value, json};
use std::path::Path;

/// What tokenizers call the token that features of pictures replace.
const IMAGE_TOKENS: [&str; 4] = ["<|image_pad|>", "<IMG_CONTEXT>", "<|media_pad|>", "<|IMAGE_PLACEHOLDER|>"];
/// Configs that have no key for it, or need not have one.
const WITHOUT_IMAGE_TOKEN: [&str; 2] = ["loongforge_vlm", "internvl_chat"];

/// Whether a part has a config of its own, or the model none but its parts'.
pub(crate) fn has_parts(model: &Model) -> bool {
    let whole = model.load.is_some() || !model.config.is_empty();
    parts(model).iter().any(|(_, part)| !part.config.is_empty() || (!whole && part.load.is_some()))
}

fn parts(model: &Model) -> [(&'static str, &Part); 3] {
    model.parts().map(|(key, part)| (key.strip_prefix("model.").unwrap_or(key), part))
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
    let model_type = json.get("model_type").and_then(Value::as_str).unwrap_or("loongforge_vlm").to_owned();
    for (key, part) in parts(model) {
        let config = match (part.config.is_empty(), &part.load) {
            (false, _) if model_type != "loongforge_vlm" => {
                return Err(FolderError::NoParts { key, model_type });
            }
            (false, _) => Value::Object(part.config.clone()),
            (true, Some(_)) if json.get(key).is_none() => of_part(key, read(key, part)?),
            (true, _) => continue,
        };
        json[key] = config;
    }
    if model.is_foundation_alone() {
        *json = json["foundation"].take();
        return Ok(());
    }
    json["model_type"] = json!(model_type);
    Ok(())
}

/// A part's config in a whole model's: the tower's or the language model's. A folder of the part alone has it itself. A
/// projector's is nowhere: it is the one that the tower comes with.
fn of_part(key: &str, mut config: Value) -> Value {
    let inner: &[&str] = match key {
        "image_encoder" => &["image_encoder", "vision_config"],
        "image_projector" => return config.get_mut(key).map_or_else(|| json!({}), Value::take),
        _ => &["foundation", "text_config", "llm_config"],
    };
    let found = inner.iter().find(|key| config.get(**key).is_some());
    let outer = config.get("model_type").cloned();
    match found {
        Some(found) => {
            let mut part = config[*found].take();
            // Towers of older configs have no type of their own.
            if part.get("model_type").is_none()
                && let (Some(part), Some(outer)) = (part.as_object_mut(), outer)
            {
                part.insert("model_type".into(), outer);
            }
            part
        }
        None => config,
    }
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

/// `None` where the folder has no `tokenizer.json` or `added_tokens.json` that knows one.
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
