//! SigLIP's tower (`SiglipVisionModel`) and a projector of two maps: pictures of one size, a learned position for each patch, no
//! class token. SigLIP 2 has the same tower where its pictures have a fixed size.

use super::encoder::VisionConfig;
use super::keys::{activation, check_heads, feature_layer, merge_of, no_dropout, square};
use super::layout::PatchOrder;
use super::projector::ProjectorConfig;
use super::tower_config::{PatchEmbed, PositionTable, TowerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::tower_blocks::{BlockConfig, TowerNorm};
use crate::nn::{Activation, Resampling};

/// Fixed in the reference, not configured.
const INITIALIZER_RANGE: f64 = 0.02;

/// Returns the encoder of `SiglipVisionConfig`, its names under `prefix` and `projector`, with features of width `outputs`: the last
/// states behind their norm, or those of `vision_feature_layer` without one.
pub(in crate::model) fn read(
    keys: &Keys<'_>,
    prefix: &str,
    projector: &str,
    outputs: i64,
) -> Result<VisionConfig, ModelConfigError> {
    read_at(keys, &format!("{prefix}vision_model."), projector, outputs)
}

/// Returns the same encoder with the names of the tower right behind `prefix`.
pub(super) fn read_at(
    keys: &Keys<'_>,
    prefix: &str,
    projector: &str,
    outputs: i64,
) -> Result<VisionConfig, ModelConfigError> {
    let size = |key: &str, default: i64| keys.size_or(key).map(|size| size.unwrap_or(default));
    let (width, num_heads) = (size("hidden_size", 768)?, size("num_attention_heads", 12)?);
    check_heads(keys, ("hidden_size", width), "num_attention_heads", num_heads, false)?;
    no_dropout(keys, &["attention_dropout"])?;
    let num_blocks = size("num_hidden_layers", 12)?;
    let layer = feature_layer(keys, num_blocks, None)?;
    let patch_size = square(keys, "patch_size")?.unwrap_or(16);
    let side = square(keys, "image_size")?.unwrap_or(224) / patch_size;
    let merge = merge_of(keys, side)?;
    let norm = TowerNorm::Layer(keys.number_or("layer_norm_eps")?.unwrap_or(1e-6));
    let channels = size("num_channels", 3)?;
    let embed =
        PatchEmbed { name: "embeddings.patch_embedding", kernel: vec![channels, patch_size, patch_size], bias: true };
    let positions = PositionTable {
        name: "embeddings.position_embedding.weight",
        shape: vec![side * side, width],
        side,
        with_class: false,
        resampling: Resampling::Bicubic,
    };
    let block = BlockConfig {
        norms: ["layer_norm1", "layer_norm2"],
        qkv: vec!["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        o: "self_attn.out_proj",
        activation: activation(keys, "hidden_act", Activation::GeluTanh)?,
        ..BlockConfig::new(width, num_heads, size("intermediate_size", 3072)?, norm, INITIALIZER_RANGE)
    };
    let used = layer.unwrap_or(num_blocks);
    let last_norm = ("post_layernorm", norm);
    let tower = TowerConfig {
        order: PatchOrder::Raster,
        positions: Some(positions),
        block_prefix: "encoder.layers.",
        final_norm: layer.is_none().then_some(last_norm),
        unused_blocks: num_blocks - used,
        unused: if layer.is_none() { Vec::new() } else { norm.specs(prefix, last_norm.0, width) },
        ..TowerConfig::new(prefix, embed, merge, used, block)
    };
    let projector = ProjectorConfig::two_maps(projector, [width, outputs], merge, Activation::Gelu, INITIALIZER_RANGE);
    Ok(VisionConfig { tower, projector, deepstack: Vec::new() })
}
