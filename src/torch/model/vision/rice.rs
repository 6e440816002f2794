//! Rice ViT and its merger (LLaVA-OneVision-1.5's `RiceTransformerPretrainedModel`): a class token before each frame,
//! with learned angles, and a norm before the blocks.

use super::encoder::VisionConfig;
use super::keys::{activation, axial_theta, width_and_heads};
use super::projector::ProjectorConfig;
use super::tower_config::{ClassToken, PatchEmbed, TowerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::tower_blocks::{AxialOrder, AxialRope, BlockConfig, TowerNorm};
use crate::nn::Activation;
use serde_json::json;

/// Returns the encoder of `RiceConfig`, its names under `prefix` and `merger`.
pub(in crate::model) fn read(
    keys: &Keys<'_>,
    prefix: &str,
    merger: &str,
    outputs: i64,
) -> Result<VisionConfig, ModelConfigError> {
    let (width, num_heads) = width_and_heads(keys)?;
    keys.only("embed_dim", &[json!(width)])?;
    keys.only("temporal_patch_size", &[json!(1)])?;
    let patch_size = keys.size("patch_size")?;
    let merge = keys.size_or("spatial_merge_size")?.unwrap_or(2);
    let norm = TowerNorm::Layer(keys.number_or("layer_norm_eps")?.unwrap_or(1e-5));
    let initializer_range = keys.number_or("initializer_range")?.unwrap_or(0.02);
    let embed = PatchEmbed {
        name: "patch_embed.proj",
        kernel: vec![keys.size_or("in_channels")?.unwrap_or(3), patch_size, patch_size],
        bias: false,
    };
    let block = BlockConfig {
        activation: activation(keys, "hidden_act", Activation::Gelu)?,
        ..BlockConfig::new(width, num_heads, keys.size("intermediate_size")?, norm, initializer_range)
    };
    let tower = TowerConfig {
        class: Some(ClassToken {
            name: "class_embedding",
            shape: vec![width],
            registers: None,
            angles: Some("class_pos_emb"),
        }),
        pre_norm: Some(("pre_layernorm", norm)),
        rope: Some(AxialRope { theta: axial_theta(keys)?, order: AxialOrder::Halves }),
        ..TowerConfig::new(prefix, embed, merge, keys.size("depth")?, block)
    };
    let projector = ProjectorConfig::patch_merger(merger, [width, outputs], merge, norm, initializer_range);
    Ok(VisionConfig { tower, projector, deepstack: Vec::new() })
}
