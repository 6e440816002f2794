//! The first step of a tower: patches through a linear map, with positions, sinusoids of frames and class tokens.
//!
//! Shapes: P patches, X values of a patch, S rows of the sequence, E entries of the position table, N of them around a
//! patch, D hidden size.

use loongforge_core::message::Grid;
use tch::{Device, Kind, Tensor};

use super::layout::{Layout, PatchOrder};
use super::tower_config::TowerConfig;
use crate::device::upload;
use crate::model::tower_blocks::Norm;
use crate::native::linear;
use crate::nn::{Linear, Resampled, take_rows};
use crate::params::Scope;

pub(super) struct Embed {
    patches: Patches,
    positions: Option<Tensor>,
    /// `[1, D]`.
    class: Option<Tensor>,
    /// `[R, D]`: tokens behind the class token.
    registers: Option<Tensor>,
    /// True if the table's first entry is the class token's.
    with_class: bool,
    pre_norm: Option<Norm>,
}

/// The map of patches. The reference's convolution steps by its own size: it is a linear map as well.
enum Patches {
    Linear(Linear),
    Convolution { weight: Tensor, bias: Option<Tensor> },
}

/// The inputs that depend on the pictures' sizes.
pub(super) struct EmbedInputs {
    resampled: Option<Resampled>,
    /// `[P, D]`, float32.
    sinusoids: Option<Tensor>,
    /// The row in the learned tokens and the patches behind them of each row of the sequence; `None` where the sequence is the patches.
    rows: Option<Tensor>,
}

impl Embed {
    /// Takes the parameters of the patches, of positions, and of class tokens where the tower has them.
    pub fn new(config: &TowerConfig, scope: &Scope<'_>) -> Embed {
        let width = config.width();
        let table = |shape_width: i64, tensor: Tensor| tensor.reshape([-1, shape_width]);
        Embed {
            patches: match config.embed.is_linear() {
                true => Patches::Linear(Linear::new(scope, config.embed.name)),
                false => Patches::Convolution {
                    weight: scope.take(&format!("{}.weight", config.embed.name)),
                    bias: config.embed.bias.then(|| scope.take(&format!("{}.bias", config.embed.name))),
                },
            },
            positions: config.positions.as_ref().map(|positions| table(width, scope.take(positions.name))),
            class: config.class.as_ref().map(|class| table(width, scope.take(class.name))),
            registers: config
                .class
                .as_ref()
                .and_then(|class| class.registers)
                .map(|(name, _)| table(width, scope.take(name))),
            with_class: config.positions.as_ref().is_some_and(|positions| positions.with_class),
            pre_norm: config.pre_norm.map(|(name, norm)| norm.build(scope, name)),
        }
    }

    /// Maps `[P, X]` to `[S, D]`.
    pub fn forward(&self, pixels_PX: &Tensor, inputs: &EmbedInputs) -> Tensor {
        let mut x = self.patches.forward(pixels_PX);
        let kind = x.kind();
        let mut class = self.class.as_ref().map(Tensor::shallow_clone);
        if let (Some(table_ED), Some(resampled)) = (&self.positions, &inputs.resampled) {
            let first = i64::from(self.with_class);
            let entries = table_ED.narrow(0, first, table_ED.size()[0] - first);
            x = x + resampled.forward(&entries).to_kind(kind);
            if self.with_class {
                class = class.map(|class| class + table_ED.narrow(0, 0, 1));
            }
        }
        if let Some(sinusoids) = &inputs.sinusoids {
            x = x + sinusoids.to_kind(kind);
        }
        if let Some(class) = class {
            let registers = self.registers.iter().map(Tensor::shallow_clone);
            x = Tensor::cat(&std::iter::once(class).chain(registers).chain([x]).collect::<Vec<_>>(), 0);
        }
        if let Some(rows) = &inputs.rows {
            x = take_rows(&x, rows);
        }
        match &self.pre_norm {
            Some(norm) => norm.forward(&x),
            None => x,
        }
    }
}

impl Patches {
    /// Maps `[P, X]` to `[P, D]`.
    fn forward(&self, pixels_PX: &Tensor) -> Tensor {
        match self {
            Patches::Linear(linear) => linear.forward(&pixels_PX.to_kind(linear.kind())),
            Patches::Convolution { weight, bias } => {
                let (x, weight) = (pixels_PX.to_kind(weight.kind()), weight.flatten(1, -1));
                match x.kind() {
                    // libtorch's products of bfloat16 are slow on processors without AVX-512.
                    Kind::BFloat16 => linear(&x, &weight, bias.as_ref()),
                    _ => x.linear(&weight, bias.as_ref()),
                }
            }
        }
    }
}

impl EmbedInputs {
    /// Puts on `device` what the first step needs of pictures of these `grids`: entries of the table of positions, sinusoids of
    /// frames, and the order of rows.
    pub fn new(config: &TowerConfig, grids: &[Grid], layout: &Layout, device: Device) -> EmbedInputs {
        let merge = if config.order == PatchOrder::Merge { config.merge as u32 } else { 1 };
        let resampled = config
            .positions
            .as_ref()
            .map(|positions| Resampled::new(grids, merge, positions.side as u32, positions.resampling, device));
        let places = || layout.places(config.num_tokens());
        let rows = (!layout.is_plain()).then(|| upload(&Tensor::from_slice(&places()), device));
        let several = config.frame_sinusoids && grids.iter().any(|grid| grid.t > 1);
        let sinusoids = several.then(|| upload(&sinusoids(grids, config.width()), device));
        EmbedInputs { resampled, sinusoids, rows }
    }
}

/// Returns the sines and cosines of the number of each patch's frame, zeros in an item of one frame: `[P, D]`, float32.
fn sinusoids(grids: &[Grid], width: i64) -> Tensor {
    let exponents = Tensor::arange_start_step(0, width, 2, (Kind::Float, Device::Cpu)) / width as f64;
    let frequencies = Tensor::from(10_000f32).pow(&exponents).reciprocal();
    let frames: Vec<Tensor> = grids
        .iter()
        .map(|grid| {
            let patches = i64::from(grid.h * grid.w);
            if grid.t == 1 {
                return Tensor::zeros([patches, width], (Kind::Float, Device::Cpu));
            }
            let frames = Tensor::arange(i64::from(grid.t), (Kind::Float, Device::Cpu));
            let angles = frames.unsqueeze(-1) * &frequencies;
            let table = Tensor::cat(&[angles.sin(), angles.cos()], 1);
            table.repeat_interleave_self_int(patches, 0, None)
        })
        .collect();
    Tensor::cat(&frames, 0)
}
