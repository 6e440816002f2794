//! ERNIE-4.5-VL's tower and resampler (`Ernie4_5_VLMoeVisionTransformerPretrainedModel`).

use serde_json::json;

use super::encoder::VisionConfig;
use super::keys::{activation, axial_theta, mlp_width, square, width_and_heads};
use super::projector::{ProjectorConfig, ProjectorKind};
use super::tower_config::{PatchEmbed, TowerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::tower_blocks::{AxialOrder, AxialRope, BlockConfig, TowerNorm};
use crate::nn::Activation;

/// Returns the encoder of `Ernie4_5_VLMoeVisionConfig` or the published `DFNRopeVisionTransformerConfig`, its names under `prefix` and
/// `resampler`; `after_eps` is of the resampler's last norm.
pub(in crate::model) fn read(
    keys: &Keys<'_>,
    prefix: &str,
    resampler: &str,
    after_eps: f64,
    outputs: i64,
) -> Result<VisionConfig, ModelConfigError> {
    let (width, num_heads) = width_and_heads(keys)?;
    keys.only("temporal_merge_size", &[json!(2)])?;
    let patch_size = square(keys, "patch_size")?.unwrap_or(14);
    let merge = keys.size_or("spatial_merge_size")?.unwrap_or(2);
    let eps = keys.number_or("rms_norm_eps")?.unwrap_or(1e-6);
    let initializer_range = keys.number_or("initializer_range")?.unwrap_or(0.02);
    let channels = keys.size_or("in_channels")?.or(keys.size_or("in_chans")?).unwrap_or(3);
    let embed = PatchEmbed { name: "patch_embed.proj", kernel: vec![channels * patch_size * patch_size], bias: false };
    let inner = match keys.size_or("intermediate_size")? {
        Some(inner) => inner,
        None => mlp_width(keys, width)?,
    };
    let block = BlockConfig {
        activation: activation(keys, "hidden_act", Activation::QuickGelu)?,
        ..BlockConfig::new(width, num_heads, inner, TowerNorm::Layer(eps), initializer_range)
    };
    let tower = TowerConfig {
        rope: Some(AxialRope { theta: axial_theta(keys)?, order: AxialOrder::Halves }),
        final_norm: Some(("ln", TowerNorm::Layer(eps))),
        ..TowerConfig::new(prefix, embed, merge, keys.size("depth")?, block)
    };
    let projector = ProjectorConfig {
        prefix: resampler.into(),
        inputs: width,
        merge,
        outputs,
        kind: ProjectorKind::Resampler { eps, after_eps },
        initializer_range,
    };
    Ok(VisionConfig { tower, projector, deepstack: Vec::new() })
}
