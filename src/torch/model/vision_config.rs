//! The config of Qwen3-VL's vision transformer.

use serde_json::json;

use super::keys::{Keys, ModelConfigError};
use crate::nn::Gelu;

/// `Qwen3VLVisionConfig`. Names are Hugging Face's.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    pub depth: i64,
    pub hidden_size: i64,
    pub intermediate_size: i64,
    pub num_heads: i64,
    pub in_channels: i64,
    pub patch_size: i64,
    pub temporal_patch_size: i64,
    pub spatial_merge_size: i64,
    pub out_hidden_size: i64,
    /// A square: the table has this many entries, its root on each side.
    pub num_position_embeddings: i64,
    /// After these blocks features are taken for the decoder's first layers.
    pub deepstack_visual_indexes: Vec<i64>,
    pub hidden_act: Gelu,
    pub initializer_range: f64,
    pub rope_theta: f64,
}

impl VisionConfig {
    pub(super) fn read(keys: &Keys<'_>) -> Result<VisionConfig, ModelConfigError> {
        let supported = [json!("gelu_pytorch_tanh"), json!("gelu")];
        keys.only("hidden_act", &supported)?;
        let hidden_act = if keys.text_or("hidden_act")? == Some("gelu") { Gelu::Exact } else { Gelu::Tanh };
        let rope = keys.section_or("rope_parameters")?;
        let rope_theta = match rope {
            Some(rope) => {
                rope.only("rope_type", &[json!("axial")])?;
                rope.number_or("rope_theta")?
            }
            None => None,
        };
        let config = VisionConfig {
            depth: keys.size("depth")?,
            hidden_size: keys.size("hidden_size")?,
            intermediate_size: keys.size("intermediate_size")?,
            num_heads: keys.size("num_heads")?,
            in_channels: keys.size_or("in_channels")?.unwrap_or(3),
            patch_size: keys.size("patch_size")?,
            temporal_patch_size: keys.size("temporal_patch_size")?,
            spatial_merge_size: keys.size("spatial_merge_size")?,
            out_hidden_size: keys.size("out_hidden_size")?,
            num_position_embeddings: keys.size("num_position_embeddings")?,
            deepstack_visual_indexes: keys.indices("deepstack_visual_indexes")?,
            hidden_act,
            initializer_range: keys.number_or("initializer_range")?.unwrap_or(0.02),
            rope_theta: rope_theta.unwrap_or(10_000.0),
        };
        config.check(keys)?;
        Ok(config)
    }

    fn check(&self, keys: &Keys<'_>) -> Result<(), ModelConfigError> {
        if self.hidden_size % (4 * self.num_heads) != 0 {
            let must = format!("must be a multiple of 4 x num_heads ({})", 4 * self.num_heads);
            return Err(keys.inconsistent("hidden_size", self.hidden_size, must));
        }
        if self.side() * self.side() != self.num_position_embeddings {
            return Err(keys.inconsistent("num_position_embeddings", self.num_position_embeddings, "must be a square"));
        }
        let mut indexes = self.deepstack_visual_indexes.clone();
        indexes.sort_unstable();
        indexes.dedup();
        let beyond = indexes.last().is_some_and(|last| *last >= self.depth);
        if beyond || indexes.len() != self.deepstack_visual_indexes.len() {
            let (found, must) =
                (format!("{:?}", self.deepstack_visual_indexes), "must be different blocks below depth");
            return Err(keys.inconsistent("deepstack_visual_indexes", found, format!("{must} ({})", self.depth)));
        }
        Ok(())
    }

    /// Entries on each side of the position table.
    pub fn side(&self) -> i64 {
        (self.num_position_embeddings as f64).sqrt().round() as i64
    }

    /// Values of one patch.
    pub fn patch_dim(&self) -> i64 {
        self.in_channels * self.temporal_patch_size * self.patch_size * self.patch_size
    }
}
