//! A step between two blocks of a tower that makes one state of each window of 2 × 2 patches: attention within the window, then
//! two maps of the whole window beside the mean of its states (MiniCPM-V 4.6's `ViTWindowAttentionMerger`).
//!
//! Shapes: P patches, W windows, D hidden size.

use std::rc::Rc;

use loongforge_core::message::Grid;
use tch::{Device, Tensor};

use super::layout::{Layout, LayoutConfig, PatchOrder, Span};
use crate::device::upload;
use crate::model::tower_blocks::{Attention, BlockConfig, Norm, Part};
use crate::nn::{Activation, Linear, Mask, PackedAttention, take_rows};
use crate::params::{ParamSpec, ParamStore, Scope};
use crate::tape::{Policy, Slot, Tape};

/// Fixed in the reference: a window's side.
const SIDE: u32 = 2;
const STATES: i64 = (SIDE * SIDE) as i64;

/// Names are under `{tower}vit_merger.`
#[derive(Clone, Debug, PartialEq)]
pub struct Halving {
    /// The number of the block behind which it stands.
    pub after: i64,
    /// The tower's block: its attention has these names here too, and its MLP's width times four is the width inside of the maps.
    pub block: BlockConfig,
}

/// Returns the rows and columns of an item behind the step.
pub(super) fn halved(grid: Grid) -> Grid {
    Grid { h: grid.h / SIDE, w: grid.w / SIDE, ..grid }
}

impl Halving {
    fn prefix(tower: &str) -> String {
        format!("{tower}vit_merger.")
    }

    /// Declares the parameters of the step of a tower whose names begin with `tower`.
    pub(super) fn specs(&self, tower: &str) -> Vec<ParamSpec> {
        let (prefix, block) = (Self::prefix(tower), &self.block);
        let (whole, inner, std) = (STATES * block.width, STATES * block.inner, block.initializer_range);
        let mut specs = block.attention_specs(&prefix);
        specs.extend(block.norm.specs(&prefix, "pre_norm", whole));
        specs.extend(Linear::specs(&prefix, "linear_1", whole, inner, true, std));
        specs.extend(Linear::specs(&prefix, "linear_2", inner, block.width, true, std));
        specs
    }
}

/// The step on its parameters.
pub(super) struct HalvingStep {
    pub after: i64,
    attention: Part<Attention>,
    maps: Part<Maps>,
    device: Device,
}

struct Maps {
    norm: Norm,
    first: Linear,
    second: Linear,
}

impl HalvingStep {
    /// Takes the parameters that [`Halving::specs`] declares.
    pub fn new(config: &Halving, tower: &str, params: &ParamStore) -> HalvingStep {
        let prefix = Halving::prefix(tower);
        let maps = |scope: &Scope<'_>| Maps {
            norm: config.block.norm.build(scope, "pre_norm"),
            first: Linear::new(scope, "linear_1"),
            second: Linear::new(scope, "linear_2"),
        };
        HalvingStep {
            after: config.after,
            attention: Part::new(params, prefix.as_str(), |scope| config.block.attention(scope)),
            maps: Part::new(params, prefix, maps),
            device: params.flat().device(),
        }
    }

    /// Records the step on states `[P, D]` of items of these sizes, row by row of each frame: `[W, D]`, row by row as well.
    pub fn record(&self, tape: &mut Tape, grids: &[Grid], x: Slot, policy: Policy) -> Slot {
        let config = LayoutConfig {
            order: PatchOrder::Raster,
            merge: SIDE,
            span: Span::Frame,
            num_tokens: 0,
            keeps_tokens: false,
            window: None,
        };
        // What is merged lies window by window.
        let rows: Vec<i64> = Layout::new(grids, &config).merged.iter().map(|row| *row as i64).collect();
        let ends: Vec<usize> = (0..=rows.len()).step_by(STATES as usize).collect();
        let (windows, rows) = (PackedAttention::new(&ends, Mask::Full, self.device), Tensor::from_slice(&rows));
        let rows = Rc::new(upload(&rows, self.device));
        let by_window = move |reads: &[Tensor]| vec![take_rows(&reads[0], &rows)];
        let x = tape.run("windows", &[], policy, &[x], 1, by_window)[0];
        let attention = self.attention.part.clone();
        let attend = move |reads: &[Tensor]| vec![attention.forward(&reads[0], None, &windows)];
        let y = tape.run("window attention", &self.attention.ids, policy, &[x], 1, attend)[0];
        let x = tape.add(x, y);
        let maps = self.maps.part.clone();
        let merge = move |reads: &[Tensor]| vec![maps.forward(&reads[0])];
        tape.run("window merger", &self.maps.ids, policy, &[x], 1, merge)[0]
    }
}

impl Maps {
    /// Maps `[P, D]`, window by window, to `[W, D]`.
    fn forward(&self, x_PD: &Tensor) -> Tensor {
        let x_WPD = x_PD.unflatten(0, [-1, STATES]);
        let inner = self.first.forward(&self.norm.forward(&x_WPD.flatten(1, 2)));
        self.second.forward(&Activation::GeluTanh.forward(&inner)) + x_WPD.mean_dim(1i64, false, None)
    }
}
