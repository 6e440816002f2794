//! Diffusion models: a transformer with an autoencoder, a text encoder and, where it takes tokens of pictures, an image
//! encoder. Their `config.json` is of our own: `model_index.json` of Diffusers with the config of each component in its place.
//! Names of parameters begin with the component's name.

use std::sync::Arc;

use super::diffusion_towers::{self, Wanted};
use crate::model::config::{CarriedParts, ModelConfig};
use crate::model::dit::{DitFamily, TransformerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::towers::Towers;
use crate::model::tree_names::TreeNames;
use crate::model::vae::{Autoencoder, LatentPatch};

type Result<T> = std::result::Result<T, ModelConfigError>;

const MODEL_TYPE: &str = "loongforge_diffusion";
/// The networks that are foundations: where there are two, of high noise and of low noise.
const FIRST: &str = "transformer";
const SECOND: &str = "transformer_2";
/// Rows of text that Wan's attention sees, where `text_rows` does not say.
const TEXT_ROWS: i64 = 512;

/// Reads the config of a diffusion model: its transformers, of which a second one is for low noise, and its towers.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    let mut model = read_transformer(keys, FIRST)?;
    if keys.section_or(SECOND)?.is_some() {
        if keys.number_or("boundary_ratio")?.is_none() {
            return Err(keys.missing("boundary_ratio"));
        }
        let low_noise = read_transformer(keys, SECOND)?.foundation;
        if low_noise.inputs() != model.foundation.inputs() {
            let must = format!("must read the same latents and states as {FIRST}");
            return Err(keys.inconsistent(SECOND, "of another kind", must));
        }
        model.low_noise = Some(low_noise);
    }
    Ok(model)
}

impl ModelConfig {
    /// Returns the model with one of its two transformers, of `high` noise or of low; as it is where it has one.
    #[must_use]
    pub fn with_one_transformer(self, high: bool) -> ModelConfig {
        let foundation = self.low_noise.filter(|_| !high).unwrap_or(self.foundation);
        ModelConfig { foundation, low_noise: None, ..self }
    }

    /// Returns the autoencoder of a parsed `config.json`: what makes pictures of the foundation's latents. `None`: it is of another kind
    /// of model.
    ///
    /// # Errors
    /// Fails as [`ModelConfig::from_hf`] does.
    pub fn autoencoder(config: &serde_json::Value) -> Result<Option<Autoencoder>> {
        let keys = Keys::new(config);
        if keys.text_or("model_type")? != Some(MODEL_TYPE) {
            return Ok(None);
        }
        let section = keys.section("transformer")?;
        let text_rows = keys.index_or("text_rows")?.unwrap_or(TEXT_ROWS);
        let transformer = TransformerConfig::read(&section, "transformer.", text_rows)?;
        Autoencoder::read(&keys.section("vae")?, "vae.", LatentPatch(transformer.patch())).map(Some)
    }
}

/// Returns the model with one of its transformers.
fn read_transformer(keys: &Keys<'_>, name: &str) -> Result<ModelConfig> {
    let text_rows = keys.index_or("text_rows")?.unwrap_or(TEXT_ROWS);
    let section = keys.section(name)?;
    let transformer = TransformerConfig::read(&section, &format!("{name}."), text_rows)?;
    let wanted = Wanted {
        patch: LatentPatch(transformer.patch()),
        text: ("text_dim", transformer.text_dim()),
        image: transformer.image_dim().map(|width| ("image_dim", width)),
    };
    let (towers, vae) = diffusion_towers::read(keys, &section, &wanted)?;
    let channels = transformer.channels();
    if vae.channels() != channels {
        let keys = keys.section("vae")?;
        let of = if keys.has("z_dim") { "z_dim" } else { "channels" };
        let must = format!("must be the number of latent channels of {name} ({channels})");
        return Err(keys.inconsistent(of, vae.channels(), must));
    }
    let (mask, frames) = (transformer.mask_channels(), vae.factors()[0]);
    if mask > 0 && mask != frames {
        let with_mask = 2 * channels + frames;
        let must = format!(
            "must be {channels}, or {with_mask} with a condition and its mask, which has a channel for each frame of pixels \
             in one of the latent; other conditions, such as those of Fun-Control, are not trained here"
        );
        return Err(section.inconsistent("in_channels", 2 * channels + mask, must));
    }
    Ok(ModelConfig {
        model_type: MODEL_TYPE.into(),
        foundation: Arc::new(DitFamily::new(transformer)),
        low_noise: None,
        towers: Towers::new(towers),
        tree: TreeNames::default(),
        carried: CarriedParts::default(),
    })
}

#[cfg(test)]
mod tests {
    use loongforge_core::message::{Grid, PoolName, Tower};
    use serde_json::{Value, json};

    use crate::model::{FlowSettings, ModelConfig};

    fn wan() -> Value {
        json!({
            "model_type": "loongforge_diffusion", "pipeline": "WanPipeline", "boundary_ratio": 0.875,
            "transformer": {"_class_name": "WanTransformer3DModel", "num_attention_heads": 2, "attention_head_dim": 12,
                "in_channels": 3, "out_channels": 3, "text_dim": 16, "ffn_dim": 32, "num_layers": 2},
            "transformer_2": {"_class_name": "WanTransformer3DModel", "num_attention_heads": 2, "attention_head_dim": 12,
                "in_channels": 3, "out_channels": 3, "text_dim": 16, "ffn_dim": 32, "num_layers": 1},
            "vae": {"_class_name": "PixelLatents", "channels": 3},
            "text_encoder": {"model_type": "umt5", "vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1,
                "num_heads": 2},
        })
    }

    fn qwen() -> Value {
        let mut config = wan();
        config["transformer"] = json!({"_class_name": "QwenImageTransformer2DModel", "num_attention_heads": 2,
            "attention_head_dim": 12, "axes_dims_rope": [4, 4, 4], "in_channels": 12, "out_channels": 3,
            "joint_attention_dim": 16, "num_layers": 2});
        config["text_encoder"] = json!({"model_type": "qwen2_5_vl", "text_config": {"model_type": "qwen2_5_vl_text",
            "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, "rope_scaling": {"mrope_section": [2, 1, 1]}}});
        config
    }

    /// Both transformers take what the tower gives.
    #[test]
    fn latents_are_drawn_where_they_have_a_distribution() {
        let levels = |vae: Value, draws_latents: bool| {
            let mut config = wan();
            config["vae"] = vae;
            let flow = FlowSettings { draws_latents, ..FlowSettings::default() };
            let model = ModelConfig::from_hf(&config).unwrap().with_flow(flow).unwrap();
            let inputs = model.foundations().flat_map(|foundation| foundation.inputs().to_vec());
            let taken = inputs.filter(|input| input.tower == Tower::Vae).map(|input| input.num_tensors);
            (model.towers.get(Tower::Vae).unwrap().num_outputs(), taken.collect::<Vec<_>>())
        };
        let causal = json!({"_class_name": "AutoencoderKLWan", "base_dim": 4, "dim_mult": [1], "num_res_blocks": 1,
            "temperal_downsample": [], "z_dim": 3, "latents_mean": [0, 0, 0], "latents_std": [1, 1, 1]});
        assert_eq!(levels(causal.clone(), true), (2, vec![2, 2]));
        assert_eq!(levels(causal, false), (1, vec![1, 1]));
        assert_eq!(levels(wan()["vae"].clone(), true), (1, vec![1, 1]));
    }

    #[test]
    fn components_are_towers_and_a_foundation() {
        for (config, text) in [(wan(), "text_encoder.shared.weight"), (qwen(), "text_encoder.model.norm.weight")] {
            let model = ModelConfig::from_hf(&config).unwrap();
            let widths: Vec<_> = model.inputs().iter().map(|input| (input.tower, input.width)).collect();
            assert_eq!(widths, [(Tower::Text, 16), (Tower::Vae, 12)]);
            let grid = Grid { t: 1, h: 8, w: 6 };
            assert_eq!(model.towers.num_features(Tower::Vae, grid), 12);
            assert!(model.specs().iter().any(|spec| spec.name == text));
            assert!(model.foundation.specs().iter().all(|spec| spec.name.starts_with("transformer.")));
            assert!(model.foundation.columns().is_empty());
        }
        let both = ModelConfig::from_hf(&wan()).unwrap();
        let names = |pool| both.foundation_of(pool).specs().into_iter().map(|spec| spec.name).collect::<Vec<_>>();
        let [high, low] = [PoolName::FOUNDATION_HIGH, PoolName::FOUNDATION_LOW].map(names);
        assert!(high.iter().all(|name| name.starts_with("transformer.")));
        assert!(low.iter().all(|name| name.starts_with("transformer_2.")));
        assert!(!low.iter().any(|name| name.contains("blocks.1.")), "it has one block");
        let one = |high| both.clone().with_one_transformer(high).specs();
        assert!(one(true).iter().all(|spec| !spec.name.starts_with("transformer_2.")));
        assert!(one(false).iter().all(|spec| !spec.name.starts_with("transformer.")));
    }

    #[test]
    fn errors_name_the_key() {
        let error = |config: Value, pointer: &str, value: Value| {
            let mut config = config;
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            config.pointer_mut(parent).unwrap()[key] = value;
            ModelConfig::from_hf(&config).unwrap_err().to_string()
        };
        let cases = [
            (wan(), "/transformer/_class_name", json!("FluxTransformer2DModel"), "transformer._class_name is \"Flux"),
            (
                wan(),
                "/transformer/patch_size",
                json!([2, 2, 2]),
                "transformer.patch_size is [2,2,2], but must be [1, rows",
            ),
            (wan(), "/transformer/in_channels", json!(6), "transformer.in_channels is 6, but must be out_channels (3)"),
            (wan(), "/transformer/in_channels", json!(9), "transformer.in_channels is 9, but must be 3, or 7 with"),
            (wan(), "/transformer/qk_norm", json!("none"), "transformer.qk_norm is \"none\""),
            (wan(), "/transformer/image_dim", json!(8), "transformer.added_kv_proj_dim is missing"),
            (wan(), "/transformer/attention_head_dim", json!(13), "must be even"),
            (
                wan(),
                "/transformer/text_dim",
                json!(17),
                "text_encoder is 16 wide, but must equal transformer.text_dim (17)",
            ),
            (wan(), "/vae/channels", json!(1), "vae.channels is 1, but must be the number of latent channels"),
            (wan(), "/vae", Value::Null, "vae is missing"),
            (wan(), "/boundary_ratio", Value::Null, "boundary_ratio is missing"),
            (
                wan(),
                "/transformer_2/text_dim",
                json!(17),
                "text_encoder is 16 wide, but must equal transformer_2.text_dim",
            ),
            (qwen(), "/transformer/use_layer3d_rope", json!(true), "transformer.use_layer3d_rope is true"),
            (
                qwen(),
                "/transformer/axes_dims_rope",
                json!([4, 4, 5]),
                "transformer.axes_dims_rope is [4,4,5], but must be",
            ),
            (qwen(), "/transformer/in_channels", json!(13), "transformer.in_channels is 13, but must be patch_size²"),
        ];
        for (config, pointer, value, expected) in cases {
            let message = error(config, pointer, value);
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
