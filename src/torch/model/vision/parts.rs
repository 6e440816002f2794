//! A tower and a projector chosen one by one, for models that are put together from parts.

use serde_json::json;

use super::encoder::VisionConfig;
use super::intern::{InternNames, PixelShuffle};
use super::keys::activation;
use super::projector::{MergeNorm, ProjectorConfig, ProjectorKind};
use super::{clip, dinov2, ernie, intern, minicpm, moon, qwen2, qwen2_5, qwen3, rice, siglip};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::tower_blocks::TowerNorm;
use crate::nn::Activation;

type Result<T> = std::result::Result<T, ModelConfigError>;
type Read = fn(&Keys<'_>, &str, &str, i64) -> Result<VisionConfig>;

/// Towers with the projectors that they come with, by the `model_type` of a `vision_config`.
const TOWERS: &[(&str, Read)] = &[
    ("DFNRope_vision_transformer", ernie),
    ("clip", clip::read),
    ("clip_vision_model", clip::read),
    ("dinov2", |keys, tower, projector, width| dinov2::read(keys, tower, projector, width, false)),
    ("dinov2_with_registers", |keys, tower, projector, width| dinov2::read(keys, tower, projector, width, true)),
    ("ernie4_5_vl_moe_vision", ernie),
    ("intern_vit_6b", |keys, tower, projector, width| intern(keys, InternNames::Original, tower, projector, width)),
    ("internvl_vision", |keys, tower, projector, width| {
        intern(keys, InternNames::Transformers, tower, projector, width)
    }),
    ("kimi_k25_vision", |keys, tower, projector, width| moon::read(keys, tower, projector, 1e-5, width)),
    ("minicpmv4_6_vision", minicpm::read),
    ("qwen2_5_vl", qwen2_5::read),
    ("qwen2_5_vl_vision", qwen2_5::read),
    ("qwen2_vl", qwen2::read),
    ("qwen2_vl_vision", qwen2::read),
    ("qwen3_5", qwen3::read),
    ("qwen3_5_moe", qwen3::read),
    ("qwen3_5_moe_vision", qwen3::read),
    ("qwen3_5_vision", qwen3::read),
    ("qwen3_vl", qwen3::read),
    ("qwen3_vl_moe", qwen3::read),
    ("qwen3_vl_moe_vision", qwen3::read),
    ("qwen3_vl_vision", qwen3::read),
    ("rice_vit", rice::read),
    ("siglip", siglip::read),
    ("siglip_vision_model", siglip::read),
];

/// Returns the tower of this config with the projector that it comes with, its names under `tower` and `projector`, after that as in the
/// tower's own checkpoint. Features have this `width`.
pub(in crate::model) fn read_tower(
    encoder: &Keys<'_>,
    tower: &str,
    projector: &str,
    width: i64,
) -> Result<VisionConfig> {
    let model_type = encoder.text_or("model_type")?.ok_or_else(|| encoder.missing("model_type"))?;
    let Some((_, read)) = TOWERS.iter().find(|(name, _)| *name == model_type) else {
        let supported: Vec<_> = TOWERS.iter().map(|(name, _)| json!(name)).collect();
        return Err(encoder.unsupported("model_type", &json!(model_type), &supported));
    };
    read(encoder, tower, projector, width)
}

/// Returns the encoder of these two configs, with features of `width`. Names are under `image_encoder.` and `image_projector.`, after
/// that as in the tower's own checkpoint. A projector without `model_type` is the one that the tower comes with.
pub(in crate::model) fn read(encoder: &Keys<'_>, projector: Option<&Keys<'_>>, width: i64) -> Result<VisionConfig> {
    let vision = read_tower(encoder, "image_encoder.", "image_projector.", width)?;
    let Some(keys) = projector else { return Ok(vision) };
    let chosen = read_projector(keys, &vision.projector)?;
    if !vision.deepstack.is_empty() && matches!(chosen.kind, ProjectorKind::Resampler { .. }) {
        let must = "it pairs frames, which image_encoder.deepstack_visual_indexes do not: leave them empty";
        return Err(keys.inconsistent("model_type", "resampler", must));
    }
    Ok(VisionConfig { projector: chosen, ..vision })
}

fn ernie(keys: &Keys<'_>, tower: &str, projector: &str, width: i64) -> Result<VisionConfig> {
    ernie::read(keys, tower, projector, keys.number_or("rms_norm_eps")?.unwrap_or(1e-6), width)
}

fn intern(keys: &Keys<'_>, names: InternNames, tower: &str, projector: &str, width: i64) -> Result<VisionConfig> {
    let shuffle = PixelShuffle { merge: 2, activation: Activation::Gelu, outputs: width };
    intern::read(keys, names, tower, projector, &shuffle)
}

/// Returns the projector that `keys` describe, where the tower's own would be `own`.
fn read_projector(keys: &Keys<'_>, own: &ProjectorConfig) -> Result<ProjectorConfig> {
    let must_be = |key: &str, value: i64, of: &str| match keys.size_or(key)? {
        Some(found) if found != value => Err(keys.inconsistent(key, found, format!("must equal {of} ({value})"))),
        _ => Ok(()),
    };
    must_be("input_size", own.block(), "image_encoder.hidden_size x the square of its merge size")?;
    must_be("output_size", own.outputs, "foundation.hidden_size")?;
    must_be("spatial_merge_size", own.merge, "image_encoder's merge size")?;
    keys.only("downsample_ratio", &[json!(1.0 / own.merge as f64)])?;
    let kind = match keys.text_or("model_type")? {
        None => return Ok(own.clone()),
        Some("mlp") => ProjectorKind::Mlp {
            norm: read_norm(keys)?,
            linears: ["linear_1", "linear_2"],
            inner: keys.size_or("hidden_size")?.unwrap_or(own.block()),
            by_channel: false,
            activation: activation(keys, "hidden_act", Activation::Gelu)?,
        },
        Some("linear") => ProjectorKind::Linear { name: "linear", bias: keys.flag_or("bias")?.unwrap_or(true) },
        Some("resampler") => {
            let eps = keys.number_or("layer_norm_eps")?.unwrap_or(1e-6);
            ProjectorKind::Resampler { eps, after_eps: keys.number_or("rms_norm_eps")?.unwrap_or(eps) }
        }
        Some(other) => {
            let supported = ["mlp", "linear", "resampler"].map(|name| json!(name));
            return Err(keys.unsupported("model_type", &json!(other), &supported));
        }
    };
    Ok(ProjectorConfig { kind, ..own.clone() })
}

fn read_norm(keys: &Keys<'_>) -> Result<Option<MergeNorm>> {
    let eps = keys.number_or("layer_norm_eps")?.unwrap_or(1e-6);
    let norm = match keys.text_or("norm_type")? {
        None | Some("layer_norm") => TowerNorm::Layer(eps),
        Some("rms_norm") => TowerNorm::Rms(eps),
        Some("none") => return Ok(None),
        Some(other) => {
            let supported = ["layer_norm", "rms_norm", "none"].map(|name| json!(name));
            return Err(keys.unsupported("norm_type", &json!(other), &supported));
        }
    };
    Ok(Some(MergeNorm { name: "norm", norm, merged: keys.flag_or("norm_after_merge")?.unwrap_or(false) }))
}
