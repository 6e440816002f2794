//! A model put together from parts as transformers has it: `LlavaForConditionalGeneration`, where the parts fit that class.

use loongforge_core::data::Tokenizer;
use loongforge_core::files;
use loongforge_torch::model::ModelConfig;
use loongforge_torch::params::ParamSpec;
use loongforge_torch::train::hf::renamed;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::path::Path;

/// The class that reads what [`Llava`] writes.
pub const CLASS: &str = "LlavaForConditionalGeneration";

/// Pairs of what tensors' names begin with: in a model of parts, and in this layout.
pub const BEGINS: [(&str, &str); 3] = [
    ("foundation.", "language_model."),
    ("image_encoder.", "vision_tower."),
    ("image_projector.", "multi_modal_projector."),
];

/// Towers as configs of parts and as transformers call them, whether they have a class token, and the layer that counts where
/// a config of parts does not say.
const TOWERS: [(&str, &str, bool, Option<i64>); 5] = [
    ("clip", "clip_vision_model", true, Some(-2)),
    ("clip_vision_model", "clip_vision_model", true, Some(-2)),
    ("dinov2", "dinov2", true, None),
    ("siglip", "siglip_vision_model", false, None),
    ("siglip_vision_model", "siglip_vision_model", false, None),
];

/// Language models that were compared within the class (docs/evidence/vision-towers.md).
const TEXTS: [&str; 11] = [
    "deepseek_v3",
    "ernie4_5",
    "ernie4_5_moe",
    "gemma",
    "gemma3_text",
    "llama",
    "minimax_m2",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
];

/// A model of parts in LLaVA's layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Llava {
    /// The model's `config.json`.
    pub config: Value,
    /// True if the tower has a class token, which is no feature.
    has_class: bool,
}

impl Llava {
    /// Returns the layout of the model that this `config.json` describes, or why it does not fit the class; `None` where it is not of a
    /// model put together from parts with an encoder.
    pub fn of(config: &Value) -> Option<Result<Self, String>> {
        let has = |part: &str| config.get(part).is_some_and(Value::is_object);
        let is_composed = config["model_type"] == "loongforge_vlm" && (has("image_encoder") || has("audio_encoder"));
        is_composed.then(|| arranged(config))
    }

    /// Writes `processor_config.json` into `folder`, which has the tokenizer and what else was carried.
    ///
    /// # Errors
    /// The tokenizer is not there, or has no token for pictures; or a file cannot be read or written.
    pub fn write_processor(&self, folder: &Path) -> Result<(), String> {
        let path = folder.join("processor_config.json");
        let wrong = |path: &Path, error: &dyn Display| format!("{}: {error}", path.display());
        let read = |path: &Path| match path.is_file() {
            true => serde_json::from_str(&files::read_text(path).map_err(|error| wrong(path, &error))?)
                .map_err(|error| wrong(path, &error)),
            false => Ok(Value::Null),
        };
        let settings = read(&folder.join("tokenizer_config.json"))?;
        let tokenizer = Tokenizer::open(folder, &self.config, &settings).map_err(|error| error.to_string())?;
        let id = self.config["image_token_index"].as_i64();
        let token =
            id.and_then(|id| tokenizer.token(id)).ok_or("the tokenizer has no token with the id image_token_id")?;
        let mut processor = Map::new();
        if let Some(image) = read(&path)?.get("image_processor") {
            processor.insert("image_processor".into(), image.clone());
        }
        let vision = &self.config["vision_config"];
        for (key, value) in [
            ("processor_class", json!("LlavaProcessor")),
            ("image_token", json!(token)),
            ("num_additional_image_tokens", json!(u8::from(self.has_class))),
            ("patch_size", json!(patch_size(vision))),
            ("vision_feature_select_strategy", self.config["vision_feature_select_strategy"].clone()),
        ] {
            processor.insert(key.into(), value);
        }
        let text = serde_json::to_string_pretty(&processor).expect("JSON can be written");
        fs::write(&path, text + "\n").map_err(|error| wrong(&path, &error))
    }
}

/// Returns the side of a patch, in pixels; where the tower's config says nothing, that of the class.
fn patch_size(vision: &Value) -> i64 {
    let given = &vision["patch_size"];
    let usual = || match vision["model_type"].as_str() {
        Some("clip_vision_model") => 32,
        Some("dinov2") => 14,
        _ => 16,
    };
    given.as_i64().or(given[0].as_i64()).unwrap_or_else(usual)
}

fn arranged(config: &Value) -> Result<Llava, String> {
    if config.get("audio_encoder").is_some_and(Value::is_object) {
        return Err("it has an audio encoder".into());
    }
    if !config["video_token_id"].is_null() {
        return Err(format!("video_token_id is set, and {CLASS} takes no videos"));
    }
    let (encoder, text) = (&config["image_encoder"], &config["foundation"]);
    let named = encoder["model_type"].as_str().unwrap_or_default();
    let Some((_, model_type, has_class, usual)) = TOWERS.iter().find(|(own, ..)| *own == named).copied() else {
        let known: BTreeSet<&str> = TOWERS.iter().map(|(_, theirs, ..)| *theirs).collect();
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        return Err(format!("image_encoder.model_type is {named:?}; {CLASS} takes {known}"));
    };
    if encoder["spatial_merge_size"].as_i64().is_some_and(|merge| merge != 1) {
        return Err(format!("image_encoder.spatial_merge_size is not 1, but {CLASS} makes one feature per patch"));
    }
    let Some(layer) = encoder["vision_feature_layer"].as_i64().or(usual) else {
        return Err(format!(
            "image_encoder.vision_feature_layer is not set: features are the states after the tower's last norm, but {CLASS} \
             takes those before it; -1 selects the last block"
        ));
    };
    let activation = projector_activation(&config["image_projector"], &text["hidden_size"])?;
    let named = text["model_type"].as_str().unwrap_or_default();
    if !TEXTS.contains(&named) {
        return Err(format!(
            "foundation.model_type is {named:?}, which was not compared with transformers inside {CLASS}"
        ));
    }
    let model = ModelConfig::from_hf(config).map_err(|error| error.to_string())?;
    let strategy = if has_class { "default" } else { "full" };
    let arranged = json!({
        "architectures": [CLASS],
        "model_type": "llava",
        "image_token_index": config["image_token_id"],
        "multimodal_projector_bias": true,
        "projector_hidden_act": activation,
        "text_config": text_config(text),
        "tie_word_embeddings": model.tied_head().is_some(),
        "vision_config": vision_config(encoder, model_type),
        "vision_feature_layer": layer,
        "vision_feature_select_strategy": strategy,
    });
    let same = expect_same(config, &arranged);
    same.map(|()| Llava { config: arranged, has_class })
}

/// Returns the language model's config. Its class takes no null for the key that ties its head, and without the key its default.
fn text_config(text: &Value) -> Value {
    let mut text = text.clone();
    if let Some(keys) = text.as_object_mut() {
        keys.retain(|key, value| key != "tie_word_embeddings" || !value.is_null());
    }
    text
}

/// Returns the tower's config without keys of our own.
fn vision_config(encoder: &Value, model_type: &str) -> Value {
    let mut vision = encoder.clone();
    if let Some(keys) = vision.as_object_mut() {
        keys.retain(|key, _| !["vision_feature_layer", "spatial_merge_size"].contains(&key.as_str()));
        keys.insert("model_type".into(), json!(model_type));
        if model_type == "siglip_vision_model" {
            // The pooling head is in nobody's features.
            keys.insert("vision_use_head".into(), json!(false));
        }
    }
    vision
}

/// Returns the activation of a projector of two maps without a norm, of features this wide.
fn projector_activation(projector: &Value, width: &Value) -> Result<Value, String> {
    let other =
        |key: &str, must: &str| Err(format!("image_projector.{key} is {}; {CLASS} needs {must}", projector[key]));
    match projector["model_type"].as_str() {
        // The one that these towers come with.
        None => Ok(json!("gelu")),
        Some("mlp") if projector["norm_type"] != "none" => other("norm_type", "\"none\""),
        Some("mlp") if projector["hidden_size"] != *width => {
            other("hidden_size", &format!("the language model's {width}"))
        }
        Some("mlp") => Ok(projector.get("hidden_act").filter(|act| !act.is_null()).cloned().unwrap_or(json!("gelu"))),
        Some(_) => other("model_type", "\"mlp\""),
    }
}

/// Sees to it that both configs are of the same parameters under other names.
fn expect_same(config: &Value, arranged: &Value) -> Result<(), String> {
    let shapes = |config: &Value| -> Result<BTreeSet<(String, Vec<i64>)>, String> {
        let model = ModelConfig::from_hf(config).map_err(|error| error.to_string())?;
        let named = |spec: ParamSpec| (renamed(&spec.name, &BEGINS), spec.shape);
        Ok(model.specs().into_iter().map(named).collect())
    };
    let (ours, theirs) = (shapes(config)?, shapes(arranged)?);
    match ours.symmetric_difference(&theirs).next() {
        None => Ok(()),
        Some((name, shape)) => Err(format!("{name} {shape:?} is not in both layouts")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Export, export};
    use loongforge_torch::train::parity;
    use std::path::PathBuf;
    use tch::Tensor;

    fn fixture() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src/torch/tests/fixtures/clip-seed1")
    }

    fn config() -> Value {
        serde_json::from_str(&fs::read_to_string(fixture().join("config.json")).unwrap()).unwrap()
    }

    fn tensor(path: &Path, name: &str) -> Tensor {
        let found = Tensor::read_safetensors(path).unwrap();
        found.into_iter().find(|(own, _)| own == name).unwrap().1
    }

    #[test]
    fn what_is_exported_computes_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let (out, logits) = (dir.path().join("out"), dir.path().join("logits"));
        let how = Export { base: None, dtype: None, max_shard_size: 40_000, dequantize: false, for_transformers: true };
        let said = export(&fixture(), &out, &how).unwrap().said.join("\n");
        assert!(said.contains(CLASS) && said.contains("no processor_config.json"), "{said}");
        let config: Value = serde_json::from_str(&fs::read_to_string(out.join("config.json")).unwrap()).unwrap();
        assert_eq!((&config["model_type"], &config["vision_feature_layer"]), (&json!("llava"), &json!(-2)));
        let verified = crate::checkpoint::verify(&out);
        assert!(verified.iter().all(|(_, check)| check.is_ok()), "{verified:?}");
        for name in ["inputs.safetensors", "expected.safetensors", "fixture.json"] {
            fs::copy(fixture().join(name), out.join(name)).unwrap();
        }
        fs::create_dir(&logits).unwrap();
        parity::export(&out, &logits, 0).unwrap();
        let ours = tensor(&logits.join("logits.safetensors"), "logits");
        let mask = tensor(&fixture().join("inputs.safetensors"), "attention_mask").unsqueeze(-1);
        let theirs = tensor(&fixture().join("expected.safetensors"), "logits") * mask;
        let largest = theirs.abs().max().double_value(&[]);
        assert!((ours - theirs).abs().max().double_value(&[]) < 1e-5 * largest);
    }

    #[test]
    fn the_processor_knows_the_token_of_pictures_and_keeps_how_they_are_resized() {
        let folder = tempfile::tempdir().unwrap();
        let llava = Llava::of(&config()).unwrap().unwrap();
        assert!(llava.write_processor(folder.path()).unwrap_err().contains("tokenizer"));
        let token = json!({"id": 58, "content": "<picture>", "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false});
        let vocabulary: Map<String, Value> = (0..58).map(|id| (format!("w{id}"), json!(id))).collect();
        let tokenizer = json!({"version": "1.0", "added_tokens": [token],
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"}});
        fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let path = folder.path().join("processor_config.json");
        fs::write(&path, json!({"processor_class": "CLIPProcessor", "image_processor": {"size": 12}}).to_string())
            .unwrap();
        llava.write_processor(folder.path()).unwrap();
        let written: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let expected = json!({"processor_class": "LlavaProcessor", "image_token": "<picture>", "patch_size": 4,
            "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default", "image_processor": {"size": 12}});
        assert_eq!(written, expected);
        assert_eq!(patch_size(&json!({"patch_size": [8, 8]})), 8);
        assert_eq!(patch_size(&json!({"model_type": "dinov2"})), 14);
    }

    #[test]
    fn a_head_is_tied_as_the_language_model_has_it() {
        let arranged = |tied: Option<Value>| {
            let mut config = config();
            let text = config["foundation"].as_object_mut().unwrap();
            text.shift_remove("tie_word_embeddings");
            text.extend(tied.map(|tied| ("tie_word_embeddings".to_owned(), tied)));
            let config = Llava::of(&config).unwrap().unwrap().config;
            (config["tie_word_embeddings"].clone(), config["text_config"].get("tie_word_embeddings").cloned())
        };
        let [yes, no] = [true, false].map(|tied| json!(tied));
        assert_eq!(arranged(Some(yes.clone())), (yes.clone(), Some(yes)));
        assert_eq!(arranged(Some(no.clone())), (no.clone(), Some(no.clone())));
        assert_eq!(arranged(Some(Value::Null)), (no.clone(), None));
        assert_eq!(arranged(None), (no, None));
    }

    #[test]
    fn what_does_not_fit_is_told() {
        assert!(Llava::of(&json!({"model_type": "qwen3"})).is_none());
        let told = |pointer: &str, value: Value| {
            let mut config = config();
            let (holder, key) = pointer.rsplit_once('/').unwrap();
            config.pointer_mut(holder).unwrap()[key] = value;
            Llava::of(&config).unwrap().unwrap_err()
        };
        for (pointer, value, expected) in [
            (
                "/image_encoder/model_type",
                json!("rice_vit"),
                "\"rice_vit\"; LlavaForConditionalGeneration takes clip_vision",
            ),
            ("/image_encoder/model_type", json!("siglip"), "image_encoder.vision_feature_layer is not set"),
            ("/image_encoder/spatial_merge_size", json!(3), "spatial_merge_size is not 1"),
            ("/image_projector/model_type", json!("linear"), "image_projector.model_type is \"linear\""),
            ("/image_projector/model_type", json!("mlp"), "image_projector.norm_type is null"),
            ("/foundation/model_type", json!("internlm2"), "foundation.model_type is \"internlm2\""),
            ("/audio_encoder", json!({}), "it has an audio encoder"),
            ("/video_token_id", json!(5), "takes no videos"),
        ] {
            let message = told(pointer, value);
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
