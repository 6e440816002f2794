//! CLIP's tower (`CLIPVisionModel`): pictures of one size, a class token, a norm before the blocks. Features are the states of one
//! of its layers, before any last norm: through LLaVA's projector and without the class token, or as they are and with it.

use serde_json::json;

use super::encoder::VisionConfig;
use super::keys::{activation, check_heads, feature_layer, merge_of, no_dropout, square};
use super::layout::PatchOrder;
use super::projector::ProjectorConfig;
use super::tower_config::{ClassToken, PatchEmbed, PositionTable, TowerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::tower_blocks::{BlockConfig, TowerNorm};
use crate::nn::{Activation, Resampling};

/// The layer whose states LLaVA takes.
const FEATURE_LAYER: i64 = -2;

/// Returns the tower of `CLIPVisionConfig` as diffusion models have it, its names under `prefix`: its features are all states of
/// `vision_feature_layer`, which is the last layer but one where the key is absent.
pub(in crate::model) fn read_states(keys: &Keys<'_>, prefix: &str) -> Result<VisionConfig, ModelConfigError> {
    keys.only("model_type", &[json!("clip_vision_model")])?;
    keys.only("spatial_merge_size", &[json!(1)])?;
    let VisionConfig { tower, .. } = read(keys, prefix, "", 1)?;
    let projector = ProjectorConfig::none("", tower.width());
    Ok(VisionConfig { tower: TowerConfig { keeps_tokens: true, ..tower }, projector, deepstack: Vec::new() })
}

/// Returns the encoder of `CLIPVisionConfig`, its names under `prefix` and `projector`, with features of width `outputs`: the states of
/// `vision_feature_layer`.
pub(in crate::model) fn read(
    keys: &Keys<'_>,
    prefix: &str,
    projector: &str,
    outputs: i64,
) -> Result<VisionConfig, ModelConfigError> {
    let size = |key: &str, default: i64| keys.size_or(key).map(|size| size.unwrap_or(default));
    let (width, num_heads) = (size("hidden_size", 768)?, size("num_attention_heads", 12)?);
    check_heads(keys, ("hidden_size", width), "num_attention_heads", num_heads, false)?;
    no_dropout(keys, &["attention_dropout", "dropout"])?;
    let num_blocks = size("num_hidden_layers", 12)?;
    let used = feature_layer(keys, num_blocks, Some(FEATURE_LAYER))?.unwrap_or(num_blocks);
    let patch_size = square(keys, "patch_size")?.unwrap_or(32);
    let side = square(keys, "image_size")?.unwrap_or(224) / patch_size;
    let merge = merge_of(keys, side)?;
    let norm = TowerNorm::Layer(keys.number_or("layer_norm_eps")?.unwrap_or(1e-5));
    let initializer_range = keys.number_or("initializer_range")?.unwrap_or(0.02);
    let kernel = vec![size("num_channels", 3)?, patch_size, patch_size];
    let positions = PositionTable {
        name: "embeddings.position_embedding.weight",
        shape: vec![side * side + 1, width],
        side,
        with_class: true,
        resampling: Resampling::Bicubic,
    };
    let block = BlockConfig {
        norms: ["layer_norm1", "layer_norm2"],
        qkv: vec!["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        o: "self_attn.out_proj",
        activation: activation(keys, "hidden_act", Activation::QuickGelu)?,
        ..BlockConfig::new(width, num_heads, size("intermediate_size", 3072)?, norm, initializer_range)
    };
    let prefix = format!("{prefix}vision_model.");
    let embed = PatchEmbed { name: "embeddings.patch_embedding", kernel, bias: false };
    let tower = TowerConfig {
        order: PatchOrder::Raster,
        positions: Some(positions),
        class: Some(ClassToken {
            name: "embeddings.class_embedding",
            shape: vec![width],
            registers: None,
            angles: None,
        }),
        // The published name.
        pre_norm: Some(("pre_layrnorm", norm)),
        block_prefix: "encoder.layers.",
        unused_blocks: num_blocks - used,
        unused: norm.specs(&prefix, "post_layernorm", width),
        ..TowerConfig::new(&prefix, embed, merge, used, block)
    };
    let projector = ProjectorConfig::two_maps(projector, [width, outputs], merge, Activation::Gelu, initializer_range);
    Ok(VisionConfig { tower, projector, deepstack: Vec::new() })
}
