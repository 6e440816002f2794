//! The autoencoder that a config names.

use std::sync::Arc;

use serde_json::json;

use super::config::VaeConfig;
use super::decoder::VaeDecoder;
use super::latent_patch::LatentPatch;
use super::pixels::PixelLatents;
use super::tower::VaeLatents;
use crate::model::encoder::EncoderFamily;
use crate::model::keys::{Keys, ModelConfigError};
use crate::params::{ParamSpec, ParamStore};

/// An autoencoder of a diffusion model, and the patches of its latents that the transformer takes.
#[derive(Clone, Debug, PartialEq)]
pub enum Autoencoder {
    /// The latents are the pixels.
    Pixels(PixelLatents),
    Causal(Box<VaeLatents>),
}

impl Autoencoder {
    /// Reads the `vae` of a model, by its `_class_name`. Names of its parameters are under `prefix`; `patch` is the
    /// transformer's `patch_size`.
    ///
    /// # Errors
    /// The class is not known, or a key is wrong; the key is named.
    pub(in crate::model) fn read(
        keys: &Keys<'_>,
        prefix: &str,
        patch: LatentPatch,
    ) -> Result<Autoencoder, ModelConfigError> {
        let class = keys.text_or("_class_name")?.ok_or_else(|| keys.missing("_class_name"))?;
        let causal = |is_wan| {
            let vae = VaeConfig::read(keys, prefix, is_wan)?;
            Ok(Autoencoder::Causal(Box::new(VaeLatents { vae, patch, deviations: false })))
        };
        match class {
            "AutoencoderKLWan" => causal(true),
            "AutoencoderKLQwenImage" => causal(false),
            "PixelLatents" => {
                keys.only("channels", &[json!(1), json!(3)])?;
                Ok(Autoencoder::Pixels(PixelLatents { channels: keys.size("channels")?, patch }))
            }
            other => {
                let known = ["AutoencoderKLWan", "AutoencoderKLQwenImage", "PixelLatents"].map(|name| json!(name));
                Err(keys.unsupported("_class_name", &json!(other), &known))
            }
        }
    }

    /// Returns the tower that makes its latents.
    pub fn tower(&self) -> Arc<dyn EncoderFamily> {
        match self {
            Autoencoder::Pixels(pixels) => Arc::new(pixels.clone()),
            Autoencoder::Causal(vae) => Arc::new((**vae).clone()),
        }
    }

    /// Returns the number of channels of a latent.
    pub fn channels(&self) -> i64 {
        match self {
            Autoencoder::Pixels(pixels) => pixels.channels,
            Autoencoder::Causal(vae) => vae.vae.latent_channels,
        }
    }

    /// Returns the number of frames of a clip, behind its first, and of rows or columns of pixels, that become one of the latent.
    pub fn factors(&self) -> [i64; 2] {
        match self {
            Autoencoder::Pixels(_) => [1, 1],
            Autoencoder::Causal(vae) => vae.vae.factors(),
        }
    }

    /// Returns the decoder's parameters, under their names in the checkpoint. The tower has none of them.
    pub fn decoder_specs(&self) -> Vec<ParamSpec> {
        match self {
            Autoencoder::Pixels(_) => Vec::new(),
            Autoencoder::Causal(vae) => vae.vae.decoder_specs(),
        }
    }

    /// Makes frames of its latents.
    ///
    /// # Panics
    /// The store lacks one of `decoder_specs`.
    pub fn decoder(&self, params: &ParamStore) -> VaeDecoder {
        match self {
            Autoencoder::Pixels(pixels) => VaeDecoder::Pixels(pixels.patch),
            Autoencoder::Causal(vae) => VaeDecoder::network(&vae.vae, vae.patch, params),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Autoencoder, LatentPatch};
    use crate::model::keys::Keys;

    fn read(config: &Value) -> Result<Autoencoder, String> {
        Autoencoder::read(&Keys::new(config), "vae.", LatentPatch([1, 2, 2])).map_err(|error| error.to_string())
    }

    #[test]
    fn published_sizes_follow_from_the_defaults() {
        let wan = read(&json!({"_class_name": "AutoencoderKLWan"})).unwrap();
        assert_eq!((wan.channels(), wan.factors()), (16, [4, 8]));
        let count = |specs: Vec<crate::params::ParamSpec>| specs.iter().map(|spec| spec.num_elements()).sum::<i64>();
        // 126.9 M parameters in all, as of the published files.
        assert_eq!(count(wan.tower().specs()) + count(wan.decoder_specs()), 126_892_531);
        let qwen = read(&json!({"_class_name": "AutoencoderKLQwenImage"})).unwrap();
        assert_eq!(qwen.tower().specs(), wan.tower().specs());
        let mean: Vec<f64> = vec![0.0; 48];
        let wan_2_2 = json!({"_class_name": "AutoencoderKLWan", "is_residual": true, "patch_size": 2, "in_channels": 12,
            "out_channels": 12, "base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "scale_factor_spatial": 16,
            "latents_mean": mean, "latents_std": vec![1.0; 48]});
        let vae = read(&wan_2_2).unwrap();
        assert_eq!((vae.channels(), vae.factors(), vae.tower().patch_dim()), (48, [4, 16], 3));
    }

    #[test]
    fn errors_name_the_key() {
        let wan = |key: &str, value: Value| {
            let mut config = json!({"_class_name": "AutoencoderKLWan"});
            config[key] = value;
            read(&config).unwrap_err()
        };
        let cases = [
            ("_class_name", json!("AutoencoderKL"), r#"_class_name is "AutoencoderKL"; supported: "AutoencoderKLWan""#),
            ("attn_scales", json!([0.5]), "attn_scales is [0.5]"),
            ("dim_mult", json!([1, 2]), "temperal_downsample is [false, true, true], but must have one entry fewer"),
            ("dim_mult", json!([1, 2, 4, 0]), "dim_mult is [1, 2, 4, 0], but must be 1 to 16 positive numbers"),
            ("dim_mult", json!([1, 1i64 << 40]), "dim_mult is [1, 1099511627776], but must be 1 to 16"),
            ("dim_mult", json!(vec![1; 80]), "but must be 1 to 16 positive numbers"),
            ("num_res_blocks", json!(1 << 20), "num_res_blocks is 1048576, but must be at most 64"),
            ("temperal_downsample", json!(["no"]), "temperal_downsample is [\"no\"], but must be a list of true and"),
            ("latents_mean", json!([0.5]), "latents_mean is a list of 1 numbers, but must have as many as z_dim (16)"),
            ("latents_std", json!(vec![0.0; 16]), "latents_std is 0, but must be more than 0"),
            ("patch_size", json!(2), "in_channels is 3, but must be a multiple of the 4 pixels of patch_size"),
            ("out_channels", json!(4), "out_channels is 4, but must be 3, by in_channels"),
            ("scale_factor_spatial", json!(16), "scale_factor_spatial is 16, but must be 8, by dim_mult"),
        ];
        for (key, value, expected) in cases {
            let message = wan(key, value);
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
        let odd =
            read(&json!({"_class_name": "AutoencoderKLWan", "base_dim": 3, "dim_mult": [1, 3, 4, 4]})).unwrap_err();
        assert!(odd.contains("dim_mult is [1, 3, 4, 4], but the channels of a level do not fit"), "{odd}");
        let pixels = |channels: i64| read(&json!({"_class_name": "PixelLatents", "channels": channels}));
        assert_eq!(pixels(1).unwrap().factors(), [1, 1]);
        assert!(pixels(2).unwrap_err().contains("channels is 2; supported: 1, 3"));
    }
}
