//! Qwen3-VL's tower and mergers (`Qwen3VLVisionModel`), which are Qwen3.5's as well: learned positions beside the rotary
//! ones, and DeepStack mergers after some blocks.

use super::encoder::VisionConfig;
use super::keys::{activation, axial_theta, width_and_heads};
use super::projector::{MergeNorm, ProjectorConfig, ProjectorKind};
use super::tower_config::{PatchEmbed, PositionTable, TowerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::tower_blocks::{AxialOrder, AxialRope, BlockConfig, MlpNames, TowerNorm};
use crate::nn::{Activation, Resampling};

/// Fixed in the reference, not configured.
const NORM: TowerNorm = TowerNorm::Layer(1e-6);

/// Returns the encoder of `Qwen3VLVisionConfig`, its names under `prefix` and `merger`.
pub(in crate::model) fn read(
    keys: &Keys<'_>,
    prefix: &str,
    merger: &str,
    outputs: i64,
) -> Result<VisionConfig, ModelConfigError> {
    let (width, num_heads) = width_and_heads(keys)?;
    let size = |key: &str, default: i64| keys.size_or(key).map(|size| size.unwrap_or(default));
    let (patch_size, merge) = (size("patch_size", 16)?, size("spatial_merge_size", 2)?);
    let channels = keys.size_or("in_channels")?.unwrap_or(3);
    let initializer_range = keys.number_or("initializer_range")?.unwrap_or(0.02);
    let num_blocks = keys.size("depth")?;
    let deepstack = deepstack(keys, num_blocks)?;
    let embed = PatchEmbed {
        name: "patch_embed.proj",
        kernel: vec![channels, size("temporal_patch_size", 2)?, patch_size, patch_size],
        bias: true,
    };
    let block = BlockConfig {
        mlp: MlpNames::Plain(["mlp.linear_fc1", "mlp.linear_fc2"]),
        activation: activation(keys, "hidden_act", Activation::GeluTanh)?,
        ..BlockConfig::new(width, num_heads, keys.size("intermediate_size")?, NORM, initializer_range)
    };
    let tower = TowerConfig {
        positions: Some(positions(keys, width)?),
        rope: Some(AxialRope { theta: axial_theta(keys)?, order: AxialOrder::Halves }),
        deepstack: deepstack.iter().map(|(block, _)| *block).collect(),
        ..TowerConfig::new(prefix, embed, merge, num_blocks, block)
    };
    let projector = |prefix: String, merged: bool| ProjectorConfig {
        prefix,
        inputs: width,
        merge,
        outputs,
        kind: ProjectorKind::Mlp {
            norm: Some(MergeNorm { name: "norm", norm: NORM, merged }),
            linears: ["linear_fc1", "linear_fc2"],
            inner: width * merge.pow(2),
            by_channel: false,
            activation: Activation::Gelu,
        },
        initializer_range,
    };
    let deepstack = deepstack
        .iter()
        .map(|(_, number)| projector(format!("{prefix}deepstack_merger_list.{number}."), true))
        .collect();
    Ok(VisionConfig { projector: projector(merger.into(), false), deepstack, tower })
}

fn positions(keys: &Keys<'_>, width: i64) -> Result<PositionTable, ModelConfigError> {
    let entries = keys.size_or("num_position_embeddings")?.unwrap_or(2304);
    Ok(PositionTable {
        name: "pos_embed.weight",
        shape: vec![entries, width],
        // Entries behind the largest square are not used, as in the reference.
        side: entries.isqrt(),
        with_class: false,
        resampling: Resampling::Bilinear,
    })
}

/// Returns the blocks after which states are taken, in rising order, and the number of each one's merger: mergers are numbered as the
/// config lists the blocks.
fn deepstack(keys: &Keys<'_>, depth: i64) -> Result<Vec<(i64, usize)>, ModelConfigError> {
    let key = "deepstack_visual_indexes";
    let indexes = if keys.value(key).is_some() { keys.indices(key)? } else { Vec::new() };
    let mut sorted: Vec<(i64, usize)> = indexes.iter().enumerate().map(|(number, block)| (*block, number)).collect();
    sorted.sort_unstable();
    let different = sorted.windows(2).all(|pair| pair[0].0 < pair[1].0);
    if different && sorted.last().is_none_or(|(last, _)| *last < depth) {
        return Ok(sorted);
    }
    let must = format!("must be different blocks below depth ({depth})");
    Err(keys.inconsistent(key, format!("{indexes:?}"), must))
}
