//! InternViT and InternVL's pixel shuffle, as transformers names them (`InternVLVisionModel`) and as the original
//! checkpoints do (`InternVisionModel`, `mlp1`).

use serde_json::json;

use super::encoder::VisionConfig;
use super::keys::{activation, check_heads, no_dropout, square};
use super::layout::PatchOrder;
use super::projector::{MergeNorm, ProjectorConfig, ProjectorKind};
use super::tower_config::{ClassToken, PatchEmbed, PositionTable, TowerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::tower_blocks::{BlockConfig, TowerNorm};
use crate::nn::{Activation, Resampling};

/// torch's default, which the reference does not change.
const PROJECTOR_NORM: TowerNorm = TowerNorm::Layer(1e-5);

/// Says how a checkpoint names things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model) enum InternNames {
    Transformers,
    Original,
}

/// The projector's side of the config.
pub(in crate::model) struct PixelShuffle {
    /// The inverse of `downsample_ratio`.
    pub merge: i64,
    pub activation: Activation,
    pub outputs: i64,
}

/// Returns `projector_hidden_act` of the model's config.
pub(in crate::model) fn projector_activation(keys: &Keys<'_>) -> Result<Activation, ModelConfigError> {
    activation(keys, "projector_hidden_act", Activation::Gelu)
}

/// Returns the encoder of `InternVLVisionConfig` or `InternVisionConfig`, its names under `prefix` and `projector`.
pub(in crate::model) fn read(
    keys: &Keys<'_>,
    names: InternNames,
    prefix: &str,
    projector: &str,
    shuffle: &PixelShuffle,
) -> Result<VisionConfig, ModelConfigError> {
    let original = names == InternNames::Original;
    let (width, num_heads) = (keys.size("hidden_size")?, keys.size("num_attention_heads")?);
    check_heads(keys, ("hidden_size", width), "num_attention_heads", num_heads, false)?;
    no_dropout(keys, &["hidden_dropout_prob", "attention_dropout", "projection_dropout", "dropout"])?;
    keys.only("use_mask_token", &[json!(false)])?;
    let eps = keys.number_or("layer_norm_eps")?.unwrap_or(1e-6);
    let norm = tower_norm(keys, original, eps)?;
    let (image_size, patch_size) =
        (square(keys, "image_size")?.unwrap_or(448), square(keys, "patch_size")?.unwrap_or(14));
    let side = image_size / patch_size;
    if side % shuffle.merge != 0 {
        let must = format!("must hold a multiple of {} patches a side, as downsample_ratio says", shuffle.merge);
        return Err(keys.inconsistent("image_size", image_size, must));
    }
    let flag = |key: &str, default: bool| keys.flag_or(key).map(|flag| flag.unwrap_or(default));
    let initializer_range = keys.number_or("initializer_range")?.unwrap_or(0.02);
    let scale_key = if original { "initializer_factor" } else { "layer_scale_init_value" };
    let scale = keys.number_or(scale_key)?.unwrap_or(0.1);
    let shared = BlockConfig {
        qkv_bias: flag(if original { "qkv_bias" } else { "attention_bias" }, false)?,
        qk_norm: flag(if original { "qk_normalization" } else { "use_qk_norm" }, original)?
            .then_some((["attn.q_norm", "attn.k_norm"], if original { eps } else { 1e-6 })),
        activation: activation(keys, "hidden_act", Activation::Gelu)?,
        scales: Some((["ls1", "ls2"], scale)),
        ..BlockConfig::new(width, num_heads, keys.size("intermediate_size")?, norm, initializer_range)
    };
    let block = match names {
        InternNames::Original => shared,
        InternNames::Transformers => BlockConfig {
            norms: ["layernorm_before", "layernorm_after"],
            qkv: vec!["attention.q_proj", "attention.k_proj", "attention.v_proj"],
            o: "attention.projection_layer",
            qk_norm: shared.qk_norm.map(|(_, eps)| (["attention.q_norm", "attention.k_norm"], eps)),
            scales: Some((["lambda_1", "lambda_2"], scale)),
            ..shared
        },
    };
    let embed = if original { "embeddings.patch_embedding" } else { "embeddings.patch_embeddings.projection" };
    let class = if original { "embeddings.class_embedding" } else { "embeddings.cls_token" };
    let pooled = original || flag("use_mean_pooling", true)?;
    let embed = PatchEmbed {
        name: embed,
        kernel: vec![keys.size_or("num_channels")?.unwrap_or(3), patch_size, patch_size],
        bias: true,
    };
    let tower = TowerConfig {
        order: PatchOrder::Raster,
        positions: flag("use_absolute_position_embeddings", true)?.then(|| positions(original, side, width)),
        class: Some(ClassToken { name: class, shape: vec![1, 1, width], registers: None, angles: None }),
        block_prefix: if original { "encoder.layers." } else { "encoder.layer." },
        final_norm: (!pooled).then_some(("layernorm", TowerNorm::Layer(eps))),
        ..TowerConfig::new(prefix, embed, shuffle.merge, keys.size("num_hidden_layers")?, block)
    };
    let projector = ProjectorConfig {
        prefix: projector.into(),
        inputs: width,
        merge: shuffle.merge,
        outputs: shuffle.outputs,
        kind: mlp(original, shuffle),
        initializer_range,
    };
    Ok(VisionConfig { tower, projector, deepstack: Vec::new() })
}

/// Returns the norms of the tower's layers, by `norm_type` or as the class has them.
fn tower_norm(keys: &Keys<'_>, original: bool, eps: f64) -> Result<TowerNorm, ModelConfigError> {
    keys.only("norm_type", &[json!("layer_norm"), json!("rms_norm")])?;
    match keys.text_or("norm_type")?.unwrap_or(if original { "rms_norm" } else { "layer_norm" }) {
        "rms_norm" => Ok(TowerNorm::Rms(eps)),
        _ => Ok(TowerNorm::Layer(eps)),
    }
}

/// Returns a position for each patch of a square with this `side`, and one for the class token.
fn positions(original: bool, side: i64, width: i64) -> PositionTable {
    PositionTable {
        name: if original { "embeddings.position_embedding" } else { "embeddings.position_embeddings" },
        shape: vec![1, side * side + 1, width],
        side,
        with_class: true,
        resampling: Resampling::Bicubic,
    }
}

/// Returns the projector's layers, behind a norm of the merged patches.
fn mlp(original: bool, shuffle: &PixelShuffle) -> ProjectorKind {
    let (norm, linears) = if original { ("0", ["1", "3"]) } else { ("layer_norm", ["linear_1", "linear_2"]) };
    ProjectorKind::Mlp {
        norm: Some(MergeNorm { name: norm, norm: PROJECTOR_NORM, merged: true }),
        linears,
        inner: shuffle.outputs,
        by_channel: false,
        activation: shuffle.activation,
    }
}
