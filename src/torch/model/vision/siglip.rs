//! SigLIP's tower (`SiglipVisionModel`) and a projector of two maps: pictures of one size, a learned position for each patch, no
//! class token. SigLIP 2 has the same tower where its pictures have a fixed size.

use serde_json::json;

use super::encoder::VisionConfig;
use super::keys::{activation, check_heads, no_dropout, square};
use super::layout::PatchOrder;
use super::projector::{ProjectorConfig, ProjectorKind};
use super::tower_config::{PatchEmbed, PositionTable, TowerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::tower_blocks::{BlockConfig, TowerNorm};
use crate::nn::{Activation, Resampling};

/// Fixed in the reference, not configured.
const INITIALIZER_RANGE: f64 = 0.02;

/// The encoder of `SiglipVisionConfig`, its names under `prefix` and `projector`, with features of width `outputs`: the last
/// states behind their norm. `spatial_merge_size` is our own: the side of the square of patches that becomes one feature.
pub(in crate::model) fn read(
    keys: &Keys<'_>,
    prefix: &str,
    projector: &str,
    outputs: i64,
) -> Result<VisionConfig, ModelConfigError> {
    let size = |key: &str, default: i64| keys.size_or(key).map(|size| size.unwrap_or(default));
    let (width, num_heads) = (size("hidden_size", 768)?, size("num_attention_heads", 12)?);
    check_heads(keys, ("hidden_size", width), "num_attention_heads", num_heads, false)?;
    no_dropout(keys, &["attention_dropout"])?;
    keys.only("vision_feature_layer", &[json!(null)])?;
    let patch_size = square(keys, "patch_size")?.unwrap_or(16);
    let side = square(keys, "image_size")?.unwrap_or(224) / patch_size;
    let merge = size("spatial_merge_size", 1)?;
    if side % merge != 0 {
        return Err(keys.inconsistent(
            "spatial_merge_size",
            merge,
            format!("must divide the {side} patches of a side"),
        ));
    }
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
    let tower = TowerConfig {
        order: PatchOrder::Raster,
        positions: Some(positions),
        block_prefix: "encoder.layers.",
        final_norm: Some(("post_layernorm", norm)),
        ..TowerConfig::new(&format!("{prefix}vision_model."), embed, merge, size("num_hidden_layers", 12)?, block)
    };
    let projector = ProjectorConfig {
        prefix: projector.into(),
        inputs: width,
        merge,
        outputs,
        kind: ProjectorKind::Mlp {
            norm: None,
            linears: ["linear_1", "linear_2"],
            inner: outputs,
            activation: Activation::Gelu,
        },
        initializer_range: INITIALIZER_RANGE,
    };
    Ok(VisionConfig { tower, projector, deepstack: Vec::new() })
}
