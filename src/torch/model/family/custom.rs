//! Models put together: any tower, any projector and any language model, in a `config.json` of our own.
//!
//! Names begin with `image_encoder.`, `image_projector.`, `audio_encoder.`, `audio_projector.`, `text_encoder.`,
//! `text_projector.` and `foundation.`, and go on as in each part's own checkpoint.
//! The language model's positions have three axes where its own have, and the tokens count on as text elsewhere.

use std::sync::Arc;

use loongforge_core::message::Tower;
use serde_json::{Value, json};

use super::common::NamePrefix;
use super::decoders::read_decoder;
use super::vision;
use crate::model::audio::parts as audio_parts;
use crate::model::config::{ModelConfig, Tokens};
use crate::model::decoder::DecoderConfig;
use crate::model::encoder::EncoderFamily;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::own::{own_encoder, own_foundation, own_model};
use crate::model::text::parts as text_parts;
use crate::model::towers::{ModelTower, Towers};
use crate::model::vision::parts;

/// The `model_type` of a model that was put together.
const MODEL_TYPE: &str = "loongforge_vlm";

impl ModelConfig {
    /// Returns the model of these parts, each as its `config.json` or, of the tower, its `vision_config` has it.
    ///
    /// # Errors
    /// A part is not known, or the parts do not fit; the key is named, `foundation.hidden_size`.
    pub fn from_parts(
        image_encoder: &Value,
        image_projector: &Value,
        foundation: &Value,
        tokens: Tokens,
    ) -> Result<ModelConfig, ModelConfigError> {
        ModelConfig::from_hf(&parts_config(image_encoder, image_projector, foundation, tokens))
    }
}

/// Returns the `config.json` of a model of these parts, which [`ModelConfig::from_hf`] reads.
pub fn parts_config(image_encoder: &Value, image_projector: &Value, foundation: &Value, tokens: Tokens) -> Value {
    json!({
        "model_type": MODEL_TYPE,
        "image_encoder": image_encoder,
        "image_projector": image_projector,
        "foundation": foundation,
        "image_token_id": tokens.image,
        "video_token_id": tokens.video,
        "vision_start_token_id": tokens.vision_start,
        "vision_end_token_id": tokens.vision_end,
    })
}

/// The foundation of a model of parts: a language model that is built in, or one of the program's own.
enum Foundation {
    Decoder(Box<DecoderConfig>),
    /// A foundation of the program's own: its shape is known, but not yet the features that it takes from towers.
    Own {
        width: i64,
        vocab_size: i64,
    },
}

/// Reads the config of a model put together of parts, `loongforge_vlm`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    let section = keys.section("foundation")?;
    let foundation = match own_foundation("foundation", section.object(), &[])? {
        Some(own) => Foundation::Own { width: own.shape().width, vocab_size: section.size("vocab_size")? },
        None => {
            let place = NamePrefix::new("foundation.model.", "foundation.");
            Foundation::Decoder(Box::new(read_decoder(&section, &place)?))
        }
    };
    let (width, vocab_size, num_layers) = match &foundation {
        Foundation::Decoder(decoder) => (decoder.hidden_size, decoder.vocab_size, decoder.num_deepstack_layers()),
        Foundation::Own { width, vocab_size } => (*width, *vocab_size, usize::MAX),
    };
    let mut towers = Vec::new();
    if let Some(encoder) = keys.section_or("text_encoder")? {
        let [projector, text] = [keys.section_or("text_projector")?, keys.section_or("text")?];
        let place = NamePrefix::new("text_encoder.model.", "text_encoder.");
        let read = |keys: &Keys<'_>| read_decoder(keys, &place);
        let family = Arc::new(text_parts::read(&encoder, projector.as_ref(), text.as_ref(), width, read)?);
        let placeholders = vec![Tokens::id(keys, "text_token_id", vocab_size)?];
        towers.push(ModelTower { tower: Tower::Text, family, placeholders });
    }
    if let Some(encoder) = keys.section_or("audio_encoder")? {
        let family: Arc<dyn EncoderFamily> = match own(keys, Tower::Audio, "audio_encoder", width)? {
            Some(family) => family,
            None => Arc::new(audio_parts::read(&encoder, keys.section_or("audio_projector")?.as_ref(), width)?),
        };
        let placeholders = vec![Tokens::id(keys, "audio_token_id", vocab_size)?];
        towers.push(ModelTower { tower: Tower::Audio, family, placeholders });
    }
    if keys.has("image_encoder") || towers.is_empty() {
        let tokens = || Tokens::read(keys, vocab_size);
        towers.push(match own(keys, Tower::Vision, "image_encoder", width)? {
            Some(family) => {
                // As many layers take a DeepStack level each.
                if family.num_outputs() - 1 > num_layers {
                    let must = format!("the decoder has only {num_layers} layers to add them to");
                    return Err(keys.inconsistent("image_encoder", family.num_outputs(), must));
                }
                ModelTower { tower: Tower::Vision, family, placeholders: tokens()?.placeholders() }
            }
            None => {
                let projector = keys.section_or("image_projector")?;
                let encoder = parts::read(&keys.section("image_encoder")?, projector.as_ref(), width)?;
                vision::tower(keys, num_layers, encoder, tokens()?)?
            }
        });
    }
    match foundation {
        Foundation::Decoder(decoder) => Ok(ModelConfig::new(MODEL_TYPE, *decoder, towers)),
        Foundation::Own { .. } => {
            let towers = Towers::new(towers);
            let own = own_foundation("foundation", section.object(), &towers.inputs(width))?;
            Ok(own_model(MODEL_TYPE, own.expect("it was there before"), towers))
        }
    }
}

/// Returns the encoder of the program's own that the section `key` asks for. Its projector, if it has one, is its own.
fn own(
    keys: &Keys<'_>,
    tower: Tower,
    key: &str,
    width: i64,
) -> Result<Option<Arc<dyn EncoderFamily>>, ModelConfigError> {
    let family = own_encoder(tower, key, keys.section(key)?.object(), width)?;
    let projector = key.replace("encoder", "projector");
    match keys.value(&projector).filter(|value| family.is_some() && value.as_object().is_none_or(|it| !it.is_empty())) {
        Some(found) => {
            let must = format!("{key} is registered by the program and has its own projector: leave it out");
            Err(keys.inconsistent(&projector, found, must))
        }
        None => Ok(family),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use std::rc::Rc;

    use loongforge_core::message::{Grid, Tower};
    use tch::{Device, Kind, Tensor};

    use super::parts_config;
    use crate::model::config::{ModelConfig, Tokens};
    use crate::params::ParamStore;
    use crate::tape::{Execution, Policy};

    const TOKENS: Tokens = Tokens { image: Some(301), video: None, vision_start: None, vision_end: None };

    fn towers() -> Vec<Value> {
        vec![
            json!({"model_type": "qwen2_5_vl", "depth": 2, "hidden_size": 48, "intermediate_size": 80, "num_heads": 3,
                   "patch_size": 14, "fullatt_block_indexes": [1], "window_size": 56, "out_hidden_size": 3584}),
            json!({"model_type": "qwen3_vl_vision", "depth": 2, "hidden_size": 48, "intermediate_size": 80,
                   "num_heads": 3, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
                   "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}),
            json!({"model_type": "internvl_vision", "hidden_size": 48, "num_hidden_layers": 2, "image_size": [56, 56],
                   "num_attention_heads": 3, "intermediate_size": 80}),
            json!({"model_type": "intern_vit_6b", "hidden_size": 48, "num_hidden_layers": 2, "image_size": 56,
                   "num_attention_heads": 3, "intermediate_size": 80, "patch_size": 14}),
            json!({"model_type": "rice_vit", "depth": 2, "hidden_size": 48, "intermediate_size": 80, "num_heads": 3,
                   "patch_size": 14}),
            json!({"model_type": "kimi_k25_vision", "hidden_size": 48, "num_hidden_layers": 2, "pos_emb_height": 8,
                   "pos_emb_width": 8, "num_attention_heads": 3, "intermediate_size": 80}),
            json!({"model_type": "ernie4_5_vl_moe_vision", "depth": 2, "hidden_size": 48, "num_heads": 3}),
            json!({"model_type": "siglip_vision_model", "hidden_size": 48, "num_hidden_layers": 2, "image_size": 64,
                   "num_attention_heads": 3, "intermediate_size": 80, "spatial_merge_size": 2}),
            json!({"model_type": "clip_vision_model", "hidden_size": 48, "num_hidden_layers": 2, "image_size": 64,
                   "patch_size": 16, "num_attention_heads": 3, "intermediate_size": 80, "spatial_merge_size": 2}),
            json!({"model_type": "dinov2", "hidden_size": 48, "num_hidden_layers": 2, "image_size": 70,
                   "num_attention_heads": 3, "use_swiglu_ffn": true, "spatial_merge_size": 2}),
            json!({"model_type": "dinov2_with_registers", "hidden_size": 48, "num_hidden_layers": 2, "image_size": 64,
                   "num_attention_heads": 3, "spatial_merge_size": 2}),
            json!({"model_type": "qwen2_vl_vision", "depth": 2, "embed_dim": 48, "num_heads": 3, "hidden_size": 3584}),
        ]
    }

    fn foundations() -> Vec<Value> {
        let sizes = json!({"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": true});
        let of = |model_type: &str| {
            let mut config = sizes.clone();
            config["model_type"] = json!(model_type);
            config
        };
        ["llama", "qwen2", "qwen3", "internlm2"].map(of).to_vec()
    }

    /// DeepStack has features of every frame, a resampler of pairs.
    fn fits(encoder: &Value, projector: &Value) -> bool {
        encoder.get("deepstack_visual_indexes").is_none() || projector["model_type"] != "resampler"
    }

    #[test]
    fn every_tower_and_projector_goes_with_every_language_model() {
        let projectors = [
            json!({}),
            json!({"model_type": "linear", "input_size": 192, "output_size": 64}),
            json!({"model_type": "mlp", "hidden_size": 40, "hidden_act": "silu", "norm_type": "rms_norm",
                   "norm_after_merge": true}),
            json!({"model_type": "resampler"}),
        ];
        for (encoder, foundation) in
            towers().iter().flat_map(|tower| foundations().into_iter().map(move |f| (tower, f)))
        {
            for projector in projectors.iter().filter(|projector| fits(encoder, projector)) {
                let config = ModelConfig::from_parts(encoder, projector, &foundation, TOKENS).unwrap();
                let family = config.towers.get(Tower::Vision).unwrap();
                let names: Vec<String> = family.specs().into_iter().map(|spec| spec.name).collect();
                let known = |name: &String| name.starts_with("image_encoder.") || name.starts_with("image_projector.");
                assert!(names.iter().all(known), "{names:?}");
                let text = config.foundation.specs();
                assert!(text.iter().all(|spec| spec.name.starts_with("foundation.")));
            }
        }
        let grids = [Grid { t: 2, h: 4, w: 6 }, Grid { t: 1, h: 4, w: 4 }];
        let pairs: Vec<(Value, &Value)> =
            towers().into_iter().flat_map(|tower| projectors.iter().map(move |p| (tower.clone(), p))).collect();
        for (encoder, projector) in pairs.iter().filter(|(encoder, projector)| fits(encoder, projector)) {
            let config = ModelConfig::from_parts(encoder, projector, &foundations()[0], TOKENS).unwrap();
            let family = config.towers.get(Tower::Vision).unwrap();
            let params = Rc::new(ParamStore::new(family.specs(), Kind::Float, Device::Cpu));
            params.init_random(1);
            let recorded = family.build(&params, Policy::Keep).record(&grids);
            let pixels = Tensor::randn([2 * 24 + 16, family.patch_dim()], (Kind::Float, Device::Cpu));
            let mut run = Execution::forward_only(recorded.tape, params, vec![(recorded.pixels, pixels)]);
            run.forward().unwrap();
            let features: usize = grids.iter().map(|grid| family.num_features(*grid)).sum();
            for output in recorded.outputs {
                assert_eq!(run.value(output).size(), [features as i64, 64], "{encoder} {projector}");
                assert!(run.value(output).isfinite().all().int64_value(&[]) == 1, "{encoder} {projector}");
            }
        }
    }

    #[test]
    fn audio_towers_go_with_projectors_alone_and_beside_pictures() {
        let sizes = json!({"num_mel_bins": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 64,
            "d_model": 32, "max_source_positions": 50});
        let types = [
            "whisper",
            "qwen2_audio_encoder",
            "qwen2_5_omni_audio_encoder",
            "qwen3_omni_moe_audio_encoder",
            "qwen3_asr_encoder",
            "voxtral_encoder",
        ];
        let projectors = [
            json!({}),
            json!({"model_type": "linear", "stack_factor": 2}),
            json!({"model_type": "mlp", "hidden_size": 24, "hidden_act": "silu", "bias": false}),
        ];
        for (model_type, projector) in types.iter().flat_map(|name| projectors.iter().map(move |p| (name, p))) {
            let mut encoder = sizes.clone();
            encoder["model_type"] = json!(model_type);
            let mut config = json!({"model_type": "loongforge_vlm", "foundation": foundations()[0], "audio_token_id": 302,
                "audio_encoder": encoder, "audio_projector": projector});
            let alone = ModelConfig::from_hf(&config).unwrap();
            let input = alone.inputs()[0].clone();
            assert_eq!((input.placeholders, input.num_tensors), (vec![302], 1));
            let family = alone.towers.get(Tower::Audio).unwrap();
            let known = |name: &str| name.starts_with("audio_encoder.") || name.starts_with("audio_projector.");
            assert!(family.specs().iter().all(|spec| known(&spec.name)));
            assert!(family.specs().iter().any(|spec| family.is_projector(&spec.name)));
            config["image_encoder"] = towers()[1].clone();
            config["image_token_id"] = json!(301);
            let both = ModelConfig::from_hf(&config).unwrap();
            let tokens: Vec<_> = both.towers.iter().map(|it| it.placeholders.clone()).collect();
            let levels: Vec<usize> = both.inputs().iter().map(|input| input.num_tensors).collect();
            assert_eq!((tokens, levels), (vec![vec![301], vec![302]], vec![2, 1]));
        }
    }

    #[test]
    fn text_towers_have_the_layers_that_are_taken() {
        let sizes = json!({"vocab_size": 40, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4});
        let config = |encoder: &Value, model_type: &str, text: Value| {
            let mut encoder = encoder.clone();
            encoder["model_type"] = json!(model_type);
            json!({"model_type": "loongforge_vlm", "foundation": foundations()[0], "text_token_id": 303, "text": text,
                "text_encoder": encoder})
        };
        let names = |encoder: &Value, model_type: &str, layers: Value| -> Vec<String> {
            let model = ModelConfig::from_hf(&config(encoder, model_type, json!({"layers": layers}))).unwrap();
            assert_eq!(model.inputs()[0].placeholders, [303]);
            let family = model.towers.get(Tower::Text).unwrap();
            family.specs().into_iter().map(|spec| spec.name).collect()
        };
        let has = |names: &[String], part: &str| names.iter().any(|name| name.contains(part));
        for (encoder, model_type, layer, norm) in
            [(&sizes, "umt5", "block.1.", "final_layer_norm"), (&foundations()[2], "qwen3", "layers.1.", "model.norm.")]
        {
            let (whole, first) = (names(encoder, model_type, json!([0, -1])), names(encoder, model_type, json!([1])));
            assert!(has(&whole, layer) && has(&whole, norm) && !has(&whole, "lm_head"), "{whole:?}");
            assert!(!has(&first, layer) && !has(&first, norm), "{first:?}");
        }
        let tables = |model_type| {
            let names = names(&sizes, model_type, json!([-1]));
            names.iter().filter(|name| name.contains("relative_attention_bias")).count()
        };
        assert_eq!([tables("t5"), tables("umt5")], [1, 2]);
        let cases = [
            ("layers", json!([3]), "text.layers is [3], but must be a list of numbers from -3 to 2"),
            ("layers", json!([]), "at least one"),
            ("skip", json!(1), "text.skip is 1, but only template and max_tokens"),
        ];
        for (key, value, expected) in cases {
            let message = ModelConfig::from_hf(&config(&sizes, "umt5", json!({key: value}))).unwrap_err().to_string();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
        let mut other = config(&sizes, "bert", json!({}));
        assert!(ModelConfig::from_hf(&other).unwrap_err().to_string().contains(r#"text_encoder.model_type is "bert""#));
        other["text_encoder"] = json!({"model_type": "t5", "feed_forward_proj": "gated-tanh"});
        assert!(ModelConfig::from_hf(&other).unwrap_err().to_string().contains(r#"feed_forward_proj is "gated-tanh""#));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let error = |projector: Value| {
            ModelConfig::from_parts(&towers()[0], &projector, &foundations()[0], TOKENS).unwrap_err().to_string()
        };
        let cases = [
            (
                json!({"model_type": "qformer"}),
                r#"image_projector.model_type is "qformer"; supported: "mlp", "linear""#,
            ),
            (
                json!({"output_size": 4096}),
                "image_projector.output_size is 4096, but must equal foundation.hidden_size (64)",
            ),
            (json!({"input_size": 48}), "image_projector.input_size is 48, but must equal image_encoder.hidden_size"),
            (json!({"spatial_merge_size": 4}), "image_projector.spatial_merge_size is 4"),
        ];
        for (projector, expected) in cases {
            let message = error(projector);
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
        let resampler = json!({"model_type": "resampler"});
        let message = ModelConfig::from_parts(&towers()[1], &resampler, &foundations()[0], TOKENS).unwrap_err();
        assert!(message.to_string().contains("image_encoder.deepstack_visual_indexes"), "{message}");
        let mut config = parts_config(&towers()[0], &json!({}), &foundations()[0], TOKENS);
        config["image_encoder"]["model_type"] = json!("vit");
        let message = ModelConfig::from_hf(&config).unwrap_err().to_string();
        assert!(message.contains(r#"image_encoder.model_type is "vit""#), "{message}");
        config["image_encoder"] = json!({"model_type": "clip_vision_model", "vision_feature_layer": -14});
        let message = ModelConfig::from_hf(&config).unwrap_err().to_string();
        assert!(
            message.contains("image_encoder.vision_feature_layer is -14, but must be one of the 12 blocks"),
            "{message}"
        );
        config["image_encoder"] = towers()[0].clone();
        config["image_token_id"] = json!(320);
        let message = ModelConfig::from_hf(&config).unwrap_err().to_string();
        assert!(message.contains("image_token_id is 320"), "{message}");
    }
}
