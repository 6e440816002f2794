//! What the text tower of a diffusion model reads, by the model's pipeline: published configs do not say it.

use serde_json::{Value as Json, json};

/// Qwen-Image's (`QwenImagePipeline` of diffusers).
const QWEN_IMAGE: &str = "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, \
    spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n";
/// Tokens of it before the text, with the tokenizer of Qwen2.5-VL.
const QWEN_IMAGE_DROPPED: usize = 34;
/// Rows of text that the transformers see at most, by default.
const ROWS: usize = 512;

/// The section `text` of a model that has none: the template around a text, the tokens of it that have no features, and the
/// tokens at most. `None`: the text is read as it is.
pub(super) fn of_pipeline(config: &Json) -> Option<Json> {
    let is = |pointer: &str, known: &[&str]| {
        config.pointer(pointer).and_then(Json::as_str).is_some_and(|found| known.contains(&found))
    };
    let is_qwen = is("/transformer/_class_name", &["QwenImageTransformer2DModel"])
        && is("/text_encoder/model_type", &["qwen2_5_vl", "qwen2_5_vl_text"]);
    // A decoder's states do not depend on what follows: to cut a text is to cut its features.
    is_qwen.then(|| {
        json!({
            "template": QWEN_IMAGE,
            "drop_tokens": QWEN_IMAGE_DROPPED,
            "max_tokens": QWEN_IMAGE_DROPPED + ROWS,
        })
    })
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
        for (transformer, text) in others {
            assert_eq!(ModelCard::of(&config(transformer, text)).text_defaults(), None);
        }
    }
}
