//! A sample as the model takes it: plain buffers.

use crate::message::{Grid, ItemMeta, SampleId, SampleMeta};

/// Target of a position that does not count in the loss: the `ignore_index` of cross entropy.
pub const IGNORE_INDEX: i64 = -100;

/// One sample, pictures included. `num_tokens` is `meta.num_tokens`.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub meta: SampleMeta,
    /// [num_tokens]; a picture's placeholders are repeated, one for each of its features.
    pub input_ids: Vec<i64>,
    /// [3, num_tokens], rows of frames, rows, columns, as Qwen3-VL's `get_rope_index`; they begin at 0.
    pub position_ids: Vec<i64>,
    /// [num_tokens]; the next token where it counts, [`IGNORE_INDEX`] elsewhere.
    pub targets: Vec<i64>,
    pub images: Vec<Image>,
}

/// One picture, ready for the encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    pub grid: Grid,
    /// [patches, patch_dim], patches in the order in which the model merges them.
    pub pixels: Vec<f32>,
}

impl Sample {
    pub(super) fn new(
        id: SampleId,
        input_ids: Vec<i64>,
        position_ids: Vec<i64>,
        targets: Vec<i64>,
        images: Vec<Image>,
        merge_size: usize,
    ) -> Self {
        let items = images
            .iter()
            .map(|image| ItemMeta {
                grid: image.grid,
                num_features: (image.grid.num_patches() / (merge_size * merge_size)) as u32,
            })
            .collect();
        let num_targets = targets.iter().filter(|&&target| target != IGNORE_INDEX).count() as u32;
        let meta = SampleMeta { id, owner: 0, num_tokens: input_ids.len() as u32, num_targets, items };
        Self { meta, input_ids, position_ids, targets, images }
    }
}
