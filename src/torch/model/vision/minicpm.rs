//! MiniCPM-V 4.6's tower (`MiniCPMV4_6VisionModel`) and its merger: SigLIP's with positions by each picture's own grid, and a step
//! behind one of its first blocks that halves rows and columns.

use serde_json::json;

use super::encoder::VisionConfig;
use super::halving::Halving;
use super::keys::square;
use super::projector::{MergeNorm, ProjectorConfig, ProjectorKind};
use super::siglip;
use super::tower_config::TowerConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::tower_blocks::TowerNorm;
use crate::nn::{Activation, Resampling};

type Result<T> = std::result::Result<T, ModelConfigError>;

/// Fixed in the reference, not configured: the side of the squares of states that are merged, in the tower and behind it.
const MERGE: i64 = 2;
const MERGER_EPS: f64 = 1e-6;
/// The block behind which rows and columns are halved, where a config says nothing.
const HALVED_AFTER: i64 = 6;

/// Returns the encoder of `MiniCPMV4_6VisionConfig` with the merger that its models have, its names under `prefix` and `projector`, with
/// features of width `outputs`: one for 16 patches.
pub(in crate::model) fn read(keys: &Keys<'_>, prefix: &str, projector: &str, outputs: i64) -> Result<VisionConfig> {
    read_with(keys, keys, prefix, projector, outputs)
}

/// Returns the same encoder where `model` has the keys of the whole model: `insert_layer_id`, which goes before the tower's, and
/// `downsample_mode`, by which there may be a feature for 4 patches.
pub(in crate::model) fn read_with(
    keys: &Keys<'_>,
    model: &Keys<'_>,
    prefix: &str,
    projector: &str,
    outputs: i64,
) -> Result<VisionConfig> {
    for (of, key) in [(keys, "window_kernel_size"), (model, "merge_kernel_size")] {
        if let Some(side) = square(of, key)?.filter(|side| *side != MERGE) {
            return Err(of.inconsistent(key, side, format!("must be [{MERGE}, {MERGE}]")));
        }
    }
    model.only("merger_times", &[json!(1)])?;
    model.only("drop_vision_last_layer", &[json!(false)])?;
    keys.only("vision_feature_layer", &[])?;
    keys.only("spatial_merge_size", &[])?;
    model.only("downsample_mode", &[json!("16x"), json!("4x")])?;
    let VisionConfig { tower, projector, .. } = siglip::read_at(keys, prefix, projector, outputs)?;
    let halving = Halving { after: halved_after(keys, model, tower.num_blocks)?, block: tower.block.clone() };
    let is_halved = model.text_or("downsample_mode")? != Some("4x");
    // The checkpoint has its parameters in any case.
    let unused = if is_halved { Vec::new() } else { halving.specs(&tower.prefix) };
    let positions =
        tower.positions.map(|table| super::PositionTable { resampling: Resampling::BucketedQuotient, ..table });
    let tower = TowerConfig { merge: MERGE, positions, halving: is_halved.then_some(halving), unused, ..tower };
    let norm = MergeNorm { name: "pre_norm", norm: TowerNorm::Layer(MERGER_EPS), merged: true };
    let kind = ProjectorKind::Mlp {
        norm: Some(norm),
        linears: ["linear_1", "linear_2"],
        inner: tower.width() * MERGE.pow(2),
        by_channel: false,
        activation: Activation::Gelu,
    };
    let prefix = format!("{}mlp.0.", projector.prefix);
    Ok(VisionConfig {
        projector: ProjectorConfig { prefix, merge: MERGE, kind, ..projector },
        tower,
        deepstack: Vec::new(),
    })
}

fn halved_after(keys: &Keys<'_>, model: &Keys<'_>, num_blocks: i64) -> Result<i64> {
    let key = "insert_layer_id";
    let after = model.integer_or(key)?.unwrap_or(HALVED_AFTER);
    if let Some(own) = keys.integer_or(key)?.filter(|own| *own != after) {
        return Err(keys.inconsistent(key, own, format!("must equal the whole model's ({after})")));
    }
    match (0..num_blocks).contains(&after) {
        true => Ok(after),
        false => Err(model.inconsistent(key, after, format!("must be one of the {num_blocks} blocks, from 0"))),
    }
}
