//! Qwen2-VL's tower and merger (`Qwen2VisionTransformerPretrainedModel`): attention among a frame's patches, layer norms, plain
//! MLPs.

use serde_json::json;

use super::encoder::VisionConfig;
use super::keys::{activation, axial_theta, check_heads, mlp_width, square};
use super::projector::ProjectorConfig;
use super::tower_config::{PatchEmbed, TowerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::tower_blocks::{AxialOrder, AxialRope, BlockConfig, TowerNorm};
use crate::nn::Activation;

/// Fixed in the reference, not configured.
const NORM: TowerNorm = TowerNorm::Layer(1e-6);

/// Returns the encoder of `Qwen2VLVisionConfig`, its names under `prefix` and `merger`.
pub(in crate::model) fn read(
    keys: &Keys<'_>,
    prefix: &str,
    merger: &str,
    outputs: i64,
) -> Result<VisionConfig, ModelConfigError> {
    // Folders that older releases of transformers saved leave out what is the class's default.
    let filled = keys.filled(&json!({"embed_dim": 1280, "num_heads": 16, "depth": 32}));
    let keys = &keys.instead(&filled);
    let (width, num_heads) = (keys.size("embed_dim")?, keys.size("num_heads")?);
    check_heads(keys, ("embed_dim", width), "num_heads", num_heads, true)?;
    let patch_size = square(keys, "patch_size")?.unwrap_or(14);
    let merge = keys.size_or("spatial_merge_size")?.unwrap_or(2);
    let channels = keys.size_or("in_channels")?.or(keys.size_or("in_chans")?).unwrap_or(3);
    let frames = keys.size_or("temporal_patch_size")?.unwrap_or(2);
    let initializer_range = keys.number_or("initializer_range")?.unwrap_or(0.02);
    let inner = mlp_width(keys, width)?;
    let embed =
        PatchEmbed { name: "patch_embed.proj", kernel: vec![channels, frames, patch_size, patch_size], bias: false };
    let block = BlockConfig {
        activation: activation(keys, "hidden_act", Activation::QuickGelu)?,
        ..BlockConfig::new(width, num_heads, inner, NORM, initializer_range)
    };
    let tower = TowerConfig {
        rope: Some(AxialRope { theta: axial_theta(keys)?, order: AxialOrder::Halves }),
        ..TowerConfig::new(prefix, embed, merge, keys.size("depth")?, block)
    };
    let projector = ProjectorConfig::patch_merger(merger, [width, outputs], merge, NORM, initializer_range);
    Ok(VisionConfig { tower, projector, deepstack: Vec::new() })
}
