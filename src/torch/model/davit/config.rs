//! A DaViT tower as data.

use loongforge_core::message::Grid;

use crate::nn::Activation;

/// The epsilon of all layer norms of Florence-2.
pub(super) const EPS: f64 = 1e-5;

/// A DaViT tower and its projector.
#[derive(Clone, Debug, PartialEq)]
pub struct DavitConfig {
    /// The prefixes of the names of the tower's parameters, and of the projector's.
    pub prefix: String,
    pub projector_prefix: String,
    /// Channels of a picture.
    pub in_channels: i64,
    pub stages: Vec<StageConfig>,
    /// The side of the squares that attend to themselves.
    pub window: i64,
    /// The width between the maps of a feed-forward, as a multiple of the stage's.
    pub mlp_ratio: f64,
    pub qkv_bias: bool,
    pub activation: Activation,
    /// The width of features.
    pub outputs: i64,
    /// Rows, and columns, that have a learned position.
    pub max_positions: i64,
    /// Frames that have a position; a picture has the first.
    pub max_frames: i64,
    /// The standard deviation of random weights.
    pub std: f64,
    /// True if the tower is frozen; its projector is not.
    pub frozen: bool,
}

/// A stage: a convolution, and blocks at its resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageConfig {
    /// Pairs of a block of windows and a block of channels.
    pub depth: i64,
    pub width: i64,
    /// Heads of attention within windows.
    pub num_heads: i64,
    /// Groups of channels that attend to each other.
    pub num_groups: i64,
    /// The side of the convolution, its step, and the zeros around its input.
    pub kernel: i64,
    pub stride: i64,
    pub padding: i64,
    /// True if the norm is before the convolution.
    pub norm_first: bool,
}

impl DavitConfig {
    /// Returns the side in pixels of the patches that a picture's values come in: the first convolution's step.
    pub fn patch(&self) -> i64 {
        self.stages.first().map_or(1, |stage| stage.stride)
    }

    /// Returns the width of the last stage.
    pub(super) fn width(&self) -> i64 {
        self.stages.last().map_or(0, |stage| stage.width)
    }

    /// Returns the rows and columns behind the last stage of a picture of so many pixels; `None` where it is smaller than a convolution.
    pub fn grid_of(&self, pixels: [i64; 2]) -> Option<[i64; 2]> {
        self.stages.iter().try_fold(pixels, |size, stage| {
            let fits = size.iter().all(|side| side + 2 * stage.padding >= stage.kernel);
            fits.then(|| size.map(|side| (side + 2 * stage.padding - stage.kernel) / stage.stride + 1))
        })
    }

    /// Returns the number of features of a picture of so many pixels: one of each place of the last stage, and their mean before them; 0
    /// of one that is smaller than a convolution.
    pub fn num_features_of(&self, pixels: [i64; 2]) -> i64 {
        self.grid_of(pixels).map_or(0, |[rows, columns]| rows * columns + 1)
    }

    /// Returns the pixels of an item of so many patches.
    pub(super) fn pixels(&self, grid: Grid) -> [i64; 2] {
        [grid.h, grid.w].map(|side| i64::from(side) * self.patch())
    }

    /// Returns the inner width of the feed-forwards of a stage.
    pub(super) fn mlp_width(&self, stage: &StageConfig) -> i64 {
        (stage.width as f64 * self.mlp_ratio) as i64
    }
}
