//! DINOv2's tower, without and with registers (`Dinov2Model`, `Dinov2WithRegistersModel`), and LLaVA's projector: branches that
//! are scaled, learned tokens that are dropped at the end, and positions that are fitted to pictures of any size.

use super::encoder::VisionConfig;
use super::keys::{activation, check_heads, feature_layer, merge, mlp_width, no_dropout, square};
use super::layout::PatchOrder;
use super::projector::ProjectorConfig;
use super::tower_config::{ClassToken, PatchEmbed, PositionTable, TowerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::tower_blocks::{BlockConfig, MlpNames, TowerNorm};
use crate::nn::{Activation, Resampling};
use crate::params::{Init, ParamSpec};

/// Returns the encoder of `Dinov2Config` or, `with_registers`, `Dinov2WithRegistersConfig`, its names under `prefix` and `projector`,
/// with features of width `outputs`: the last states behind their norm, or those of `vision_feature_layer` without one.
pub(in crate::model) fn read(
    keys: &Keys<'_>,
    prefix: &str,
    projector: &str,
    outputs: i64,
    with_registers: bool,
) -> Result<VisionConfig, ModelConfigError> {
    let size = |key: &str, default: i64| keys.size_or(key).map(|size| size.unwrap_or(default));
    let (width, num_heads) = (size("hidden_size", 768)?, size("num_attention_heads", 12)?);
    check_heads(keys, ("hidden_size", width), "num_attention_heads", num_heads, false)?;
    no_dropout(keys, &["hidden_dropout_prob", "attention_probs_dropout_prob", "drop_path_rate"])?;
    let num_blocks = size("num_hidden_layers", 12)?;
    let layer = feature_layer(keys, num_blocks, None)?;
    let used = layer.unwrap_or(num_blocks);
    let patch_size = square(keys, "patch_size")?.unwrap_or(if with_registers { 16 } else { 14 });
    let side = square(keys, "image_size")?.unwrap_or(224) / patch_size;
    let merge = merge(keys)?;
    let norm = TowerNorm::Layer(keys.number_or("layer_norm_eps")?.unwrap_or(1e-6));
    let initializer_range = keys.number_or("initializer_range")?.unwrap_or(0.02);
    let kernel = vec![size("num_channels", 3)?, patch_size, patch_size];
    let positions = PositionTable {
        name: "embeddings.position_embeddings",
        shape: vec![1, side * side + 1, width],
        side,
        with_class: true,
        resampling: if with_registers { Resampling::Antialiased } else { Resampling::Bicubic },
    };
    let flag = |key: &str, default: bool| keys.flag_or(key).map(|flag| flag.unwrap_or(default));
    let inner = mlp_width(keys, width)?;
    let (inner, mlp, activation) = match flag("use_swiglu_ffn", false)? {
        false => (inner, MlpNames::Plain(["mlp.fc1", "mlp.fc2"]), activation(keys, "hidden_act", Activation::Gelu)?),
        // The reference takes two thirds of it, and more up to a multiple of 8.
        true => {
            let inner = ((inner * 2 / 3) + 7) / 8 * 8;
            (inner, MlpNames::Joint(["mlp.weights_in", "mlp.weights_out"]), Activation::Silu)
        }
    };
    let block = BlockConfig {
        qkv: vec!["attention.attention.query", "attention.attention.key", "attention.attention.value"],
        qkv_bias: flag("qkv_bias", true)?,
        o: "attention.output.dense",
        mlp,
        activation,
        scales: Some((
            ["layer_scale1.lambda1", "layer_scale2.lambda1"],
            keys.number_or("layerscale_value")?.unwrap_or(1.0),
        )),
        ..BlockConfig::new(width, num_heads, inner, norm, initializer_range)
    };
    let last_norm = ("layernorm", norm);
    let mut unused = if layer.is_none() { Vec::new() } else { norm.specs(prefix, last_norm.0, width) };
    if with_registers || flag("use_mask_token", true)? {
        unused.push(ParamSpec::new(format!("{prefix}embeddings.mask_token"), &[1, width], Init::Zeros));
    }
    let registers = match with_registers {
        true => Some(("embeddings.register_tokens", size("num_register_tokens", 4)?)),
        false => None,
    };
    let embed = PatchEmbed { name: "embeddings.patch_embeddings.projection", kernel, bias: true };
    let tower = TowerConfig {
        order: PatchOrder::Raster,
        positions: Some(positions),
        class: Some(ClassToken { name: "embeddings.cls_token", shape: vec![1, 1, width], registers, angles: None }),
        block_prefix: "encoder.layer.",
        final_norm: layer.is_none().then_some(last_norm),
        unused_blocks: num_blocks - used,
        unused,
        ..TowerConfig::new(prefix, embed, merge, used, block)
    };
    let projector = ProjectorConfig::two_maps(projector, [width, outputs], merge, Activation::Gelu, initializer_range);
    Ok(VisionConfig { tower, projector, deepstack: Vec::new() })
}
