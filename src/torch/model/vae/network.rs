//! An encoder or a decoder as a list of layers with their names: its parameters and what it computes both follow from it.

use tch::Tensor;

use super::blocks::{CausalConv, ChannelNorm, FrameAttention, Residual};
use super::past::Past;
use super::resample::{Down, Up, block_means, repeated_blocks};
use crate::params::{Init, ParamSpec, Scope};

/// A layer and its name, or that of each of its parts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Named {
    pub name: String,
    pub layer: LayerConfig,
}

/// A layer as data; sizes are channels.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LayerConfig {
    /// A causal convolution with so many taps on each axis.
    Conv {
        inputs: i64,
        outputs: i64,
        taps: i64,
    },
    /// A norm and SiLU.
    Norm(i64),
    Residual {
        inputs: i64,
        outputs: i64,
    },
    Attention(i64),
    Down {
        width: i64,
        time: bool,
    },
    Up {
        width: i64,
        outputs: i64,
        time: bool,
    },
    /// Layers beside a shortcut, as in the autoencoder of Wan 2.2.
    Block {
        layers: Vec<Named>,
        shortcut: Shortcut,
    },
}

/// A shortcut without parameters, from one number of channels to another: blocks of so many frames and so many rows and columns
/// become one place, or the reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortcut {
    Means { widths: [i64; 2], factors: [i64; 2] },
    Repeats { widths: [i64; 2], factors: [i64; 2] },
}

impl Shortcut {
    /// Returns whether all values of the wider side have the same share in the other.
    pub fn fits(&self) -> bool {
        match *self {
            Shortcut::Means { widths: [inputs, outputs], factors: [t, s] } => inputs * t * s * s % outputs == 0,
            Shortcut::Repeats { widths: [inputs, outputs], factors: [t, s] } => outputs * t * s * s % inputs == 0,
        }
    }
}

/// The layers on their parameters.
pub(super) struct Network(Vec<Layer>);

enum Layer {
    Conv(CausalConv),
    Norm(ChannelNorm),
    Residual(Residual),
    Attention(FrameAttention),
    Down(Down),
    Up(Up),
    Block(Network, Shortcut),
}

/// Returns the parameters of these layers, frozen, under their names behind `prefix`.
pub(super) fn specs(prefix: &str, layers: &[Named]) -> Vec<ParamSpec> {
    layers.iter().flat_map(|named| named.layer.specs(&format!("{prefix}{}", named.name), prefix)).collect()
}

/// Returns the weight and the bias of a convolution.
fn conv(name: &str, shape: &[i64]) -> Vec<ParamSpec> {
    let inputs: i64 = shape[1..].iter().product();
    let weight = ParamSpec::new(format!("{name}.weight"), shape, Init::Normal((inputs as f64).powf(-0.5)));
    vec![weight.frozen(), ParamSpec::new(format!("{name}.bias"), &shape[..1], Init::Zeros).frozen()]
}

fn gamma(name: &str, shape: &[i64]) -> ParamSpec {
    ParamSpec::new(format!("{name}.gamma"), shape, Init::Ones).frozen()
}

impl LayerConfig {
    fn specs(&self, name: &str, prefix: &str) -> Vec<ParamSpec> {
        let of = |part: &str| format!("{name}.{part}");
        match self {
            LayerConfig::Conv { inputs, outputs, taps } => conv(name, &[*outputs, *inputs, *taps, *taps, *taps]),
            LayerConfig::Norm(width) => vec![gamma(name, &[*width, 1, 1, 1])],
            LayerConfig::Residual { inputs, outputs } => {
                let mut specs = vec![gamma(&of("norm1"), &[*inputs, 1, 1, 1])];
                specs.extend(conv(&of("conv1"), &[*outputs, *inputs, 3, 3, 3]));
                specs.push(gamma(&of("norm2"), &[*outputs, 1, 1, 1]));
                specs.extend(conv(&of("conv2"), &[*outputs, *outputs, 3, 3, 3]));
                if inputs != outputs {
                    specs.extend(conv(&of("conv_shortcut"), &[*outputs, *inputs, 1, 1, 1]));
                }
                specs
            }
            LayerConfig::Attention(width) => {
                let mut specs = vec![gamma(&of("norm"), &[*width, 1, 1])];
                specs.extend(conv(&of("to_qkv"), &[3 * width, *width, 1, 1]));
                specs.extend(conv(&of("proj"), &[*width, *width, 1, 1]));
                specs
            }
            LayerConfig::Down { width, time } => resample(name, [*width; 2], time.then_some(*width)),
            LayerConfig::Up { width, outputs, time } => resample(name, [*width, *outputs], time.then_some(2 * width)),
            LayerConfig::Block { layers, .. } => specs(prefix, layers),
        }
    }
}

/// Returns the parameters of [`Down`] and [`Up`]; `time` is how many channels come out of the convolution in time, where there is one.
fn resample(name: &str, [width, outputs]: [i64; 2], time: Option<i64>) -> Vec<ParamSpec> {
    let mut specs = conv(&format!("{name}.resample.1"), &[outputs, width, 3, 3]);
    specs.extend(time.into_iter().flat_map(|both| conv(&format!("{name}.time_conv"), &[both, width, 3, 1, 1])));
    specs
}

impl Network {
    /// Panics where the store was not made from the `specs` of these layers.
    pub fn new(layers: &[Named], scope: &Scope<'_>) -> Network {
        Network(layers.iter().map(|named| Layer::new(named, scope)).collect())
    }

    /// Computes the layers on a chunk of frames `[T, H, W, C]`; `past` holds the frames that layers keep for the next chunk.
    pub fn forward(&self, x_THWC: Tensor, past: &mut Past) -> Tensor {
        self.0.iter().fold(x_THWC, |x, layer| layer.forward(x, past))
    }
}

impl Layer {
    fn new(Named { name, layer }: &Named, scope: &Scope<'_>) -> Layer {
        match layer {
            LayerConfig::Conv { .. } => Layer::Conv(CausalConv::new(scope, name)),
            LayerConfig::Norm(_) => Layer::Norm(ChannelNorm::new(scope, name)),
            LayerConfig::Residual { inputs, outputs } => Layer::Residual(Residual::new(scope, name, inputs != outputs)),
            LayerConfig::Attention(_) => Layer::Attention(FrameAttention::new(scope, name)),
            LayerConfig::Down { time, .. } => Layer::Down(Down::new(scope, name, *time)),
            LayerConfig::Up { time, .. } => Layer::Up(Up::new(scope, name, *time)),
            LayerConfig::Block { layers, shortcut } => Layer::Block(Network::new(layers, scope), *shortcut),
        }
    }

    fn forward(&self, x_THWC: Tensor, past: &mut Past) -> Tensor {
        match self {
            Layer::Conv(conv) => conv.forward(&x_THWC, past),
            Layer::Norm(norm) => norm.activated(&x_THWC),
            Layer::Residual(block) => block.forward(&x_THWC, past),
            Layer::Attention(block) => block.forward(&x_THWC),
            Layer::Down(down) => down.forward(&x_THWC, past),
            Layer::Up(up) => up.forward(&x_THWC, past),
            Layer::Block(layers, shortcut) => {
                let beside = match *shortcut {
                    Shortcut::Means { widths, factors } => block_means(&x_THWC, factors, widths[1]),
                    Shortcut::Repeats { widths, factors } => {
                        repeated_blocks(&x_THWC, factors, widths[1], past.is_first())
                    }
                };
                layers.forward(x_THWC, past) + beside
            }
        }
    }
}
