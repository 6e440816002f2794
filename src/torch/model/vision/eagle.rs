//! Eagle 3's encoder (`Eagle3_VLForConditionalGeneration` of NVIDIA's GR00T N1.6): SigLIP 2's tower of native resolution, whose patches
//! are rows, columns and channels, in this order, and two maps behind a pixel unshuffle (`mlp1`). Attention in windows and rotary
//! embeddings, which its code can do and its published config turns off, are refused.

use serde_json::json;

use super::encoder::VisionConfig;
use super::projector::{MergeNorm, ProjectorConfig, ProjectorKind};
use super::siglip;
use super::tower_config::{PatchEmbed, PositionTable, TowerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::tower_blocks::TowerNorm;
use crate::nn::{Activation, Linear, Resampling};
use crate::params::{Init, ParamSpec};

/// torch's default, which the reference does not change.
const PROJECTOR_NORM: TowerNorm = TowerNorm::Layer(1e-5);
const INITIALIZER_RANGE: f64 = 0.02;

/// Returns the encoder of `keys` (`vision_config`), whose states `model` merges by its `downsample_ratio`. Names are under `prefix` and
/// `projector`, features have the width `outputs`.
pub(in crate::model) fn read(
    keys: &Keys<'_>,
    model: &Keys<'_>,
    prefix: &str,
    projector: &str,
    outputs: i64,
) -> Result<VisionConfig, ModelConfigError> {
    keys.only("model_type", &[json!("siglip2_vision_model")])?;
    // The defaults of its class turn both on.
    for key in ["use_rope", "use_windows_attn"] {
        if keys.flag_or(key)? != Some(false) {
            return Err(keys.inconsistent(key, "not false", "must be false"));
        }
    }
    let published = json!({
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16, "patch_size": 14,
    });
    let filled = keys.filled(&published);
    let VisionConfig { tower, projector, .. } = siglip::read(&keys.instead(&filled), prefix, projector, outputs)?;
    let num_patches = keys.size_or("num_patches")?.unwrap_or(256);
    let side = num_patches.isqrt();
    if side * side != num_patches {
        return Err(keys.inconsistent("num_patches", num_patches, "must be a square"));
    }
    let merge = merge_of(model)?;
    let (width, kernel) = (tower.width(), tower.patch_dim());
    let positions = tower.positions.map(|table| PositionTable {
        shape: vec![num_patches, width],
        side,
        resampling: Resampling::AntialiasedBilinear,
        ..table
    });
    let mut unused = tower.unused;
    if keys.flag_or("vision_use_head")?.unwrap_or(true) {
        unused.extend(head(&tower.prefix, width, tower.block.inner));
    }
    let embed = PatchEmbed { kernel: vec![kernel], ..tower.embed };
    let tower = TowerConfig { embed, merge, positions, unused, ..tower };
    let kind = ProjectorKind::Mlp {
        norm: Some(MergeNorm { name: "0", norm: PROJECTOR_NORM, merged: true }),
        linears: ["1", "3"],
        inner: outputs,
        activation: Activation::Gelu,
        by_channel: true,
    };
    Ok(VisionConfig { projector: ProjectorConfig { merge, kind, ..projector }, tower, deepstack: Vec::new() })
}

/// Returns the inverse of `downsample_ratio`.
fn merge_of(model: &Keys<'_>) -> Result<i64, ModelConfigError> {
    let ratio = model.number_or("downsample_ratio")?.unwrap_or(0.5);
    let merge = (1.0 / ratio).round();
    match (1.0..=16.0).contains(&merge) && (merge * ratio - 1.0).abs() < 1e-9 {
        true => Ok(merge as i64),
        false => Err(model.inconsistent("downsample_ratio", ratio, "must be 1 over a whole number, at most 16")),
    }
}

/// Returns the parameters of the head that pools a picture (`Siglip2MultiheadAttentionPoolingHead`), which the checkpoint has, but by
/// which nothing is computed.
fn head(prefix: &str, width: i64, inner: i64) -> Vec<ParamSpec> {
    let prefix = format!("{prefix}head.");
    let own = |name: &str, shape: &[i64], init| ParamSpec::new(format!("{prefix}{name}"), shape, init);
    let normal = Init::Normal(INITIALIZER_RANGE);
    let linear = |name: &str, inputs, outputs| Linear::specs(&prefix, name, inputs, outputs, true, INITIALIZER_RANGE);
    let mut specs = vec![
        own("probe", &[1, 1, width], normal),
        own("attention.in_proj_weight", &[3 * width, width], normal),
        own("attention.in_proj_bias", &[3 * width], Init::Zeros),
    ];
    specs.extend(linear("attention.out_proj", width, width));
    specs.extend(TowerNorm::Layer(1e-6).specs(&prefix, "layernorm", width));
    specs.extend(linear("mlp.fc1", width, inner));
    specs.extend(linear("mlp.fc2", inner, width));
    specs
}
