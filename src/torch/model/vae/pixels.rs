//! Pixels as latents: the autoencoder "none". It has no parameters, and its latents are as large as the pictures.

use std::rc::Rc;

use loongforge_core::message::Grid;
use tch::Tensor;

use super::latent_patch::LatentPatch;
use crate::model::encoder::{EncoderFamily, EncoderModel, EncoderTape};
use crate::params::{ParamSpec, ParamStore};
use crate::tape::{Policy, Tape};

/// A tower whose features are an item's pixels, one row a token of the transformer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PixelLatents {
    /// Values of a pixel: 1 or 3.
    pub channels: i64,
    pub patch: LatentPatch,
}

impl EncoderFamily for PixelLatents {
    fn specs(&self) -> Vec<ParamSpec> {
        Vec::new()
    }

    fn build(&self, _params: &ParamStore, policy: Policy) -> Box<dyn EncoderModel> {
        let patch = self.patch;
        Box::new(move |grids: &[Grid]| record(patch, grids, policy))
    }

    fn patch_dim(&self) -> i64 {
        self.channels
    }

    fn num_features(&self, grid: Grid) -> usize {
        self.patch.tokens(size(grid)).iter().product::<i64>() as usize
    }
}

/// Returns the frames, rows and columns of an item.
pub(super) fn size(grid: Grid) -> [i64; 3] {
    [grid.t, grid.h, grid.w].map(i64::from)
}

fn record(patch: LatentPatch, grids: &[Grid], policy: Policy) -> EncoderTape {
    let mut tape = Tape::new();
    let pixels = tape.input(false);
    let sizes: Vec<[i64; 3]> = grids.iter().copied().map(size).collect();
    let forward = move |reads: &[Tensor]| {
        let lengths: Vec<i64> = sizes.iter().map(|size| size.iter().product()).collect();
        let items = reads[0].split_with_sizes(lengths, 0).into_iter().zip(&sizes);
        let rows: Vec<Tensor> = items.map(|(item, [t, h, w])| patch.rows(&item.view([*t, *h, *w, -1]))).collect();
        vec![Tensor::cat(&rows, 0)]
    };
    let rows = tape.run("latents", &[], policy, &[pixels], 1, forward)[0];
    EncoderTape { tape: Rc::new(tape), pixels, outputs: vec![rows] }
}
