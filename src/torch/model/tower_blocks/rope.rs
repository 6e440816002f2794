//! Rotary embeddings of patches: a row and a column turn half of a head's pairs each.
//!
//! Shapes: S rows of a tower's sequence, H heads, C head size.

use tch::{Device, Kind, Tensor};

use crate::device::upload;
use crate::native::{Turn, can_fuse, is_table, norm_rope, turn_halves};
use crate::nn::RmsNorm;

/// Describes how a tower turns its queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AxialRope {
    pub theta: f64,
    pub order: AxialOrder,
}

/// Says which pair of channels is turned by which axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxialOrder {
    /// Channels i and i + C/2 are a pair; the first C/4 pairs are turned by rows, the others by columns (Qwen).
    Halves,
    /// Channels 2i and 2i + 1 are a pair, turned by columns and rows in turn (Kimi's complex form).
    Interleaved,
}

impl AxialRope {
    /// Returns the angle of each pair `[S, C/2]`, float32, from rows and columns `[S, 2]` (int64).
    pub(in crate::model) fn angles(self, positions_S2: &Tensor, head_dim: i64) -> Tensor {
        let half = head_dim / 2;
        let exponents = Tensor::arange_start_step(0, half, 2, (Kind::Float, Device::Cpu)) / half as f64;
        let frequencies = Tensor::from(self.theta as f32).pow(&exponents).reciprocal();
        let positions = positions_S2.to_kind(Kind::Float).unsqueeze(-1);
        let angles_S2F = positions * upload(&frequencies, positions_S2.device());
        match self.order {
            AxialOrder::Halves => angles_S2F.flatten(1, 2),
            AxialOrder::Interleaved => angles_S2F.transpose(1, 2).flip([-1]).flatten(1, 2),
        }
    }
}

/// The tables that turn the heads of one sequence.
pub(in crate::model) struct Rotation {
    cos_SC: Tensor,
    sin_SC: Tensor,
    order: AxialOrder,
}

impl Rotation {
    /// `angles` `[S, C/2]`; of float64 ones the tables are float32 all the same.
    pub fn new(angles: &Tensor, order: AxialOrder) -> Rotation {
        let angles = Tensor::cat(&[angles, angles], -1);
        let table = |x: Tensor| x.to_kind(Kind::Float);
        Rotation { cos_SC: table(angles.cos()), sin_SC: table(angles.sin()), order }
    }

    /// Returns the same rotation with its tables on `device`.
    pub fn to_device(&self, device: Device) -> Rotation {
        let [cos_SC, sin_SC] = [&self.cos_SC, &self.sin_SC].map(|table| upload(table, device));
        Rotation { cos_SC, sin_SC, ..*self }
    }

    /// Returns the heads `[S, H, C]`, turned; computed in float32. Interleaved pairs come out half-split, which no product of queries and
    /// keys can tell.
    pub fn apply(&self, x_SHC: &Tensor) -> Tensor {
        if let Some(turn) = self.turn(x_SHC) {
            return norm_rope(x_SHC, None, Some(turn));
        }
        let x = match self.order {
            AxialOrder::Halves => x_SHC.shallow_clone(),
            AxialOrder::Interleaved => x_SHC.unflatten(-1, [-1, 2]).transpose(-1, -2).flatten(-2, -1),
        };
        if x.device().is_cuda() && !self.cos_SC.requires_grad() {
            return turn_halves(&x, &self.cos_SC, &self.sin_SC);
        }
        let halves = x.chunk(2, -1);
        let turned = Tensor::cat(&[halves[1].neg(), halves[0].shallow_clone()], -1);
        (&x * self.cos_SC.unsqueeze(1) + turned * self.sin_SC.unsqueeze(1)).to_kind(x.kind())
    }

    /// Works like `apply` behind a norm, of every head or, where its weight is `[H·C]`, of all heads together.
    pub fn apply_normed(&self, norm: &RmsNorm, x_SHC: &Tensor) -> Tensor {
        match self.turn(x_SHC) {
            Some(turn) => norm.forward_turned(x_SHC, turn),
            None => self.apply(&norm.forward_heads(x_SHC)),
        }
    }

    /// Returns the tables for the fused operator, where it takes the heads. It has no gradient of the tables, which a learned angle
    /// needs.
    fn turn(&self, x_SHC: &Tensor) -> Option<Turn<'_>> {
        let fits = can_fuse(x_SHC) && is_table(&self.cos_SC) && !self.cos_SC.requires_grad();
        let neighbors = self.order == AxialOrder::Interleaved;
        fits.then_some(Turn { cos: &self.cos_SC, sin: &self.sin_SC, neighbors })
    }
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor};

    use super::{AxialOrder, AxialRope, Rotation};

    #[test]
    fn scores_depend_on_the_distance_in_rows_and_columns() {
        for order in [AxialOrder::Halves, AxialOrder::Interleaved] {
            let rope = AxialRope { theta: 100.0, order };
            let x = Tensor::arange(16, (Kind::Float, tch::Device::Cpu)).view([2, 1, 8]) / 16.0;
            let score = |[row, column]: [i64; 2], [down, right]: [i64; 2]| {
                let positions = Tensor::from_slice(&[row, column, row + down, column + right]).view([2, 2]);
                let turned = Rotation::new(&rope.angles(&positions, 8), order).apply(&x);
                (turned.get(0) * turned.get(1)).sum(Kind::Float).double_value(&[])
            };
            assert!((score([0, 0], [2, 1]) - score([30, 7], [2, 1])).abs() < 1e-4);
            assert!((score([0, 0], [2, 1]) - score([0, 0], [1, 2])).abs() > 1e-3);
        }
    }

    #[test]
    fn interleaved_pairs_are_turned_by_columns_first() {
        let rope = AxialRope { theta: 100.0, order: AxialOrder::Interleaved };
        let angles = rope.angles(&Tensor::from_slice(&[3i64, 5]).view([1, 2]), 8);
        assert!(angles.allclose(&Tensor::from_slice(&[5f32, 3.0, 0.5, 0.3]).view([1, 4]), 1e-6, 1e-6, false));
        let halves = AxialRope { order: AxialOrder::Halves, ..rope };
        let angles = halves.angles(&Tensor::from_slice(&[3i64, 5]).view([1, 2]), 8);
        assert!(angles.allclose(&Tensor::from_slice(&[3f32, 0.3, 5.0, 0.5]).view([1, 4]), 1e-6, 1e-6, false));
    }
}
