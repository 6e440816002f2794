//! The towers of a diffusion model (`loongforge_diffusion`): its autoencoder, its text tower and, where the transformer reads
//! pictures, CLIP. Names begin with the component's and go on as in its file.

use std::sync::Arc;

use loongforge_core::data::ModelCard;
use loongforge_core::message::Tower;
use serde_json::json;

use super::common::NamePrefix;
use super::decoders::read_decoder;
use super::qwen2_5_vl_text;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::text::{Pictures, parts as text_parts};
use crate::model::towers::ModelTower;
use crate::model::vae::{Autoencoder, LatentPatch};
use crate::model::vision::{clip, qwen2_5};

type Result<T> = std::result::Result<T, ModelConfigError>;

/// The features that a transformer takes of its towers, with the keys of the transformer's config that say so.
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct Wanted {
    pub patch: LatentPatch,
    /// Width of a row of text.
    pub text: (&'static str, i64),
    /// Width of a token of CLIP; `None`: the transformer reads none.
    pub image: Option<(&'static str, i64)>,
}

/// Returns the towers of a diffusion model, of `keys` with the sections `vae`, `text_encoder`, `text` and `image_encoder`, and its
/// autoencoder. `transformer` is the section that wants them.
///
/// # Errors
/// A section is missing or wrong, or its features have another width than the transformer takes; the key is named.
pub(in crate::model) fn read(
    keys: &Keys<'_>,
    transformer: &Keys<'_>,
    wanted: &Wanted,
) -> Result<(Vec<ModelTower>, Autoencoder)> {
    let vae = Autoencoder::read(&keys.section("vae")?, "vae.", wanted.patch)?;
    let place = NamePrefix::new("text_encoder.model.", "text_encoder.");
    // The published encoder of Qwen-Image is a vision-language model.
    let read_text = |keys: &Keys<'_>| match keys.text_or("model_type")? {
        Some("qwen2_5_vl") => {
            let text = keys.section_or("text_config")?;
            qwen2_5_vl_text::FAMILY.read(text.as_ref().unwrap_or(keys), &place)
        }
        _ => read_decoder(keys, &place),
    };
    let encoder = keys.section("text_encoder")?;
    let (text, projector) = (keys.section_or("text")?, keys.section_or("text_projector")?);
    let (key, width) = wanted.text;
    let mut text = match projector {
        Some(projector) => text_parts::read(&encoder, Some(&projector), text.as_ref(), width, read_text)?,
        None => text_parts::read_states(&encoder, text.as_ref(), read_text)?,
    };
    if text.projector.is_none() && text.width() != width {
        let must = format!("must equal {} ({width}), or text_projector must be given", transformer.path(key));
        return Err(keys.inconsistent("text_encoder", format!("{} wide", text.width()), must));
    }
    if ModelCard::of(&keys.filled(&json!({}))).edits().is_some() {
        let vision = encoder.section("vision_config")?;
        let tower = qwen2_5::read(&vision, "text_encoder.visual.", "text_encoder.visual.merger.", text.tower.width())?;
        let placeholder = encoder.index_or("image_token_id")?.ok_or_else(|| encoder.missing("image_token_id"))?;
        text.pictures = Some(Pictures { tower, placeholder });
    }
    let tower = |tower, family| ModelTower { tower, family, placeholders: Vec::new() };
    let mut towers = vec![tower(Tower::Text, Arc::new(text)), tower(Tower::Vae, vae.tower())];
    match (wanted.image, keys.section_or("image_encoder")?) {
        (Some((key, width)), Some(encoder)) => {
            let clip = clip::read_states(&encoder, "image_encoder.")?;
            if clip.tower.width() != width {
                let must = format!("must equal {} ({width})", transformer.path(key));
                return Err(encoder.inconsistent("hidden_size", clip.tower.width(), must));
            }
            towers.push(tower(Tower::Vision, Arc::new(clip)));
        }
        (Some(_), None) => return Err(keys.missing("image_encoder")),
        (None, Some(_)) => {
            let must = "the transformer reads no pictures (image_dim is null)";
            return Err(keys.inconsistent("image_encoder", "given", must));
        }
        (None, None) => (),
    }
    Ok((towers, vae))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{LatentPatch, Wanted, read};
    use crate::model::keys::Keys;

    fn config() -> Value {
        json!({
            "transformer": {},
            "vae": {"_class_name": "PixelLatents", "channels": 1},
            "text_encoder": {"model_type": "umt5", "vocab_size": 40, "d_model": 32, "d_kv": 8, "d_ff": 48,
                "num_layers": 2, "num_heads": 4},
            "image_encoder": {"model_type": "clip_vision_model", "hidden_size": 48, "num_hidden_layers": 2,
                "image_size": 64, "patch_size": 16, "num_attention_heads": 3, "intermediate_size": 80}
        })
    }

    fn names(config: &Value, image: Option<i64>) -> Result<Vec<String>, String> {
        let image = image.map(|width| ("image_dim", width));
        let wanted = Wanted { patch: LatentPatch([1, 2, 2]), text: ("text_dim", 32), image };
        let keys = Keys::new(config);
        let transformer = keys.section("transformer").expect("it is there");
        let (towers, _) = read(&keys, &transformer, &wanted).map_err(|error| error.to_string())?;
        Ok(towers.iter().map(|it| format!("{} of {}", it.tower, it.family.specs().len())).collect())
    }

    #[test]
    fn towers_are_those_that_the_transformer_reads() {
        let found = names(&config(), Some(48)).unwrap();
        assert_eq!(found.len(), 3);
        assert_eq!(found[1], "vae of 0");
        let mut other = config();
        other["image_encoder"] = Value::Null;
        let qwen = json!({"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
            "num_attention_heads": 4, "num_key_value_heads": 2, "model_type": "qwen2_5_vl_text",
            "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}});
        other["text_encoder"] = json!({"model_type": "qwen2_5_vl", "text_config": qwen, "vision_config": {}});
        assert_eq!(names(&other, None).unwrap().len(), 2);
    }

    #[test]
    fn what_does_not_fit_the_transformer_is_named() {
        let error = |key: &str, value: Value, image: Option<i64>| {
            let mut config = config();
            *config.pointer_mut(key).unwrap() = value;
            names(&config, image).unwrap_err()
        };
        let image = "/image_encoder";
        let cases = [
            (error(image, Value::Null, Some(48)), "image_encoder is missing"),
            (error(image, json!({}), None), "image_encoder is given, but the transformer reads no pictures"),
            (
                error("/image_encoder/hidden_size", json!(24), Some(48)),
                "image_encoder.hidden_size is 24, but must equal transformer.image_dim (48)",
            ),
            (
                error("/image_encoder/model_type", json!("siglip_vision_model"), Some(48)),
                "image_encoder.model_type is \"siglip_vision_model\"; supported: \"clip_vision_model\"",
            ),
            (
                error("/text_encoder/d_model", json!(16), Some(48)),
                "text_encoder is 16 wide, but must equal transformer.text_dim (32), or text_projector must be given",
            ),
            (error("/vae", Value::Null, Some(48)), "vae is missing"),
        ];
        for (message, expected) in cases {
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
