//! Tables that Wan's blocks read of a micro-batch beside their hidden states.

use std::rc::Rc;

use tch::{Device, Tensor};

use super::config::WanConfig;
use crate::model::dit::network::Work;
use crate::model::dit::rope::{places, rotation};
use crate::model::dit::sample::Sample;
use crate::model::dit::segments::Segments;
use crate::model::dit::share::{Samples, of_tokens};
use crate::model::tower_blocks::Rotation;
use crate::nn::{CrossAttention, DocumentKeys};

/// The tables that the branches of a block read beside their rows; made once a micro-batch, for all blocks.
pub(in crate::model) struct Tables {
    pub segments: Segments,
    pub rotation: Rotation,
    pub prompts: CrossAttention,
    /// `None` without pictures.
    pub pictures: Option<CrossAttention>,
}

/// Made once a micro-batch, for all blocks.
pub(super) struct Context {
    pub tables: Tables,
    /// Noise levels of the rows of modulations.
    pub levels: Vec<f64>,
    /// Tokens of a clip attend to each other.
    pub clips: Samples,
    /// This rank's tokens among those of all samples; `None`: all of them.
    pub own: Option<Rc<Tensor>>,
}

/// Returns the number of tokens of a frame.
pub(super) fn frame(sample: &Sample) -> i64 {
    i64::from(sample.grid.h) * i64::from(sample.grid.w)
}

/// Returns the ends of the tokens of samples: `[0, …, T]`.
pub(super) fn ends(work: &Work<'_>) -> Vec<usize> {
    let mut ends = vec![0];
    work.samples.iter().for_each(|sample| ends.push(ends[ends.len() - 1] + sample.num_tokens() as usize));
    ends
}

impl WanConfig {
    /// Returns whether the first latent frame of a sample is given, clean (TI2V).
    pub(super) fn is_given(&self, sample: &Sample) -> bool {
        self.mask_channels() == 0 && !sample.conditions.is_empty()
    }

    /// Returns the segments of a micro-batch, `(tokens, row)` each, and the noise level of each row: one for a sample, and another for a
    /// frame of it that is given.
    pub(super) fn segments(&self, work: &Work<'_>) -> (Vec<(i64, i64)>, Vec<f64>) {
        let (mut segments, mut levels) = (Vec::new(), Vec::new());
        for (sample, sigma) in work.samples.iter().zip(work.sigma) {
            let clean = if self.is_given(sample) { frame(sample) } else { 0 };
            for (tokens, level) in [(clean, 0.0), (sample.num_tokens() - clean, *sigma)] {
                if tokens > 0 {
                    segments.push((tokens, levels.len() as i64));
                    levels.push(level);
                }
            }
        }
        (segments, levels)
    }

    /// Makes the tables of a micro-batch on `device`: which tokens attend to each other and to which text, their rotations, and
    /// the noise level of each.
    pub(super) fn context(&self, work: &Work<'_>, device: Device) -> Context {
        let (mut segments, levels) = self.segments(work);
        let ends = ends(work);
        let mut turned: Vec<_> = work.samples.iter().flat_map(|sample| places(sample.grid, [0; 3])).collect();
        let clips = Samples::new(&ends, work.share, device);
        let (mut own_ends, mut own) = (ends.clone(), None);
        if let Some(row) = clips.shared() {
            let tokens = row.split().rows(row.rank());
            segments = of_tokens(&segments, &tokens);
            turned = tokens.iter().map(|token| turned[*token as usize]).collect();
            own_ends = row.split().cu_seqlens(row.rank());
            own = Some(Rc::new(row.rows()));
        }
        // Rows of text behind a prompt are equal: one row, the last, stands for all of them.
        let prompt = |sample: &Sample| {
            let missing = self.text_rows - (sample.text.end - sample.text.start);
            let missing = if sample.text.is_empty() { missing.max(1) } else { missing };
            let extra = (missing > 0).then(|| (work.num_text, (missing as f64).ln()));
            DocumentKeys { rows: sample.text.clone(), extra }
        };
        let pictures = |sample: &Sample| {
            let ends = sample.pictures.first().zip(sample.pictures.last());
            DocumentKeys { rows: ends.map_or(0..0, |(first, last)| first.start..last.end), extra: None }
        };
        let meet = |keys: &dyn Fn(&Sample) -> DocumentKeys, count| {
            let keys: Vec<DocumentKeys> = work.samples.iter().map(keys).collect();
            CrossAttention::new(&own_ends, &keys, count, device)
        };
        let has_pictures = self.image.is_some() && work.num_pictures > 0;
        let tables = Tables {
            segments: Segments::new(&segments, levels.len() as i64, device),
            rotation: rotation(&turned, self.axes(), device),
            prompts: meet(&prompt, work.num_text + 1),
            pictures: has_pictures.then(|| meet(&pictures, work.num_pictures)),
        };
        Context { tables, levels, clips, own }
    }
}
