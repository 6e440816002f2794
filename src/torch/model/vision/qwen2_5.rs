//! Qwen2.5-VL's tower and merger (`Qwen2_5_VisionTransformerPretrainedModel`): attention in windows but for some
//! blocks, root mean square norms, gated MLPs.

use serde_json::json;

use super::encoder::VisionConfig;
use super::keys::{activation, axial_theta, width_and_heads};
use super::projector::ProjectorConfig;
use super::tower_config::{PatchEmbed, TowerConfig, Windows};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::tower_blocks::{AxialOrder, AxialRope, BlockConfig, MlpNames, TowerNorm};
use crate::nn::Activation;

/// Fixed in the reference, not configured.
const NORM: TowerNorm = TowerNorm::Rms(1e-6);

/// Returns the encoder of `Qwen2_5_VLVisionConfig`, its names under `prefix` and `merger`.
pub(in crate::model) fn read(
    keys: &Keys<'_>,
    prefix: &str,
    merger: &str,
    outputs: i64,
) -> Result<VisionConfig, ModelConfigError> {
    // Folders that older releases of transformers saved leave out what is the class's default.
    let filled = keys.filled(&json!({"hidden_size": 3584, "num_heads": 16, "depth": 32, "intermediate_size": 3420,
        "patch_size": 14, "fullatt_block_indexes": [7, 15, 23, 31]}));
    let keys = &keys.instead(&filled);
    let (width, num_heads) = width_and_heads(keys)?;
    let patch_size = keys.size("patch_size")?;
    let merge = keys.size_or("spatial_merge_size")?.unwrap_or(2);
    let window_size = keys.size_or("window_size")?.unwrap_or(112);
    let side = window_size / merge / patch_size;
    if side == 0 {
        let must = format!("must be at least spatial_merge_size x patch_size ({})", merge * patch_size);
        return Err(keys.inconsistent("window_size", window_size, must));
    }
    let channels = keys.size_or("in_channels")?.or(keys.size_or("in_chans")?).unwrap_or(3);
    let frames = keys.size_or("temporal_patch_size")?.unwrap_or(2);
    let initializer_range = keys.number_or("initializer_range")?.unwrap_or(0.02);
    let embed =
        PatchEmbed { name: "patch_embed.proj", kernel: vec![channels, frames, patch_size, patch_size], bias: false };
    let block = BlockConfig {
        mlp: MlpNames::Gated(["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]),
        activation: activation(keys, "hidden_act", Activation::Silu)?,
        ..BlockConfig::new(width, num_heads, keys.size("intermediate_size")?, NORM, initializer_range)
    };
    let tower = TowerConfig {
        rope: Some(AxialRope { theta: axial_theta(keys)?, order: AxialOrder::Halves }),
        windows: Some(Windows { side, full_blocks: keys.indices("fullatt_block_indexes")? }),
        ..TowerConfig::new(prefix, embed, merge, keys.size("depth")?, block)
    };
    let projector = ProjectorConfig::patch_merger(merger, [width, outputs], merge, NORM, initializer_range);
    Ok(VisionConfig { tower, projector, deepstack: Vec::new() })
}
