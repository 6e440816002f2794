//! ERNIE-4.5-VL (`Ernie4_5_VLMoeForConditionalGeneration`): a tower and a resampler before a decoder with experts of its
//! own for the tokens of pictures.

use super::common::NamePrefix;
use super::ernie4_5_vl_text::{FAMILY, media_tokens, set_media_tokens};
use super::vision;
use crate::model::config::{ModelConfig, Tokens};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::vision::ernie;

/// Published configs have the decoder's keys beside the others, not in `text_config`, and their tower elsewhere.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    let vision_keys = keys.section("vision_config")?;
    let (text_keys, tower, image) = match keys.section_or("text_config")? {
        Some(text_keys) => (text_keys, "model.vision_model.", "image_token_id"),
        None => (keys.clone(), "vision_model.", "im_patch_id"),
    };
    let mut decoder = FAMILY.read(&text_keys, &NamePrefix::alone())?;
    let tied = |keys: &Keys<'_>| keys.flag_or("tie_word_embeddings");
    decoder.tie_word_embeddings = tied(keys)?.or(tied(&text_keys)?).unwrap_or(true);
    set_media_tokens(&mut decoder, &media_tokens(keys, image)?);
    let encoder = ernie::read(&vision_keys, tower, "model.resampler_model.", decoder.norm.eps, decoder.hidden_size)?;
    let tokens = Tokens {
        vision_start: keys.index_or("image_start_token_id")?,
        vision_end: keys.index_or("image_end_token_id")?,
        ..Tokens::with_image(keys, image, decoder.vocab_size)?
    };
    vision::model("ernie4_5_vl_moe", keys, decoder, encoder, tokens)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::config::ModelConfig;

    #[test]
    fn the_texts_own_key_counts_where_the_whole_has_none() {
        let table: Value = serde_json::from_str(include_str!("../../tests/class_defaults.json")).unwrap();
        let tied = |whole: Value, own: Value| {
            let mut config = table["ernie4.5_vl"]["config"].clone();
            config["tie_word_embeddings"] = whole;
            config["text_config"]["tie_word_embeddings"] = own;
            ModelConfig::from_hf(&config).unwrap().decoder().unwrap().tie_word_embeddings
        };
        assert!(tied(json!(null), json!(null)) && tied(json!(true), json!(false)));
        assert!(!tied(json!(null), json!(false)) && !tied(json!(false), json!(true)));
    }
}
