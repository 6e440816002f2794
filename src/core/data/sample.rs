//! A sample as the model takes it: plain buffers.

use super::{ColumnView, SampleColumn, Values};
use crate::message::{Grid, ItemMeta, SampleId, SampleMeta, Sigma, Target, Tower};

/// Target of a position that does not count in the loss: the `ignore_index` of cross entropy.
pub const IGNORE_INDEX: i64 = -100;

/// One sample, pictures, videos and recordings included. `num_tokens` is `meta.num_tokens`.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub meta: SampleMeta,
    /// [num_tokens]; the model's image token stands for every feature of pictures and of videos, its audio token
    /// for every feature of recordings.
    pub input_ids: Vec<i64>,
    /// [3, num_tokens], rows of frames, rows, columns, from 0 in each of `meta.document_lens()`, and once more where a decoder of
    /// its own reads the answer; equal rows where positions have one axis. Real numbers, as Qwen3-Omni counts time; they are whole
    /// everywhere else.
    pub position_ids: Vec<f32>,
    /// [num_tokens]; the next token where it counts, [`IGNORE_INDEX`] elsewhere.
    pub targets: Vec<i64>,
    /// Columns that the model reads beside those of tokens, in its order; a sample with a target has no columns of tokens.
    pub columns: Vec<SampleColumn>,
    /// Pictures, videos and recordings in the order of their first placeholders.
    pub media: Vec<Media>,
    /// Files of the record that `media` are of: its first ones, as a sample may be truncated.
    pub num_sources: usize,
}

/// A picture, a video or a part of one, or a recording: what the encoder takes at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Media {
    pub tower: Tower,
    /// Patches of a picture or a video; of a recording frames × 1 × 1.
    pub grid: Grid,
    /// Rows that the encoder makes of it.
    pub num_features: usize,
    /// [patches, patch_dim], patches in the order in which the model takes them; of a recording [frames, mel bins].
    pub pixels: Vec<f32>,
}

impl Sample {
    /// Creates a sample without sources.
    pub(super) fn new(
        id: SampleId,
        input_ids: Vec<i64>,
        position_ids: Vec<f32>,
        targets: Vec<i64>,
        media: Vec<Media>,
    ) -> Self {
        let meta =
            |item: &Media| ItemMeta { tower: item.tower, grid: item.grid, num_features: item.num_features as u32 };
        let items = media.iter().map(meta).collect();
        let num_targets = targets.iter().filter(|&&target| target != IGNORE_INDEX).count() as u32;
        let num_tokens = input_ids.len() as u32;
        let meta = SampleMeta { items, ..SampleMeta::of_tokens(id, num_tokens, num_targets) };
        Self { meta, input_ids, position_ids, targets, columns: Vec::new(), media, num_sources: 0 }
    }

    /// Makes a sample for a diffusion model, without sources. `target` is the size of the latent that it makes, `num_tokens` counts the
    /// tokens of this and of references, and `num_targets` is its weight in the loss.
    pub fn of_target(id: SampleId, target: Grid, [num_tokens, num_targets]: [u32; 2], media: Vec<Media>) -> Self {
        let mut sample = Self::new(id, Vec::new(), Vec::new(), Vec::new(), media);
        sample.meta.target = Some(Target { grid: target, sigma: Sigma::default() });
        (sample.meta.num_tokens, sample.meta.num_targets) = (num_tokens, num_targets);
        sample
    }

    /// Returns the same sample with columns beside those of its tokens.
    #[must_use]
    pub fn with_columns(mut self, columns: Vec<SampleColumn>) -> Self {
        let tokens = self.input_ids.len() as u64 * SampleMeta::BYTES_PER_TOKEN;
        self.meta.column_bytes = tokens as u32 + columns.iter().map(SampleColumn::num_bytes).sum::<usize>() as u32;
        self.columns = columns;
        self
    }

    /// Returns its columns in the order in which they are sent: `input_ids [T]`, `position_ids [3, T]` and `targets [T]`, then the
    /// others.
    pub fn all_columns(&self) -> impl Iterator<Item = ColumnView<'_>> {
        let rows = self.input_ids.len();
        let num_token_columns = if self.meta.target.is_some() { 0 } else { 3 };
        let column = |name, before, values| ColumnView { name, before, rows, after: &[], values };
        let tokens = [
            column("input_ids", &[][..], Values::I64(&self.input_ids)),
            column("position_ids", &[3], Values::F32(&self.position_ids)),
            column("targets", &[], Values::I64(&self.targets)),
        ];
        tokens.into_iter().take(num_token_columns).chain(self.columns.iter().map(SampleColumn::view))
    }

    /// Returns the number of bytes of the sample's contents in memory.
    pub fn num_bytes(&self) -> u64 {
        let pixels: usize = self.media.iter().map(|item| item.pixels.len()).sum();
        (pixels * size_of::<f32>()) as u64 + u64::from(self.meta.column_bytes)
    }
}
