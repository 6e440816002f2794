//! A block of DaViT: a depthwise convolution, attention within windows of places or among groups of channels, another depthwise
//! convolution, and a feed-forward.
//!
//! Shapes: B pictures, C channels, H rows, W columns, N = H·W places, G heads or groups, S side of a window.

use tch::{Kind, Tensor};

use super::config::{DavitConfig, EPS};
use super::embed::Conv;
use crate::nn::{Activation, LayerNorm, Linear, Mask, PackedAttention, Scores};
use crate::params::{ParamSpec, Scope};

/// The axis along which an attention mixes values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Among {
    /// The places of a window.
    Places,
    /// The channels of a group, each with its values at all places.
    Channels,
}

impl Among {
    pub const BOTH: [Among; 2] = [Among::Places, Among::Channels];

    fn block(self) -> &'static str {
        match self {
            Among::Places => "spatial_block",
            Among::Channels => "channel_block",
        }
    }

    fn map(self, name: &str) -> String {
        match self {
            Among::Places => format!("window_attn.{name}"),
            Among::Channels => format!("channel_attn.{name}"),
        }
    }
}

/// A block on its parameters.
pub(super) struct Block {
    convs: [Conv; 2],
    norms: [LayerNorm; 2],
    qkv: Linear,
    proj: Linear,
    mlp: [Linear; 2],
    activation: Activation,
    among: Among,
    /// Heads, or groups of channels.
    num_groups: i64,
    window: i64,
}

/// Returns the name of a block before those of its parameters.
pub(super) fn prefix_of(config: &DavitConfig, stage: usize, number: i64, among: Among) -> String {
    format!("{}blocks.{stage}.{number}.{}.", config.prefix, among.block())
}

/// Returns the parameters of a block.
pub(super) fn specs(config: &DavitConfig, stage: usize, number: i64, among: Among) -> Vec<ParamSpec> {
    let prefix = prefix_of(config, stage, number, among);
    let (width, inner, std) = (config.stages[stage].width, config.mlp_width(&config.stages[stage]), config.std);
    let linear = |name: &str, inputs, outputs, bias| Linear::specs(&prefix, name, inputs, outputs, bias, std);
    let qkv = linear(&among.map("qkv"), width, 3 * width, config.qkv_bias);
    let mut specs = Conv::specs(&prefix, "conv1", [width, 1, 3, 3], std);
    specs.extend(LayerNorm::specs(&prefix, "norm1", width));
    specs.extend(qkv.into_iter().map(|spec| spec.in_sections(0, &[width; 3])));
    specs.extend(linear(&among.map("proj"), width, width, true));
    specs.extend(Conv::specs(&prefix, "conv2", [width, 1, 3, 3], std));
    specs.extend(LayerNorm::specs(&prefix, "norm2", width));
    specs.extend(linear("ffn.fc1", width, inner, true));
    specs.extend(linear("ffn.fc2", inner, width, true));
    specs
}

impl Block {
    /// Takes the parameters of the block of `stage` that attends `among` places of a window or channels of a group.
    pub fn new(config: &DavitConfig, stage: usize, among: Among, scope: &Scope<'_>) -> Block {
        let own = &config.stages[stage];
        Block {
            convs: ["conv1", "conv2"].map(|name| Conv::new(scope, name, 1, 1, own.width)),
            norms: ["norm1", "norm2"].map(|name| LayerNorm::new(scope, name, EPS)),
            qkv: Linear::new(scope, &among.map("qkv")),
            proj: Linear::new(scope, &among.map("proj")),
            mlp: ["ffn.fc1", "ffn.fc2"].map(|name| Linear::new(scope, name)),
            activation: config.activation,
            among,
            num_groups: if among == Among::Places { own.num_heads } else { own.num_groups },
            window: config.window,
        }
    }

    /// Maps `[B, C, H, W]` to the same.
    pub fn forward(&self, x_BCHW: &Tensor) -> Tensor {
        let size = x_BCHW.size();
        let [rows, columns] = [size[2], size[3]];
        let by_place = |x: &Tensor| x.flatten(2, 3).transpose(1, 2);
        let by_channel = |x: &Tensor| x.transpose(1, 2).unflatten(2, [rows, columns]);
        let x = by_place(&(self.convs[0].forward(x_BCHW) + x_BCHW));
        let normed = self.norms[0].forward(&x);
        let x = by_channel(&(x + self.attention(&normed, [rows, columns])));
        let x = by_place(&(self.convs[1].forward(&x) + &x));
        let [up, down] = &self.mlp;
        let y = down.forward(&self.activation.forward(&up.forward(&self.norms[1].forward(&x))));
        by_channel(&(x + y)).contiguous()
    }

    /// Maps `[B, N, C]` to the same.
    fn attention(&self, x_BNC: &Tensor, places: [i64; 2]) -> Tensor {
        match self.among {
            Among::Places => self.within_windows(x_BNC, places),
            Among::Channels => self.among_channels(x_BNC),
        }
    }

    /// Zeros fill up the windows at the lower and the right border; they are attended to as well, as in the reference.
    fn within_windows(&self, x_BNC: &Tensor, [rows, columns]: [i64; 2]) -> Tensor {
        let side = self.window;
        let [down, across] = [rows, columns].map(|size| (size + side - 1) / side);
        let x = x_BNC.unflatten(1, [rows, columns]);
        let x = x.constant_pad_nd([0, 0, 0, across * side - columns, 0, down * side - rows]);
        let windows = x.unflatten(2, [across, side]).unflatten(1, [down, side]).permute([0, 1, 3, 2, 4, 5]);
        let qkv = self.qkv.forward(&windows.reshape([-1, x.size()[3]])).unflatten(1, [3, self.num_groups, -1]);
        let [q, k, v] = [0, 1, 2].map(|at| qkv.select(1, at));
        let (len, width) = ((side * side) as usize, q.size()[2]);
        let ends: Vec<usize> = (0..=q.size()[0] as usize / len).map(|number| number * len).collect();
        let windows = PackedAttention::new(&ends, Mask::Full, q.device());
        let y = windows.forward_with(&q, &k, &v, Scores::from((width as f64).powf(-0.5)));
        let y = self.proj.forward(&y).view([-1, down, across, side, side, x.size()[3]]);
        let y = y.permute([0, 1, 3, 2, 4, 5]).reshape([-1, down * side, across * side, x.size()[3]]);
        y.narrow(1, 0, rows).narrow(2, 0, columns).flatten(1, 2)
    }

    /// Scores are divided by the root of the number of places.
    fn among_channels(&self, x_BNC: &Tensor) -> Tensor {
        let num_places = x_BNC.size()[1];
        let qkv = self.qkv.forward(x_BNC).unflatten(2, [3, self.num_groups, -1]).permute([2, 0, 3, 4, 1]);
        let [q, k, v] = [0, 1, 2].map(|at| qkv.select(0, at));
        let scores = q.matmul(&k.transpose(2, 3)) * (num_places as f64).powf(-0.5);
        let y = scores.softmax(-1, Kind::Float).to_kind(v.kind()).matmul(&v);
        self.proj.forward(&y.permute([0, 3, 1, 2]).flatten(2, 3))
    }
}
