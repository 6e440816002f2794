//! A vision tower as data: every tower that is built in is the same computation with other choices. A file of each family beside this one
//! reads these choices from the family's `config.json`.

use loongforge_core::message::Grid;

use super::halving::{Halving, halved};
use super::layout::{LayoutConfig, PatchOrder, Span};
use crate::model::tower_blocks::{AxialRope, BlockConfig, TowerNorm};
use crate::nn::Resampling;
use crate::params::{Init, ParamSpec};

/// A tower: patches in, their states in merge order out.
#[derive(Clone, Debug, PartialEq)]
pub struct TowerConfig {
    /// The prefix of all names.
    pub prefix: String,
    pub embed: PatchEmbed,
    /// The order in which patches come.
    pub order: PatchOrder,
    /// Side of the block of patches that becomes one feature.
    pub merge: i64,
    pub positions: Option<PositionTable>,
    /// The standard deviation with which positions start; `None`: that of the blocks.
    pub position_std: Option<f64>,
    /// True if frames of an item of several get fixed sinusoids of their number.
    pub frame_sinusoids: bool,
    pub class: Option<ClassToken>,
    /// True if the states of the tokens before each frame leave as well, before those of its patches.
    pub keeps_tokens: bool,
    pub pre_norm: Option<(&'static str, TowerNorm)>,
    /// `{prefix}{block_prefix}{number}.`
    pub block_prefix: &'static str,
    pub num_blocks: i64,
    pub block: BlockConfig,
    pub rope: Option<AxialRope>,
    pub span: Span,
    pub windows: Option<Windows>,
    /// A step that halves rows and columns; `merge` is of what leaves then, and patches come row by row.
    pub halving: Option<Halving>,
    pub final_norm: Option<(&'static str, TowerNorm)>,
    /// True if an item's states are averaged over its frames.
    pub frame_mean: bool,
    /// The blocks behind which states are taken for the decoder's first layers (DeepStack).
    pub deepstack: Vec<i64>,
    /// Blocks behind the last one whose states are used. The checkpoint has them: they are kept as they are.
    pub unused_blocks: i64,
    /// Other parameters that the checkpoint has and nothing here is computed by.
    pub unused: Vec<ParamSpec>,
}

/// A linear map of a flattened patch, stored as the convolution that it is in the reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchEmbed {
    pub name: &'static str,
    /// The dimensions of the weight after the first.
    pub kernel: Vec<i64>,
    pub bias: bool,
}

impl PatchEmbed {
    /// Returns whether it is a linear map in the reference as well, which may have an adapter.
    pub fn is_linear(&self) -> bool {
        self.kernel.len() == 1
    }
}

/// A learned square table of positions, fitted to each picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PositionTable {
    pub name: &'static str,
    pub shape: Vec<i64>,
    /// Entries on each side.
    pub side: i64,
    /// True if an entry for the class token comes first.
    pub with_class: bool,
    pub resampling: Resampling,
}

/// A learned token before each frame, dropped at the end, and others behind it that have no position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassToken {
    pub name: &'static str,
    pub shape: Vec<i64>,
    /// The name of the others (registers), and how many they are, of shape `[1, R, D]`.
    pub registers: Option<(&'static str, i64)>,
    /// The name of its learned angles, where there is a rotary embedding.
    pub angles: Option<&'static str>,
}

/// Attention in windows, but for some blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Side in blocks of patches.
    pub side: i64,
    pub full_blocks: Vec<i64>,
}

impl TowerConfig {
    /// Patches in merge order through `num_blocks` blocks of attention within a frame, and nothing else.
    pub(super) fn new(prefix: &str, embed: PatchEmbed, merge: i64, num_blocks: i64, block: BlockConfig) -> TowerConfig {
        TowerConfig {
            prefix: prefix.into(),
            embed,
            order: PatchOrder::Merge,
            merge,
            positions: None,
            position_std: None,
            frame_sinusoids: false,
            class: None,
            keeps_tokens: false,
            pre_norm: None,
            block_prefix: "blocks.",
            num_blocks,
            block,
            rope: None,
            span: Span::Frame,
            windows: None,
            halving: None,
            final_norm: None,
            frame_mean: false,
            deepstack: Vec::new(),
            unused_blocks: 0,
            unused: Vec::new(),
        }
    }

    /// Returns the width of a patch's state.
    pub fn width(&self) -> i64 {
        self.block.width
    }

    /// Returns the number of learned tokens before each frame.
    pub(super) fn num_tokens(&self) -> usize {
        self.class.as_ref().map_or(0, |class| 1 + class.registers.map_or(0, |(_, count)| count as usize))
    }

    /// Returns the number of learned tokens of an item of this size that leave with its patches.
    pub(super) fn num_kept(&self, grid: Grid) -> usize {
        if self.keeps_tokens { self.num_tokens() * grid.t as usize } else { 0 }
    }

    /// Returns the number of values of one patch.
    pub fn patch_dim(&self) -> i64 {
        self.embed.kernel.iter().product()
    }

    /// Returns the size of an item as it leaves: one frame where frames are averaged, half the rows and columns behind a halving step.
    pub fn grid_out(&self, grid: Grid) -> Grid {
        let grid = if self.halving.is_some() { halved(grid) } else { grid };
        if self.frame_mean { Grid { t: 1, ..grid } } else { grid }
    }

    /// Returns the parameters, under their names in the checkpoint.
    pub fn specs(&self) -> Vec<ParamSpec> {
        let (width, prefix) = (self.width(), self.prefix.as_str());
        let normal = Init::Normal(self.block.initializer_range);
        let named = |name: &str, shape: &[i64], init| ParamSpec::new(format!("{prefix}{name}"), shape, init);
        let kernel: Vec<i64> = std::iter::once(width).chain(self.embed.kernel.iter().copied()).collect();
        let embed = named(&format!("{}.weight", self.embed.name), &kernel, normal);
        let mut specs = vec![ParamSpec { is_linear: self.embed.is_linear(), ..embed }];
        if self.embed.bias {
            specs.push(named(&format!("{}.bias", self.embed.name), &[width], Init::Zeros));
        }
        if let Some(table) = &self.positions {
            specs.push(named(table.name, &table.shape, self.position_std.map_or(normal, Init::Normal)));
        }
        if let Some(class) = &self.class {
            specs.push(named(class.name, &class.shape, normal));
            specs.extend(class.registers.map(|(name, count)| named(name, &[1, count, width], normal)));
            specs.extend(class.angles.map(|name| named(name, &[1, self.block.head_dim() / 2], Init::Normal(1.0))));
        }
        for (name, norm) in self.pre_norm.iter().chain(&self.final_norm) {
            specs.extend(norm.specs(prefix, name, width));
        }
        let block = |number: i64| self.block.specs(&format!("{prefix}{}{number}.", self.block_prefix));
        specs.extend((0..self.num_blocks).flat_map(block));
        specs.extend(self.halving.iter().flat_map(|halving| halving.specs(prefix)));
        let behind = self.num_blocks..self.num_blocks + self.unused_blocks;
        specs.extend(behind.flat_map(block).chain(self.unused.iter().cloned()).map(ParamSpec::frozen));
        specs
    }

    /// Returns the settings that decide where patches lie in the tower's sequence.
    pub(super) fn layout(&self) -> LayoutConfig {
        LayoutConfig {
            order: self.order,
            merge: self.merge as u32,
            span: self.span,
            num_tokens: self.num_tokens(),
            keeps_tokens: self.keeps_tokens,
            window: self.windows.as_ref().map(|windows| windows.side as u32),
        }
    }
}
