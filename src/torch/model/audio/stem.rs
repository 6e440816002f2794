//! The first step of an audio tower: convolutions of each chunk, and positions.
//!
//! Shapes: F frames of all clips, M mel bins, B chunks, L frames of a whole chunk, C channels, G bins after the
//! convolutions, S positions, D hidden size.

use tch::{Device, Tensor};

use super::layout::{AudioLayout, chunk_rows};
use super::tower_config::{AudioPositions, AudioTowerConfig, CONV_OUT, CONVS, PLANE_CONVS, StemConfig, TABLE};
use crate::device::upload;
use crate::nn::{Activation, Linear, RowConv, Taps, take_rows};
use crate::params::{Scope, sinusoids};

pub(super) struct Stem {
    convs: Convs,
    activation: Activation,
    /// `[places, D]`.
    table: Option<Tensor>,
}

enum Convs {
    Line([RowConv; 2]),
    Plane { convs: [[Tensor; 2]; 3], out: Linear },
}

/// The inputs that depend on the clips' lengths.
pub(super) struct StemInputs {
    frames: Frames,
    /// Each position's place in its chunk, `[S]`.
    places: Tensor,
    /// `[places, D]`, float32, where they are not the model's.
    table: Option<Tensor>,
}

enum Frames {
    Line([Taps; 2]),
    /// The frames of whole chunks, L, and the rows of whole chunks that are positions `[S]`.
    Plane {
        chunks: Taps,
        len: i64,
        rows: Tensor,
    },
}

impl Stem {
    /// Takes the parameters of the convolutions, along frames or over frames and mel bins, and of the positions that are
    /// learned.
    pub fn new(config: &AudioTowerConfig, scope: &Scope<'_>) -> Stem {
        let conv = |name: &str| ["weight", "bias"].map(|part| scope.take(&format!("{name}.{part}")));
        Stem {
            convs: match config.stem {
                StemConfig::Line => Convs::Line(CONVS.map(|name| RowConv::new(scope, name))),
                StemConfig::Plane { .. } => {
                    Convs::Plane { convs: PLANE_CONVS.map(conv), out: Linear::new(scope, CONV_OUT) }
                }
            },
            activation: config.activation,
            table: matches!(config.positions, AudioPositions::Table(_)).then(|| scope.take(TABLE)),
        }
    }

    /// Maps `[F, M]` to `[S, D]`.
    pub fn forward(&self, frames_FM: &Tensor, inputs: &StemInputs) -> Tensor {
        let act = |x: Tensor| self.activation.forward(&x);
        let x_SD = match (&self.convs, &inputs.frames) {
            (Convs::Line([first, second]), Frames::Line([frames, rows])) => {
                act(second.forward(&act(first.forward(frames_FM, frames)), rows))
            }
            (Convs::Plane { convs, out }, Frames::Plane { chunks, len, rows }) => {
                let seen_BLM = chunks.gather(&frames_FM.to_kind(out.kind())).view([-1, *len, frames_FM.size()[1]]);
                let mut x = seen_BLM.transpose(1, 2).unsqueeze(1);
                for [weight, bias] in convs {
                    x = act(x.conv2d(weight, Some(bias), 2, 1, 1, 1));
                }
                let x_BLCG = x.permute([0, 3, 1, 2]);
                out.forward(&take_rows(&x_BLCG.flatten(2, 3).flatten(0, 1), rows))
            }
            _ => unreachable!("the inputs are made from the same config"),
        };
        let table = self.table.as_ref().or(inputs.table.as_ref()).expect("a tower has positions");
        &x_SD + take_rows(&table.to_kind(x_SD.kind()), &inputs.places)
    }
}

impl StemInputs {
    /// Puts on `device` which frames each output of the convolutions sees, and the positions of a batch of clips.
    pub fn new(config: &AudioTowerConfig, layout: &AudioLayout, device: Device) -> StemInputs {
        let index = |rows: &[i64]| upload(&Tensor::from_slice(rows), device);
        let frames = match config.stem {
            StemConfig::Line => {
                let (first, second, outputs) = layout.taps();
                Frames::Line([
                    Taps::new(first.into_iter(), layout.num_frames, device),
                    Taps::new(second.into_iter(), outputs, device),
                ])
            }
            StemConfig::Plane { .. } => Frames::Plane {
                chunks: Taps::new(layout.padded(config.chunk as usize), layout.num_frames, device),
                len: config.chunk,
                rows: index(&chunk_rows(config.stem, config.chunk, &layout.chunks)),
            },
        };
        let (places, width) = (config.stem.halved(config.chunk), config.width());
        let table = || upload(&Tensor::from_slice(&sinusoids(places, width)).view([places, width]), device);
        let stored = matches!(config.positions, AudioPositions::Table(_));
        StemInputs { frames, places: index(&layout.places()), table: (!stored).then(table) }
    }
}
