//! Tables of what the text tower of a diffusion model reads, by the model's pipeline: published configs do not say it.

use serde_json::{Value as Json, json};

/// Qwen-Image's (`QwenImagePipeline` of diffusers).
const QWEN_IMAGE: &str = "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, \
    spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n";
/// Tokens of it before the text, with the tokenizer of Qwen2.5-VL.
const QWEN_IMAGE_DROPPED: usize = 34;
/// The template of the pipelines that edit pictures.
const EDIT: &str = "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, background), \
    then explain how the user's text instruction should alter or modify the image. Generate a new image that meets the user's \
    requirements while maintaining consistency with the original input where appropriate.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n\
    <|im_start|>assistant\n";
const EDIT_DROPPED: usize = 64;
/// Tokens of such a text at most, before pictures' are counted.
const EDIT_ROWS: usize = 1024;
/// Rows of text that the transformers see at most, by default.
const ROWS: usize = 512;

/// Returns the section `text` of a model that has none: the template around a text, the tokens of it that have no features, and the
/// tokens at most. `None`: the text is read as it is.
pub(super) fn of_pipeline(config: &Json) -> Option<Json> {
    let is = |pointer: &str, known: &[&str]| {
        config.pointer(pointer).and_then(Json::as_str).is_some_and(|found| known.contains(&found))
    };
    let is_qwen = is("/transformer/_class_name", &["QwenImageTransformer2DModel"])
        && is("/text_encoder/model_type", &["qwen2_5_vl", "qwen2_5_vl_text"]);
    // A decoder's states do not depend on what follows: to cut a text is to cut its features.
    let (template, dropped, rows) = match edits(config) {
        Some(_) => (EDIT, EDIT_DROPPED, EDIT_ROWS),
        None => (QWEN_IMAGE, QWEN_IMAGE_DROPPED, ROWS),
    };
    is_qwen.then(|| json!({"template": template, "drop_tokens": dropped, "max_tokens": dropped + rows}))
}

/// The form in which the text tower of a diffusion model is shown the pictures that are edited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edits {
    /// One picture, as large as the autoencoder's (`QwenImageEditPipeline`).
    One,
    /// Any number, each with its number before it, small (`QwenImageEditPlusPipeline`: 2509, 2511).
    Numbered,
}

/// `None` of a model that edits no pictures, or whose text tower sees none.
pub(super) fn edits(config: &Json) -> Option<Edits> {
    let encoder = &config["text_encoder"];
    let sees = encoder["model_type"] == "qwen2_5_vl" && encoder["vision_config"].is_object();
    match config["pipeline"].as_str().filter(|_| sees)? {
        "QwenImageEditPipeline" => Some(Edits::One),
        "QwenImageEditPlusPipeline" => Some(Edits::Numbered),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::data::ModelCard;

    #[test]
    fn qwen_image_reads_texts_within_its_template() {
        let config = |transformer: &str, text: &str| {
            json!({"model_type": "loongforge_diffusion", "transformer": {"_class_name": transformer},
                "text_encoder": {"model_type": text}})
        };
        let qwen = config("QwenImageTransformer2DModel", "qwen2_5_vl");
        let text = ModelCard::of(&qwen).text_defaults().unwrap();
        assert_eq!((&text["drop_tokens"], &text["max_tokens"]), (&json!(34), &json!(546)));
        let template = text["template"].as_str().unwrap();
        assert!(template.starts_with("<|im_start|>system\nDescribe the image by detailing the color, shape,"));
        assert!(template.contains("quantity, text, spatial relationships"), "{template:?}");
        assert!(template.ends_with("background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"));
        let others = [("QwenImageTransformer2DModel", "umt5"), ("WanTransformer3DModel", "qwen2_5_vl")];
        let mut edit = qwen.clone();
        edit["pipeline"] = json!("QwenImageEditPlusPipeline");
        assert_eq!(ModelCard::of(&edit).text_defaults().unwrap(), text, "its text tower sees no pictures");
        edit["text_encoder"]["vision_config"] = json!({});
        let text = ModelCard::of(&edit).text_defaults().unwrap();
        assert_eq!((&text["drop_tokens"], &text["max_tokens"]), (&json!(64), &json!(1088)));
        let template = text["template"].as_str().unwrap();
        assert!(
            template
                .contains("image (color, shape, size, texture, objects, background), then explain how the user's text")
        );
        assert!(
            template.ends_with("where appropriate.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n")
        );
        for (transformer, text) in others {
            assert_eq!(ModelCard::of(&config(transformer, text)).text_defaults(), None);
        }
    }
}
